"""Attempts apart and attempts of which one is kept, as the harness records and the export cuts them."""

from __future__ import annotations

import pytest

from sample_traces.best_of_n.harness import play
from tests.exporters.planned import key, planned, reasons
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import episodes_of, graphs_of, scripted_events
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore_exporters.spec import Spec

client = pytest.fixture(kept)


def rows(*, spec: Spec | None = None) -> list[Row]:
    """The attempts of a group, and those of one episode."""
    episodes = episodes_of(scripted_events("best_of_n"))
    return [planned(*episodes[:4], spec=spec), planned(*episodes[4:], spec=spec)]


def test_it_is_recorded_which_attempt_was_kept_by_whom_against_which_others() -> None:
    graph = graphs_of(scripted_events("best_of_n"))[4]
    [attempts] = graph.candidate_sets.values()
    [selection] = graph.candidate_selections.values()
    assert [member.agent_id for member in attempts.members] == [f"best_of_n-4/try{n}" for n in range(4)]
    assert selection.selected == (1,)
    assert (selection.selector, selection.selector_call_id) == ("judge", "best_of_n-4/judge/0")
    assert selection.scores is not None
    assert [one.score for one in selection.scores] == [0.3, 0.8, 0.5, 0.0]


def test_attempts_train_kept_or_not_and_the_judge_does_not() -> None:
    said = reasons(rows()[1])
    assert set(said.pop("best_of_n-4/judge/0")) == {"agent_not_trainable"}
    assert len(said) == 8
    assert {reason for some in said.values() for reason in some} == {"trained"}


def test_rejected_attempts_stay_out_where_they_are_excluded() -> None:
    said = reasons(rows(spec=Spec(candidates="exclude"))[1])
    trained = {call for call, some in said.items() if set(some) == {"trained"}}
    assert trained == {"best_of_n-4/try1/0", "best_of_n-4/try1/1"}


def test_the_best_of_two_credits_the_right_attempt_and_what_the_wrong_ones_would_have_added() -> None:
    found = advantages(rows()[0], rule="pkpo:k=2", context=Context()).values
    # right: 2/4; wrong: 2/4 * (1 - C(2, 1) / C(3, 1)) = 1/2 * 1/3
    assert sorted(set(found.values())) == pytest.approx([1 / 6, 1 / 2])


def test_against_the_runner_up_all_that_the_kept_attempt_sampled_gets_the_difference() -> None:
    row = rows(spec=Spec(candidates="runner_up"))[1]
    found = advantages(row, rule="shared", context=Context()).values
    of = {key(row, place)[0]: value for (_, place), value in found.items()}
    assert of["best_of_n-4/try1/0"] == of["best_of_n-4/try1/1"] == pytest.approx(0.8 - 0.5)
    assert {value for call, value in of.items() if "/try1/" not in call} == {0.0}


@pytest.mark.parametrize("text", ["", "102", "11 12 13 14", "1 2 3", "9..."])
@pytest.mark.parametrize("seed", [0, 4])
def test_a_model_that_says_anything_ends_an_episode(client: Kept, text: str, seed: int) -> None:
    assert play(client.episode("e"), Repeating(text), seed) in (0.0, 1.0)
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    kept_some = [bool(one.selected) for one in graph.candidate_selections.values()]
    assert graph.episode.status == ("failed" if kept_some == [False] else "ok")


def test_a_judge_may_keep_a_wrong_attempt(client: Kept) -> None:
    said = ["102", "102", "96", "96", "1", "2", "3", "4"]
    assert play(client.episode("e"), Scripted(*said, "2 9 1 1"), 4) == 0.0
    [graph] = graphs_of(client.events)
    right = [reward.value for reward in graph.rewards.values() if reward.name == "right"]
    assert right == [1.0, 0.0, 0.0, 0.0]
