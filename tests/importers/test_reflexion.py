from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    read_data,
)


def task(implementations: list[Any], reflections: list[Any], **fields: Any) -> dict[str, Any]:
    return {
        "name": "HumanEval_0",
        "prompt": "def f():",
        "entry_point": "f",
        "test": "check(f)",
        "implementations": implementations,
        "reflections": reflections,
        "test_feedback": [f"tested {text}" for text in implementations],
        "is_solved": True,
        "solution": implementations[-1] if implementations else None,
        "acc": 1.0,
        **fields,
    }


def test_attempts_and_reflections_alternate_and_attempts_have_their_tests() -> None:
    imported = read_data(as_lines(task(["a", "b"], ["try b"])))
    calls = sorted(imported.of("call"), key=lambda call: call.ordinal)
    assert [(call.purpose, json.loads(call.completions[0].message)["content"]) for call in calls] == [
        ("act", "a"),
        ("reflect", "try b"),
        ("act", "b"),
    ]
    assert {use.call_id: json.loads(use.result) for use in imported.of("tool_call")} == {
        calls[0].id: "tested a",
        calls[2].id: "tested b",
    }
    (episode,) = imported.of("episode")
    assert (episode.task_id, episode.status, json.loads(episode.task)) == ("HumanEval_0", "ok", "def f():")
    assert [(one.name, one.value) for one in imported.of("reward")] == [("is_solved", 1.0)]
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]
    assert_builds(imported)


def test_several_passes_leave_the_order_unknown() -> None:
    imported = read_data(as_lines(task(["a", "b", "c"], ["x"])))
    assert {call.ordinal for call in imported.of("call")} == {None}
    assert "unknown_order" in {gap.cause for gap in imported.of("gap")}
    assert imported.of("tool_call") == []


def test_a_trial_keeps_its_memory_and_has_no_actions() -> None:
    trials = [
        {"name": "env_0", "memory": ["I looped"], "is_success": False},
        {"name": "env_1", "memory": [], "is_success": True, "skip": False},
    ]
    imported = read_data(as_lines(trials))
    assert [call.purpose for call in imported.of("call")] == ["reflect"]
    assert {one.task_id: one.status for one in imported.of("episode")} == {"env_0": "failed", "env_1": "ok"}
    assert {gap.cause for gap in imported.of("gap")} == {"no_calls"}


@pytest.mark.parametrize("value", [3, task([3, {}], [None], test_feedback="x", name=3, is_solved="yes"), [1]])
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    assert len(read_data(as_lines(task(["a"], []), value)).of("episode")) >= 1


def test_no_leaf_changes_without_a_trace_and_files_may_grow() -> None:
    lines = as_lines(task(["a", "b"], ["x"]), task(["a", "b"], ["x"]))
    assert_perturbation(lines, limit=40)
    assert_grows(lines.splitlines())
    assert_order_free(lines, as_lines(task(["c"], [])))
