"""Training killed with SIGKILL and gone on with has the losses and weights of a run that nobody killed."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.test_loop import group, recorded
from tracestore.cli.main import main
from tracestore.train import checkpoint

FORK = multiprocessing.get_context("fork")
"""Each run is a process of its own, in which the libraries are loaded already."""
CLOCK = ("seconds", "tokens_per_s")
STEPS = 150
FLAGS = (
    *("--lr", "0.003", "--schedule", "cosine", "--warmup", "2", "--weight-decay", "0.1"),
    *("--groups-per-step", "1", "--seed", "5", "--checkpoint-every", "1", "--run", "r", "--json"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an export and a model."""
    model = tiny("llama", attention="sdpa")
    export_of(recorded(model, [group(i) for i in range(5)]), tmp_path / "export")
    model.save_pretrained(tmp_path / "model")
    return tmp_path


def begun(folder: Path, out: str, *, steps: int) -> Any:
    """A process that trains, from the checkpoint if there is one."""
    has_checkpoint = (folder / out / "checkpoint").exists() or (folder / out / ".checkpoint.old").exists()
    where = ("--resume",) if has_checkpoint else ("--model", str(folder / "model"))
    argv = [
        "train",
        str(folder / "export"),
        "--out",
        str(folder / out),
        "--steps",
        str(steps),
        *FLAGS,
        *where,
    ]
    process = FORK.Process(target=lambda: os._exit(main(argv)))
    process.start()
    return process


def said(folder: Path, out: str) -> list[dict[str, Any]]:
    """The metrics of each step, but for how long it took."""
    lines = map(json.loads, (folder / out / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def weights(folder: Path, out: str) -> bytes:
    return (folder / out / "checkpoint" / "model.safetensors").read_bytes()


def whole_run(folder: Path, *, steps: int) -> float:
    """A run that nobody kills; returns the seconds it takes."""
    began = time.monotonic()
    process = begun(folder, "whole", steps=steps)
    process.join()
    assert process.exitcode == 0
    assert len(said(folder, "whole")) == steps
    return time.monotonic() - began


def assert_as_if_never_killed(folder: Path) -> None:
    assert said(folder, "killed") == said(folder, "whole")
    assert weights(folder, "killed") == weights(folder, "whole")
    assert sorted(path.name for path in (folder / "killed").iterdir()) == ["checkpoint", "metrics.jsonl"]


def test_a_run_killed_between_two_checkpoints_loses_neither(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole_run(folder, steps=4)
    replace, left = os.replace, 4

    def dies(source: Path, target: Path) -> None:
        """The first checkpoint takes one rename, each later one two: this is between those of the third."""
        nonlocal left
        replace(source, target)
        left -= "checkpoint" in Path(target).name
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", dies)
        process = begun(folder, "killed", steps=4)
        process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(said(folder, "killed")) == 3
    assert not (folder / "killed" / "checkpoint").exists()
    process = begun(folder, "killed", steps=4)
    process.join()
    assert process.exitcode == 0
    assert_as_if_never_killed(folder)


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_a_run_killed_twenty_times_at_random_has_the_same_losses_and_weights(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(11)
    takes_s = whole_run(folder, steps=STEPS)
    reached: list[int] = []
    while True:
        process = begun(folder, "killed", steps=STEPS)
        is_last = len(reached) >= 20
        process.join(None if is_last else chance.uniform(0, takes_s / 8))
        if process.exitcode is None:
            process.kill()
            process.join()
            metrics = folder / "killed" / "metrics.jsonl"
            reached.append(len(metrics.read_text().splitlines()) if metrics.exists() else 0)
            continue
        assert process.exitcode == 0
        assert_as_if_never_killed(folder)
        if is_last:
            break
        shutil.rmtree(folder / "killed")
    assert len(set(reached)) > 5
    with capsys.disabled():
        sys.stdout.write(
            f"\n{len(reached)} kills of a run of {STEPS} steps ({takes_s:.0f} s), at {reached}\n"
        )
