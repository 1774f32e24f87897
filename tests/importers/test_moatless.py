from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_order_free,
    assert_perturbation,
    newest,
    read_data,
    read_fixtures,
)

DJANGO = "trees/a-antoniades__swe-search/tests/edit/data/django__django-11039.json"
ASKED = {"role": "user", "content": "fix it"}


def completion(text: str) -> dict[str, Any]:
    return {
        "model": "m",
        "input": [ASKED],
        "response": {
            "id": f"c-{text}",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}],
        },
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "completion_cost": 0.25},
    }


def action(text: str) -> dict[str, Any]:
    return {
        "request": {"action_name": text},
        "response": {"output": {"done": text}},
        "completion": completion(text),
    }


def state(number: int, parent: int | None, *actions: Any, **properties: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": "Plan",
        "previous_state_id": parent,
        "actions": list(actions),
        "properties": properties,
    }


def judged(value: float) -> dict[str, Any]:
    return {"completions": [completion(f"judge {value}")], "average_reward": value, "n_calls": 1}


SEARCH = {
    "initial_message": "issue",
    "current_transition_id": 3,
    "transitions": [
        state(0, None),
        state(1, 0, action("a")),
        state(
            2,
            1,
            action("b"),
            value_function_result=judged(75.0),
            visits=[{"source_state_id": 9, "value": 1.0}],
        ),
        state(3, 1, action("c"), action("retry"), value_function_result=judged(80.0)),
        state(4, 2),
    ],
    "info": {"trace_id": "t", "instance_id": "i", "resolved": True},
}


def test_every_completion_of_an_action_is_a_call_that_continues_the_state_above() -> None:
    imported = read_data(as_lines(SEARCH))
    calls = {call.id: call for call in imported.of("call") if call.purpose is None}
    assert {name: call.parent_call_id for name, call in calls.items()} == {
        "t/1/0": None,
        "t/2/0": "t/1/0",
        "t/3/0": "t/1/0",
        "t/3/1": "t/3/0",
    }
    first = calls["t/1/0"]
    assert json.loads(first.request) == {"messages": [ASKED]}
    assert (first.usage.prompt_tokens, first.usage.cost_usd, first.provider_id) == (5, 0.25, "c-a")
    (use,) = (use for use in imported.of("tool_call") if use.call_id == "t/1/0")
    assert (use.name, json.loads(use.result)) == ("a", {"output": {"done": "a"}})
    assert_builds(imported)


def test_judge_completions_are_another_agents_calls_and_value_the_action_before_the_state() -> None:
    imported = read_data(as_lines(SEARCH))
    judge = next(agent for agent in imported.of("agent") if agent.role == "judge")
    assert judge.trainable is False
    judges = [call.id for call in imported.of("call") if call.agent_id == judge.id]
    assert judges == ["t/2/value/0", "t/3/value/0"]
    values = {one.value: one.target.call_id for one in imported.of("reward") if one.name == "value"}
    assert values == {75.0: "t/1/0", 80.0: "t/1/0"}
    assert [one.value for one in imported.of("reward") if one.name == "resolved"] == [1.0]


def test_states_with_one_parent_are_candidates_and_the_way_to_the_current_one_is_selected() -> None:
    imported = read_data(as_lines(SEARCH))
    (candidates,) = imported.of("candidate_set")
    assert [member.call_id for member in candidates.members] == ["t/2/0", "t/3/0"]
    (selection,) = imported.of("candidate_selection")
    assert (selection.selected, selection.selector) == ((1,), "search")
    without = {name: one for name, one in SEARCH.items() if name != "current_transition_id"}
    assert read_data(as_lines(without)).of("candidate_selection") == []


def test_a_state_whose_parent_is_absent_is_a_root_with_a_gap_and_its_values_are_kept() -> None:
    orphan = state(76, 75, action("x"), visits=[{"source_state_id": 70, "value": 60.0}])
    search = {"transitions": [*SEARCH["transitions"], orphan], "current_transition_id": 76}  # type: ignore[misc]
    imported = read_data(as_lines(search))
    (gap,) = imported.of("gap")
    assert (gap.cause, gap.detail) == ("missing_parent", "state 76: its parent 75 is not in the file")
    call = next(call for call in imported.of("call") if call.id.endswith("/76/0"))
    assert json.loads(call.meta)["moatless"]["state"]["properties"]["visits"][0]["value"] == 60.0
    assert_builds(imported)


def test_a_search_that_went_on_replaces_what_was_read_before() -> None:
    early = SEARCH | {"transitions": SEARCH["transitions"][:3], "current_transition_id": 2}  # type: ignore[index]
    before, after = read_data(as_lines(early)), read_data(as_lines(SEARCH))
    merged = newest([*before.events, *after.events])
    assert list(merged.values()) == after.events
    assert_order_free(as_lines(SEARCH), as_lines(SEARCH | {"info": {"trace_id": "u"}}))


@pytest.mark.parametrize(
    "value",
    [
        {"transitions": [{"id": "x", "name": "y"}]},
        {"transitions": [state(0, 0), state(0, 0)]},
        {"transitions": [state(0, 1), state(1, 0, action("a"))], "current_transition_id": 1},
        {
            "transitions": [
                state(0, None, "x", {"completion": 3}, {"completion": {"input": "q", "response": [1]}})
            ]
        },
        {"transitions": [state(0, None, value_function_result=[1], visits="x")], "info": [1]},
    ],
)
def test_a_field_of_another_type_or_a_circle_never_ends_the_import(value: Any) -> None:
    imported = read_data(as_lines(SEARCH, value))
    assert len(imported.of("episode")) + len(imported.notes.refused) == 2


def test_no_leaf_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(SEARCH), limit=40)


def test_the_django_search_has_five_candidates_of_which_one_was_kept() -> None:
    imported = read_fixtures(DJANGO)
    assert imported.report["candidates"] == {"sampled": 5, "selected": 1, "not_selected": 4}
    assert sum(call.purpose == "judge" for call in imported.of("call")) == 7
