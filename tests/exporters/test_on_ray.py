"""Exports on a Ray cluster of this machine: several worker processes, one of them killed on the way."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.exporters.stores import stored
from tests.exporters.workers import DeadlyOpening, some_groups
from tracestore.shards.manifest import read_manifest
from tracestore.store import Store
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(900),
    # Ray's own, from its start and its end.
    pytest.mark.filterwarnings(
        "ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
    ),
]
SPEC = Spec(shard_rows=1, max_row_bytes=900)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with stored(tmp_path_factory.mktemp("ray"), some_groups(6)) as opened:
        yield opened


def test_a_cluster_with_a_worker_killed_in_the_middle_writes_what_one_process_writes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from tracestore_exporters.on_ray import OnRay

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "marks").mkdir()
    whole = export(store, "p", tmp_path / "whole", SPEC)
    notes: list[str] = []
    progress: list[tuple[int, int]] = []
    opening = DeadlyOpening(
        str(store.engine.url), episode_id="3/linear/e", deaths=1, marks=tmp_path / "marks"
    )
    manifest = export(
        *(store, "p", tmp_path / "out", SPEC),
        engine=OnRay(opening, workers=3, note=notes.append),
        progress=lambda *done: progress.append(done),
    )
    assert manifest.manifest_hash == whole.manifest_hash
    assert len(list((tmp_path / "marks").iterdir())) == 1
    (note,) = notes
    assert re.match(r"a worker of Ray died \(.+\); shard-00003.arrow is made once more", note)
    assert progress[-1] == (6, 6)
    assert not ray.is_initialized()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "out", "whole"]


def test_the_command_takes_the_engine(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "spec.json").write_text(SPEC.model_dump_json())
    whole = export(store, "p", tmp_path / "whole", SPEC)
    command = [sys.executable, "-m", "tracestore.cli.main", "export", "--db", str(store.engine.url)]
    command += ["--project", "p", "--out", "out", "--spec", "spec.json", "--engine", "ray", "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read_manifest(tmp_path / "out") == whole
