"""Crafting by recipes, alone and by delegating, as the harness records it and the export cuts it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_traces.rao.crafting import MADE, MOST_DEPTH, RAW, VERBS, Action, Task, Workshop, read, task
from sample_traces.rao.harness import MOST_STEPS, play
from tests.exporters.planned import planned, reasons
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import episodes_of, graphs_of, row_of, scripted_events
from tracestore.shards.row import Row
from tracestore.train.credit import counted

client = pytest.fixture(kept)
HORN = Task("horn", {"horn": ("bed", "glass"), "bed": ("wood", "gold"), "glass": ("gold", "clay")})


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("rao"))


# --- The environment ----------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), depth=st.integers(1, MOST_DEPTH))
def test_a_task_is_as_deep_as_it_was_asked_for_and_can_be_done(seed: int, depth: int) -> None:
    made = task(random.Random(seed), depth=depth)
    assert made.depth() == depth
    assert made == task(random.Random(seed), depth=depth)
    parts = Counter(part for recipe in made.recipes.values() for part in recipe)
    # What is made is used once, and made of raw items in the end.
    assert {part: count for part, count in parts.items() if part not in RAW} == dict.fromkeys(
        made.recipes.keys() - {made.target}, 1
    )
    workshop = Workshop(made, made.target)
    assert made.recipes.keys() <= set(MADE)
    assert finish(workshop, made.target) == "got it"
    assert workshop.is_done
    assert +workshop.held == Counter([made.target])


def finish(workshop: Workshop, item: str) -> str:
    """The workshop's answer to the craft that everything else leads to."""
    # Raw items last: what lies below would use them up.
    for part in sorted(workshop.missing(item), key=RAW.__contains__):
        if part in RAW:
            assert workshop.act(Action("gather", (part,))) == f"got {part}"
        else:
            assert finish(workshop, part) == f"got {part}"
    return workshop.act(Action("craft", ("it" if item == workshop.target else item,)))


def test_no_task_is_deeper_than_the_environment_goes() -> None:
    with pytest.raises(ValueError, match="depth 11: choose 1 to 10"):
        task(random.Random(0), depth=MOST_DEPTH + 1)


def test_a_workshop_says_what_it_gave_and_what_it_did_not() -> None:
    workshop = Workshop(HORN, "horn")
    assert workshop.order == "make it from bed glass"
    assert workshop.act(Action("craft", ("it",))) == "no it"
    assert workshop.act(Action("look", ("bed",))) == "bed from wood gold"
    assert workshop.act(Action("look", ("wood",))) == "no wood"
    assert workshop.act(Action("gather", ("wood", "bed"))) == "got wood no bed"
    assert workshop.act(Action("craft", ("bed",))) == "no bed"
    assert workshop.act(Action("gather", ("gold",))) == "got gold"
    assert workshop.act(Action("craft", ("bed",))) == "got bed"
    assert +workshop.held == Counter(["bed"])
    assert workshop.receive(("glass", "salt"), (True, False)) == "got glass no salt"
    assert workshop.act(Action("craft", ("it",))) == "got it"


def test_only_an_item_of_the_task_that_is_not_ones_own_can_be_delegated() -> None:
    workshop = Workshop(HORN, "bed")
    assert [workshop.may_delegate(item) for item in ("glass", "horn", "bed", "wood", "cake", "it")] == [
        *(True, True, False, False, False, False)
    ]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("gather wood gold", Action("gather", ("wood", "gold"))),
        ("  craft   it ", Action("craft", ("it",))),
        *(
            (text, None)
            for text in ("", "craft", "craft bed glass", "gather wood gold clay", "buy bed", "look up")
        ),
    ],
)
def test_an_answer_is_a_verb_and_its_items_or_no_action(text: str, action: Action | None) -> None:
    assert read(text) == action


# --- What is recorded ---------------------------------------------------------------------------------------


def test_each_agent_is_a_sample_and_hangs_from_the_call_that_started_it(row: Row) -> None:
    assert Counter(sample.cause for sample in row.samples) == {"root": 4, "subagent_root": 5}
    assert len({sample.agent for sample in row.samples}) == len(row.samples) == 9
    graph = graphs_of(scripted_events("rao"))[1]
    started = {agent.id: agent.spawned_by_call_id for agent in graph.agents.values()}
    assert started == {
        "rao-1/main": None,
        "rao-1/main/bed": "rao-1/main/0",
        "rao-1/main/glass": "rao-1/main/0",
        "rao-1/main/bed/book": "rao-1/main/bed/0",
    }


def test_an_agent_has_the_score_of_its_own_workshop_and_the_root_its_reward() -> None:
    for graph in graphs_of(scripted_events("rao")):
        for agent in graph.agents.values():
            made = agent.return_message is not None
            assert agent.status == ("ok" if made else "failed")
            assert agent.score == (None if agent.depth == 0 else float(made))


def test_answers_train_and_what_workshops_and_other_agents_say_does_not(row: Row) -> None:
    said = reasons(planned(*episodes_of(scripted_events("rao"))))
    assert {reason for call in said.values() for reason in call} == {"trained"}
    graphs = graphs_of(scripted_events("rao"))
    sampled = sum(len(one.token_ids or ()) for graph in graphs for one in graph.completions.values())
    assert row.num_trained == sampled


def test_depths_are_counted_by_trajectory_over_the_batch(row: Row) -> None:
    assert counted([row], rule="rao") == {0: 4, 1: 4, 2: 1}
    assert counted([row, row], rule="rao") == {0: 8, 1: 8, 2: 2}


# --- Whatever is said ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "?", "delegate", "craft it and sell it", "gather wood..."])
def test_a_model_that_takes_no_step_fails(client: Kept, text: str) -> None:
    assert play(client.episode("e"), Repeating(text), 0) == 0.0
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status in ("failed", "budget_exhausted")


@pytest.mark.parametrize("verb", VERBS)
def test_a_model_that_repeats_one_step_spends_its_budget(client: Kept, verb: str) -> None:
    item = "wood" if verb == "gather" else "glass"
    assert play(client.episode("e"), Repeating(f"{verb} {item}"), 0) == 0.0
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status == "budget_exhausted"
    roots = [call for call in graph.calls.values() if call.agent_id == "e/main"]
    assert len(roots) == MOST_STEPS


def test_an_item_that_was_delegated_again_is_made_by_another_agent(client: Kept) -> None:
    script = {
        "main": ["delegate glass", "delegate glass", *[""] * 2],
        "main/glass": [""] * 2,
        "main/glass-2": ["gather gold clay", "craft it"],
    }
    assert play(client.episode("e"), Scripted(script=script), 0) == 0.0
    [graph] = graphs_of(client.events)
    scores = {agent.id: agent.score for agent in graph.agents.values()}
    assert scores == {"e/main": None, "e/main/glass": 0.0, "e/main/glass-2": 1.0}
