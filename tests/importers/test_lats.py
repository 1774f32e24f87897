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

BENCHMARK = {"name": "HumanEval_0", "prompt": "def f():", "entry_point": "f", "test": "check(f)"}
AT_ONCE = BENCHMARK | {"acc": 1.0}


def searched(*reflections: Any, **fields: Any) -> dict[str, Any]:
    return {
        **BENCHMARK,
        "implementations": ["a", "z"],
        "reflections": [*reflections, "MCTS reflections"],
        "test_feedback": ["of a", "of the last node"],
        "solution": "z",
        "is_solved": True,
        "acc": 1.0,
        **fields,
    }


def test_the_first_and_the_chosen_attempt_are_candidates_and_the_rest_of_the_tree_is_missing() -> None:
    imported = read_data(as_lines(AT_ONCE, searched("x", "y")))
    assert imported.notes.rows == {"lats/task": 2}
    assert imported.report["candidates"] == {"sampled": 2, "selected": 1, "not_selected": 1}
    (selection,) = imported.of("candidate_selection")
    assert (selection.selected, selection.selector) == ((1,), "search")
    assert sorted(call.purpose for call in imported.of("call")) == ["act", "act", "reflect", "reflect"]
    assert {gap.cause for gap in imported.of("gap")} == {"unrecorded_candidates", "no_calls"}
    episode = next(one for one in imported.of("episode") if one.status == "ok")
    meta = json.loads(episode.meta)["lats"]
    assert (meta["test_feedback"], meta["reflections_end_with"]) == (
        ["of a", "of the last node"],
        "MCTS reflections",
    )
    assert_builds(imported)


@pytest.mark.parametrize("value", [3, searched(None, implementations=[3, {}], name=3, is_solved="yes"), [1]])
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    assert read_data(as_lines(searched("x"), value)).of("episode")


def test_no_leaf_changes_without_a_trace_and_files_may_grow() -> None:
    lines = as_lines(AT_ONCE, searched("x"), searched("x"))
    assert_perturbation(lines, limit=40)
    assert_grows(lines.splitlines())
    assert_order_free(lines, as_lines(searched("other")))
