from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import as_lines, assert_builds, assert_order_free, assert_perturbation, read_data


def step(
    place: int, before: list[str], thoughts: list[str], values: list[float], kept: list[str]
) -> dict[str, Any]:
    return {
        "step": place,
        "x": "4 5",
        "ys": before,
        "new_ys": thoughts,
        "values": values,
        "select_new_ys": kept,
    }


PUZZLE = {
    "idx": 900,
    "steps": [
        step(0, [""], ["a\n", "b\n", "a\n"], [3.0, 1.0, 0.0], ["a\n", "b\n"]),
        step(1, ["a\n", "b\n"], ["a\nx", "b\ny", "b\nz"], [0.5, 2.0, 2.0], ["b\ny", "b\nz"]),
    ],
    "ys": ["b\ny", "b\nz"],
    "infos": [{"r": 1}, {"r": 0}],
    "usage_so_far": {"cost": 1.5},
}


def test_a_thought_continues_the_thought_that_it_grew_from() -> None:
    imported = read_data(as_lines([PUZZLE]))
    (episode,) = imported.of("episode")
    calls = {call.id.removeprefix(f"{episode.id}/"): call for call in imported.of("call")}
    assert sorted(calls) == ["0/0", "1/0", "1/1"]
    assert [json.loads(one.message)["content"] for one in calls["0/0"].completions] == ["a\n", "b\n", "a\n"]
    grown = calls["1/1"]
    assert (grown.parent_call_id, grown.parent_completion) == (calls["0/0"].id, 1)
    assert [json.loads(one.message)["content"] for one in grown.completions] == ["y", "z"]
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]
    assert_builds(imported)


def test_kept_and_rejected_thoughts_are_told_and_equal_ones_stay_several() -> None:
    imported = read_data(as_lines([PUZZLE]))
    first, second = imported.of("candidate_set")
    assert [member.score for member in first.members] == [3.0, 1.0, 0.0]
    assert [one.selected for one in imported.of("candidate_selection")] == [(0, 1), (1, 2)]
    assert imported.report["candidates"] == {"sampled": 6, "selected": 4, "not_selected": 2}
    assert [(one.target.candidate_set_id, one.target.member, one.value) for one in imported.of("reward")] == [
        (second.id, 1, 1.0),
        (second.id, 2, 0.0),
    ]


@pytest.mark.parametrize(
    "puzzle",
    [
        3,
        {"steps": [step(0, [""], ["a"], [], ["a"])]},
        {"steps": [step(0, ["x"], ["a"], [1.0], ["a"])]},
        {"steps": [step(0, [""], ["a"], [1.0], ["b"])]},
        {"steps": [step(0, [3], ["a"], ["x"], [None])]},  # type: ignore[list-item]
    ],
)
def test_a_puzzle_of_another_shape_is_refused_and_the_others_are_read(puzzle: Any) -> None:
    imported = read_data(as_lines([PUZZLE, puzzle]))
    assert len(imported.of("episode")) == 1
    assert [problem.partition(": ")[0] for problem in imported.notes.refused] == ["file-0, line 1, puzzle 1"]


def test_a_step_without_thoughts_is_no_candidate_set() -> None:
    imported = read_data(as_lines([{"steps": [step(0, [""], [], [], [])], "ys": [], "infos": []}]))
    assert imported.of("candidate_set") == []
    assert len(imported.of("episode")) == 1


def test_a_list_that_has_grown_adds_its_new_puzzles_and_no_leaf_changes_without_a_trace() -> None:
    early, late = read_data(as_lines([PUZZLE])), read_data(as_lines([PUZZLE, PUZZLE]))
    assert {event.id for event in early.events} < {event.id for event in late.events}
    assert_order_free(as_lines([PUZZLE]), as_lines([PUZZLE | {"idx": 901}]))
    assert_perturbation(as_lines([PUZZLE]), limit=40)
