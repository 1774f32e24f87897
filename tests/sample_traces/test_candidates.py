"""Four plans and who keeps one, as the harness records and the export cuts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sample_traces.candidates.harness import plan
from tests.exporters.planned import reasons
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, row_of, scripted_events
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context

client = pytest.fixture(kept)


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("candidates"))


def test_the_choice_of_the_policy_trains_and_the_judges_does_not(row: Row) -> None:
    said = reasons(row)
    assert set(said.pop("candidates-2/judge/0")) == {"agent_not_trainable"}
    assert set(said["candidates-1/chooser/0"]) == {"trained"}
    assert {reason for some in said.values() for reason in some} == {"trained"}


def test_what_follows_continues_the_plan_that_was_kept() -> None:
    kept_plans = {}
    for graph in graphs_of(scripted_events("candidates")):
        [selection] = graph.candidate_selections.values()
        [place] = selection.selected
        [next_call] = [call for call, link in graph.links.items() if link.parent is not None]
        tries = next_call.rsplit("/", 1)[0] + "/0"
        assert graph.links[next_call].parent == (tries, place)
        kept_plans[selection.selector] = (place, selection.selector_call_id)
    assert kept_plans == {
        "search": (0, None),
        "policy": (1, "candidates-1/chooser/0"),
        "judge": (3, "candidates-2/judge/0"),
    }


@pytest.mark.parametrize(
    ("treatment", "given"),
    [("shared", [0.4] * 4), ("negative", [0.4, -0.1, -0.2, -0.1]), ("runner_up", [0.5, 0.0, 0.0, 0.0])],
)
def test_a_treatment_is_of_the_candidates_alone(row: Row, treatment: str, given: list[float]) -> None:
    sets = tuple(
        one if one.candidate_set_id.startswith("candidates-1") else replace(one, treatment=treatment)
        for one in row.candidate_sets
    )
    found = advantages(replace(row, candidate_sets=sets), rule="shared", context=Context()).values
    of = {
        (row.calls[row.completions[place].call].call_id, row.completions[place].index): value
        for (_, place), value in found.items()
    }
    # .9 .4 .3 .4: mean .5, best other .4; the episodes' rewards .9 .4 .2: mean .5
    assert [of["candidates-0/main/0", index] for index in range(4)] == pytest.approx(given)
    assert of["candidates-0/main/1", 0] == pytest.approx(0.4)
    assert [of["candidates-1/main/0", index] for index in range(4)] == pytest.approx([-0.1] * 4)
    assert of["candidates-1/chooser/0", 0] == pytest.approx(-0.1)


@pytest.mark.parametrize("text", ["", "9", "Plan 2", "1 2 3 4", "bakery, bank, post, park", "bank..."])
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_says_anything_ends_an_episode(client: Kept, text: str, seed: int) -> None:
    reward = plan(client.episode("e"), Repeating(text), seed)
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    [selection] = graph.candidate_selections.values()
    assert graph.episode.status == ("ok" if selection.selected else "failed")
    assert 0.0 <= reward <= 1.0


def test_a_walk_loses_a_tenth_for_each_step_more_than_the_shortest(client: Kept) -> None:
    said = ["park, bakery, post, bank", "bank", "bakery, bank, post, park", "park, post, bank, bakery"]
    # Kept: 0 to 1 to 2 to 7 to 8, 8 steps. Walked: bank, bakery, post, park: 2 + 1 + 6 + 1 = 10.
    assert plan(client.episode("e"), Scripted(*said, "bank, bakery, post, park"), 0) == 0.8
    [graph] = graphs_of(client.events)
    [drafts] = graph.candidate_sets.values()
    # 8 + 7 + 6 + 5 = 26 steps; a stop is missing; 8; 8 + 1 + 5 + 1 = 15
    assert [member.score for member in drafts.members] == [0.0, 0.0, 1.0, 0.3]
