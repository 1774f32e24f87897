"""An export killed with SIGKILL, at every step and at random: the same command ends it as if never killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.stores import stored
from tests.exporters.workers import some_groups
from tracestore.shards.manifest import read_manifest
from tracestore_exporters.export import export
from tracestore_exporters.folder import FolderParts, FolderPlace
from tracestore_exporters.spec import Spec

FORK = multiprocessing.get_context("fork")
SPEC = Spec(shard_rows=1)
EVENTS = [
    event
    for name in ("e1", "e2")
    for event in (
        make.episode(name, group_id=None),
        make.call(f"{name}c", None, make.answer(None, ids=[4, 5]), prompt_ids=[1], episode=name),
    )
]


def export_until(out: Path, left: int) -> None:
    """Export, and die after the n-th step."""
    steps = left

    def around(whole: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            result = whole(*args, **more)
            dies()
            return result

        return wrapped

    def dies() -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    for kind, names in ((FolderParts, ("write", "keep")), (FolderPlace, ("begin", "publish", "clear"))):
        for name in names:
            setattr(kind, name, around(getattr(kind, name)))
    export(MemorySource(EVENTS), "p", out, SPEC)
    os._exit(0)


def test_an_export_killed_at_any_step_shows_nothing_and_is_ended_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kill loses nothing that was written, and there is much of it here.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    whole = export(MemorySource(EVENTS), "p", tmp_path / "whole", SPEC)
    shown = ["manifest.json", *(shard.file for shard in whole.shards)]
    for kills in count():
        out, partial = tmp_path / f"out{kills}", tmp_path / f".out{kills}.partial"
        process = FORK.Process(target=export_until, args=(out, kills))
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        assert out.exists() or partial.exists()
        assert not out.exists() or read_manifest(out) == whole
        if partial.exists():
            assert export(MemorySource(EVENTS), "p", out, SPEC) == whole
        assert sorted(path.name for path in out.iterdir()) == shown
        assert not partial.exists()
    # After the beginning, the writing and keeping of each shard, the publication, and the end.
    assert kills >= 1 + 2 * 2 + 1 + 1


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("workers", [1, 3])
def test_an_export_killed_twenty_times_at_random_ends_with_the_same_manifest(
    workers: int, tmp_path: Path
) -> None:
    chance = random.Random(workers)
    (tmp_path / "spec.json").write_text(json.dumps({"shard_rows": 2}))
    with stored(tmp_path, some_groups(40)) as store:
        url = str(store.engine.url)
        whole = export(store, "p", tmp_path / "whole", Spec(shard_rows=2))
    out = tmp_path / "exports" / "out"
    command = [sys.executable, "-m", "tracestore.cli.main", "export", "--json", "--db", url, "--project", "p"]
    command += ["--out", str(out), "--spec", str(tmp_path / "spec.json"), "--workers", str(workers)]
    began = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    takes_s = time.monotonic() - began
    kills = 0
    while True:
        if out.exists():
            assert read_manifest(out) == whole
            assert [path.name for path in out.parent.iterdir()] == ["out"]
            if kills >= 20:
                break
            subprocess.run(["rm", "-r", str(out)], check=True)
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            running.communicate(timeout=chance.uniform(0, takes_s) if kills < 20 else None)
        except subprocess.TimeoutExpired:
            running.kill()
            running.communicate()
            kills += 1
        else:
            assert running.returncode == 0
