from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import as_lines, assert_builds, assert_order_free, assert_perturbation, read_data

CRAFT = {
    "problem": "craft a bed",
    "commands": "craft 1 bed",
    "trace": "mixed",
    "plans": [
        "craft a bed at depth 1, success: False",
        "['fetch wool', 'craft'] at depth 2 and logic AND",
        "fetch wool at depth 2, success: False",
        "['shear'] at depth 3 and logic OR",
        "shear at depth 3, success: True",
        "craft at depth 2, success: True",
        "odd line",
    ],
    "reward": 1,
}
ALONE = {
    "problem": "get wool",
    "trace": " think: look\nOK.\n> get 1 wool\nGot 1 wool\n> done",
    "plans": ["get wool at depth 1, success: True"],
    "reward": 0,
}
SHOP = {"problem": "buy", "score": 0.5, "success": False, "action_history": ["search[x]", "click[y]"]}
RESULTS = {"env_0": CRAFT, "env_1": ALONE, "fixed_0": SHOP, "overall": {"rate": 0.5}}


def of(imported: Any, task: str, kind: str) -> list[Any]:
    (episode,) = (one for one in imported.of("episode") if one.task_id == task)
    return [event for event in imported.of(kind) if event.episode_id == episode.id]


def test_executors_are_agents_below_the_one_whose_task_was_decomposed() -> None:
    imported = read_data(as_lines(RESULTS))
    agents = {json.loads(agent.scope_prompt): agent for agent in of(imported, "env_0", "agent")}
    parents = {agent.id: task for task, agent in agents.items()}
    assert {
        task: (agent.status, parents.get(agent.parent_agent_id), agent.depth)
        for task, agent in agents.items()
    } == {
        "craft a bed": ("failed", None, 0),
        "fetch wool": ("failed", "craft a bed", 1),
        "shear": ("ok", "fetch wool", 2),
        "craft": ("ok", "craft a bed", 1),
    }
    assert json.loads(agents["fetch wool"].meta)["adapt"] == {
        "plan": "['shear']",
        "plan_depth": 3,
        "logic": "OR",
    }
    (episode,) = (one for one in imported.of("episode") if one.task_id == "env_0")
    assert json.loads(episode.meta)["adapt"] == {
        "commands": "craft 1 bed",
        "trace": "mixed",
        "plans": ["odd line"],
    }
    assert of(imported, "env_0", "call") == []
    assert_builds(imported)


def test_a_lone_executors_transcript_is_its_calls() -> None:
    calls = of(read_data(as_lines(RESULTS)), "env_1", "call")
    assert [json.loads(call.completions[0].message) for call in calls] == [
        " think: look",
        "get 1 wool",
        "done",
    ]
    assert [call.request and json.loads(call.request)["prompt"] for call in calls] == [
        None,
        "OK.",
        "Got 1 wool",
    ]


def test_actions_are_calls_whose_prompts_are_missing() -> None:
    imported = read_data(as_lines(RESULTS))
    calls = of(imported, "fixed_0", "call")
    assert [json.loads(call.completions[0].message) for call in calls] == SHOP["action_history"]
    assert [(one.name, one.value) for one in imported.of("reward") if one.name == "score"] == [("score", 0.5)]
    assert [one.status for one in imported.of("episode") if one.task_id == "fixed_0"] == ["failed"]
    assert {gap.cause for gap in imported.of("gap")} == {"missing_prompt"}
    assert imported.notes.not_understood["adapt: totals"].count == 1


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"problem": None, "plans": "x", "trace": 3, "reward": "y"},
        {"problem": 1, "action_history": {}, "score": None},
    ],
)
def test_a_result_of_another_shape_never_ends_the_import(value: Any) -> None:
    imported = read_data(as_lines(RESULTS | {"odd": value}))
    assert len(imported.of("episode")) >= 3


def test_no_leaf_changes_without_a_trace_and_order_does_not_matter() -> None:
    assert_perturbation(as_lines(RESULTS), limit=40)
    assert_order_free(as_lines(RESULTS), as_lines({"other": SHOP}))
