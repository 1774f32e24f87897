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
    of_kind,
    read_data,
    read_fixtures,
    read_values,
)

GENERATION = "nemo_rl/nvidia-nemo__rl/tests/unit/models/generation/"
MERGED = f"{GENERATION}maybe_correct_merged_tokens_test_data.json"


def said(role: str, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"role": role, "content": f"{role}!", "token_ids": ids, **more}


def rollout(*log: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"message_log": list(log), **more}


LOG = (
    said("user", [1, 2]),
    said("assistant", [3, 4], generation_logprobs=[-0.5, -0.25]),
    said("environment", [5]),
    said("assistant", [6], generation_logprobs=[-1.0]),
    said("environment", [7]),
)


def test_what_stands_before_an_answer_is_its_prompt() -> None:
    events, _ = read_values(rollout(*LOG, total_reward=1.0, length=7))
    first, second = of_kind(events, "call")
    assert (first.prompt_token_ids.json(), first.completions[0].token_ids.json()) == ([1, 2], [3, 4])
    assert (second.prompt_token_ids.json(), second.completions[0].token_ids.json()) == ([1, 2, 3, 4, 5], [6])
    assert second.completions[0].logprobs.json() == [-1.0]
    assert json.loads(second.request) == {"messages": [{"role": "environment", "content": "environment!"}]}
    assert [(one.name, one.value) for one in of_kind(events, "reward")] == [("total_reward", 1.0)]
    meta = json.loads(of_kind(events, "episode")[0].meta)["nemo_rl"]
    assert meta == {
        "length": 7,
        "messages_after_the_last_answer": [{"role": "environment", "content": "environment!"}],
    }


def test_a_message_without_ids_makes_the_prompts_after_it_unknown() -> None:
    events, _ = read_values(rollout(LOG[0], said("assistant", []), said("user", [9]), LOG[3]))
    assert [call.prompt_token_ids for call in of_kind(events, "call")][1] is None
    assert [(gap.cause, gap.detail) for gap in of_kind(events, "gap")] == [("no_token_ids", "2 of 2 calls")]


def test_rollouts_stand_beside_their_tasks_in_the_same_order() -> None:
    tasks = [{"id": 0}, {"id": 1}, {"id": 2}]
    value = {"input": tasks, "expected_output": [rollout(*LOG), rollout(*LOG[:2])]}
    imported = read_data(as_lines(value))
    assert sorted(json.loads(one.task)["id"] for one in imported.of("episode")) == [0, 1]
    assert imported.notes.not_understood["nemo-rl: input beside rollouts"].count == 1
    assert_builds(imported)


def test_seen_ids_and_ids_made_from_text_again_are_two_calls_that_do_not_extend_each_other() -> None:
    imported = read_fixtures(MERGED)
    made_again, seen = (call.prompt_token_ids.json() for call in imported.of("call"))
    assert (len(seen), len(made_again)) == (7_819, 7_837)
    assert made_again[: len(seen)] != seen
    assert imported.report["sampled_tokens"] == 0
    assert_builds(imported)


def test_runs_of_trained_tokens_in_a_training_row_are_its_calls() -> None:
    row = {
        "content": ["q", "a"],
        "rewards": 0.5,
        "generation_logprobs": [0.0, -0.5, 0.0, -0.25, 0.0],
        "token_ids": [1, 2, 3, 4, 5],
        "token_loss_mask": [0, 1, 0, 1, 0],
    }
    events, _ = read_values(row, {**row, "token_loss_mask": None})
    first, second = of_kind(events, "call")
    assert (first.prompt_token_ids.json(), first.completions[0].logprobs.json()) == ([1], [-0.5])
    assert (second.prompt_token_ids.json(), second.completions[0].token_ids.json()) == ([1, 2, 3], [4])
    assert [gap.cause for gap in of_kind(events, "gap")] == ["no_calls"]
    assert len(of_kind(events, "reward")) == 2


@pytest.mark.parametrize(
    "value",
    [
        rollout(said("assistant", [-1])),
        rollout(said("assistant", [1], generation_logprobs=["x"])),
        rollout({"role": 3, "token_ids": "x"}),
        {"message_log": 3},
        {"content": 1, "rewards": "x", "generation_logprobs": 3, "token_ids": ["y"], "token_loss_mask": [1]},
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    events, notes = read_values(rollout(*LOG), value)
    assert len(of_kind(events, "episode")) + len(notes.refused) == 2


def test_no_leaf_changes_without_a_trace_and_order_does_not_matter() -> None:
    lines = [rollout(*LOG, total_reward=1.0), rollout(*LOG[:2]), rollout(*LOG[:2])]
    assert_perturbation(as_lines(*lines), limit=40)
    assert_order_free(as_lines(*lines), as_lines(rollout(*LOG)))
    assert_grows(as_lines(*lines).splitlines())
