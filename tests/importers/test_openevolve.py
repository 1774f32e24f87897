from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import assert_builds, assert_order_free, assert_perturbation, read_data

PROGRAM = {
    "id": "p2",
    "code": "def f(): ...",
    "language": "python",
    "parent_id": "p1",
    "generation": 1,
    "iteration_found": 2,
    "timestamp": 1_767_790_991.5,
    "metrics": {"combined_score": 0.5, "passed": True, "why": "text"},
    "metadata": {"island": 0},
    "prompts": {"diff_user": {"system": "s", "user": "u", "responses": ["r1", "r2"], "extra": 1}},
}
BEST = {
    "id": "p2",
    "generation": 1,
    "iteration": 2,
    "parent_id": "p1",
    "metrics": {"combined_score": 0.5, "passed": True},
    "saved_at": 1_767_790_999.5,
}
CHECKPOINT = {"islands": [["p1", "p2"]], "archive": ["p1"], "best_program_id": "p2", "last_iteration": 100}


def file(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def test_a_programs_prompt_is_the_call_that_wrote_it_and_its_metrics_are_rewards() -> None:
    imported = read_data(file(PROGRAM))
    (call,) = imported.of("call")
    assert json.loads(call.request)["messages"] == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    assert [json.loads(one.message)["content"] for one in call.completions] == ["r1", "r2"]
    assert {(one.name, one.value, one.weight) for one in imported.of("reward")} == {
        ("combined_score", 0.5, None),
        ("passed", 1.0, 0.0),
    }
    end = next(one for one in imported.of("episode") if one.phase == "end")
    meta = json.loads(end.meta)["openevolve"]
    assert (meta["parent_id"], meta["generation"], meta["metrics"]) == ("p1", 1, {"why": "text"})
    assert end.ended_at == 1_767_790_991_500_000_000
    assert_builds(imported)


def test_a_program_without_prompts_has_no_calls_and_says_so() -> None:
    imported = read_data(file(PROGRAM | {"prompts": None}))
    assert imported.of("call") == []
    assert [gap.cause for gap in imported.of("gap")] == ["no_calls"]


def test_files_that_name_one_program_agree_and_what_names_none_is_noted() -> None:
    imported = read_data(
        file(PROGRAM), file(BEST), file(CHECKPOINT), file({"metrics": {"x": 1}, "artifacts": {}})
    )
    assert {one.id for one in imported.of("episode")} == {"p2"}
    assert len(imported.of("reward")) == 2
    assert sorted(imported.notes.not_understood) == [
        "openevolve: best program of a checkpoint",
        "openevolve: checkpoint",
        "openevolve: evaluation",
        "openevolve: record of the best program",
    ]
    assert_order_free(file(PROGRAM), file(BEST), file(CHECKPOINT))


@pytest.mark.parametrize(
    "value",
    [
        PROGRAM | {"id": 3},
        PROGRAM | {"metrics": [1], "prompts": {"a": 3}},
        PROGRAM | {"prompts": {"a": {"user": 3}}},
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    imported = read_data(file(value))
    assert imported.notes.refused or imported.of("episode")


def test_no_leaf_changes_without_a_trace() -> None:
    for value in (PROGRAM, BEST, CHECKPOINT):
        assert_perturbation(file(value), limit=50)
