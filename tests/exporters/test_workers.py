from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import DATABASES
from tests.exporters.stores import stored
from tests.exporters.workers import DeadlyOpening, some_groups
from tracestore.shards.manifest import Manifest, read_manifest
from tracestore.store import Store
from tracestore.store.engine import NoStore
from tracestore_exporters.export import Engine, export
from tracestore_exporters.opening import Opening
from tracestore_exporters.spec import Spec
from tracestore_exporters.workers import Processes, WorkerDied

# 4 shards of 1 group; a group is larger than a row, so each is cut into parts.
SPEC = Spec(shard_rows=1, max_row_bytes=900)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with stored(tmp_path_factory.mktemp("workers"), some_groups(4)) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The export that this process makes by itself."""
    return export(store, "p", tmp_path_factory.mktemp("alone") / "out", SPEC)


def deadly(store: Store, tmp_path: Path, *, deaths: int) -> DeadlyOpening:
    (tmp_path / "marks").mkdir()
    return DeadlyOpening(
        str(store.engine.url), episode_id="2/linear/e", deaths=deaths, marks=tmp_path / "marks"
    )


def test_a_worker_that_was_killed_is_named_and_another_one_makes_the_same_shard(
    store: Store, alone: Manifest, tmp_path: Path
) -> None:
    notes: list[str] = []
    progress: list[tuple[int, int]] = []
    engine = Processes(deadly(store, tmp_path, deaths=1), workers=2, note=notes.append)
    manifest = export(
        *(store, "p", tmp_path / "out", SPEC), engine=engine, progress=lambda *done: progress.append(done)
    )
    assert (len(alone.shards), alone.rows > 4) == (4, True)
    assert manifest.manifest_hash == alone.manifest_hash
    (note,) = notes
    assert re.fullmatch(r"worker \d+ \(SIGKILL\) died; shard-00002.arrow is made once more", note)
    assert progress[-1] == (4, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["marks", "out"]


@pytest.mark.soak
def test_a_shard_that_kills_two_workers_is_an_error_and_what_is_finished_stays(
    store: Store, alone: Manifest, tmp_path: Path
) -> None:
    engine = Processes(deadly(store, tmp_path, deaths=2), workers=1, note=lambda text: None)
    with pytest.raises(WorkerDied, match=r"shard='shard-00002.arrow', last='worker \d+ \(SIGKILL\)'"):
        export(store, "p", tmp_path / "out", SPEC, engine=engine)
    assert not (tmp_path / "out").exists()
    notes: list[str] = []
    again = export(store, "p", tmp_path / "out", SPEC, engine=engine, note=notes.append)
    assert again.manifest_hash == alone.manifest_hash
    assert re.search(r"[12] of 4 shards are there", notes[0])


def test_what_a_worker_meets_is_raised_as_it_is(store: Store, tmp_path: Path) -> None:
    opening = Opening(f"sqlite:///{tmp_path}/gone.db")
    engine: Engine = Processes(opening, workers=1, note=lambda text: None)
    with pytest.raises(NoStore, match=r"gone\.db") as error:
        export(store, "p", tmp_path / "out", SPEC, engine=engine)
    assert (error.value.hint or "").startswith("name another one with --db")
    assert "opening.source" in error.value.__notes__[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("workers", [2, 4])
def test_four_workers_write_what_one_writes(
    workers: int, database: str, alone: Manifest, tmp_path: Path
) -> None:
    with stored(tmp_path, some_groups(4), database=database) as store:
        url = store.engine.url.render_as_string(hide_password=False)
        engine = Processes(Opening.absolute(url), workers=workers, note=lambda text: None)
        made = export(store, "p", tmp_path / "out", SPEC, engine=engine)
    assert made.manifest_hash == alone.manifest_hash


@pytest.mark.soak
def test_ctrl_c_ends_every_worker_and_the_same_command_goes_on(
    store: Store, alone: Manifest, tmp_path: Path
) -> None:
    (tmp_path / "spec.json").write_text(SPEC.model_dump_json())
    command = [sys.executable, "-m", "tracestore.cli.main", "export", "--json", "--db", str(store.engine.url)]
    command += ["--project", "p", "--out", "out", "--spec", "spec.json", "--workers", "2"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True
    ) as running:
        while not (workers := _workers_of(running.pid)) and running.poll() is None:
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGINT)
        running.wait()
    assert running.returncode != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not (tmp_path / "out").exists()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert read_manifest(tmp_path / "out").manifest_hash == alone.manifest_hash
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "spec.json"]


def _workers_of(pid: int) -> list[int]:
    """Child processes that multiprocessing has started to work."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if "spawn_main" in _command_line(child)]
    except FileNotFoundError:
        return []


def _command_line(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
