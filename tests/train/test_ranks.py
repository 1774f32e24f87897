from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.train.exports import export_of
from tests.train.models import tiny
from tests.train.test_loop import group, recorded
from tests.train.test_objectives import pairs_of
from tests.train.two_ranks import (
    ASKED,
    FOLLOW,
    SETTINGS,
    TIED,
    Asked,
    all_laws,
    follower,
    found_by,
    logs,
    long_group,
    said,
    some_laws,
)
from tracestore.shards.read import open_export
from tracestore.train.checkpoint import checkpoint_in
from tracestore.train.loop import train
from tracestore.train.model import load_model
from tracestore.train.ranks import ALONE


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        port: int = asked.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    rows = recorded(tiny("llama", attention="sdpa", tie_word_embeddings=True), [group(i) for i in range(5)])
    export_of(rows, folder / "export")
    export_of([group(0), *(long_group(i) for i in range(1, 5))], folder / "long")
    export_of([pairs_of(i) for i in range(4)], folder / "pairs")
    export_of(
        recorded(tiny("llama"), [group(i, rewards=[1.0, 0.0, 0.5]) for i in range(3)]), folder / "timed"
    )
    made = group(0)
    export_of([replace(made, logprobs=np.where(made.has_logprob, -1e4, 0.0))], folder / "broken")
    logs(folder)
    return folder


def of_two_processes(folder: Path, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """What each of two ranks found."""
    # Forked, because a fresh interpreter imports torch and transformers for longer than all this computes.
    forking, port = multiprocessing.get_context("fork"), free_port()
    processes = [forking.Process(target=found_by, args=(rank, port, folder, asked)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(timeout=200)
        assert [process.exitcode for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"found-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def by_rank(folder: Path) -> list[dict[str, Any]]:
    return of_two_processes(folder, ASKED)


def away(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """||a - b|| / ||b|| over all weights."""
    assert a.keys() == b.keys()
    difference = sum(float((a[name].double() - b[name].double()).square().sum()) for name in b)
    return float(np.sqrt(difference / sum(float(b[name].double().square().sum()) for name in b)))


def assert_equal_runs(two: dict[str, Any], one: dict[str, Any]) -> None:
    assert two.keys() == one.keys()
    for name in one:
        assert two[name]["steps"] == one[name]["steps"], name
        ours, theirs = (np.asarray(of[name]["floats"], dtype=np.float64) for of in (two, one))
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7, nan_ok=True), name
        assert two[name]["advantages"] == pytest.approx(one[name]["advantages"], rel=1e-9, abs=1e-9), name
        assert away(two[name]["weights"], one[name]["weights"]) <= 1e-6, name


def test_ranks_and_micro_batches_change_no_gradient(folder: Path, by_rank: list[dict[str, Any]]) -> None:
    alone = some_laws(folder, ALONE)
    for found in by_rank:
        assert_equal_runs(found["some_laws"], alone)
    # The long path's micro-batches are rows, the others trees; a rank that had none of them knew it too.
    assert alone["some trees"]["rows"]
    assert any(found["some_laws"]["some trees"]["rows"] for found in by_rank)
    assert away(alone["layers again"]["weights"], alone["small"]["weights"]) == 0.0


@pytest.mark.soak
def test_ranks_change_no_gradient_of_any_model(folder: Path) -> None:
    alone = all_laws(folder, ALONE)
    for found in of_two_processes(folder, [all_laws]):
        assert_equal_runs(found["all_laws"], alone)
    assert away(alone["small"]["weights"], alone["whole"]["weights"]) <= 1e-6
    assert alone["whole"]["rows"] == {}
    assert alone["no trees"]["rows"]
    assert {name.split(".")[-3] for name in alone["adapters"]["weights"] if "lora" in name} == {
        "lora_A",
        "lora_B",
    }


def test_a_stopped_run_goes_on_bit_for_bit_and_on_another_number_of_ranks_up_to_rounding(
    folder: Path, by_rank: list[dict[str, Any]]
) -> None:
    found = by_rank[0]["stopped_runs"]
    assert found["first"]["steps"] == 2
    assert found["first"]["ranks"] == 2
    assert found["rest"]["floats"] == found["whole"]["floats"][2:]
    assert away(found["rest"]["weights"], found["whole"]["weights"]) == 0.0
    assert found["whole"]["run"] == by_rank[1]["stopped_runs"]["whole"]["run"]
    model = load_model(
        checkpoint_in(folder / "halves").folder
    )  # one process goes on from the checkpoint of two
    export = open_export(folder / "export")
    five = replace(SETTINGS, steps=5)
    rest = train(model, export, settings=five, resume=checkpoint_in(folder / "halves"))
    straight = tiny("llama", **TIED)
    whole = train(straight, export, settings=five)
    assert [m.groups for m in rest.metrics] == [whole.metrics[4].groups]
    assert rest.metrics[0].loss == pytest.approx(whole.metrics[4].loss, rel=1e-4, abs=1e-6)
    assert away(said(rest, model)["weights"], said(whole, straight)["weights"]) <= 1e-5


def test_the_first_rank_alone_tells_what_was_trained_and_writes(by_rank: list[dict[str, Any]]) -> None:
    # whole: 4 steps, halves: 2 + 2; steps take 2, 2, 1 and 2 groups of 4 completions
    assert by_rank[0]["stopped_runs"]["heard"] == 2 * (2 + 2 + 1 + 2) * 4
    assert by_rank[1]["stopped_runs"]["heard"] == 0


def test_ranks_follow_what_the_first_one_saw(folder: Path, by_rank: list[dict[str, Any]]) -> None:
    alone = follower(folder, ALONE)
    for found in by_rank:
        assert found["follower"]["steps"] == alone["steps"]
        assert found["follower"]["advantages"] == alone["advantages"]
        assert away(found["follower"]["weights"], alone["weights"]) <= 1e-5
    assert FOLLOW.reading.follow
    assert len({name for names, *_ in alone["steps"] for name in names}) == 4


def test_ranks_that_read_other_groups_stop_before_the_first_gradient(by_rank: list[dict[str, Any]]) -> None:
    for found in by_rank:
        assert found["disagreement"].startswith("RanksDisagree")
        assert "groups=[['group-" in found["disagreement"]


def test_a_step_that_is_no_finite_number_on_one_rank_stops_all(by_rank: list[dict[str, Any]]) -> None:
    assert [found["no_finite_number"] for found in by_rank] == ["NonFiniteStep", "NonFiniteStep"]
