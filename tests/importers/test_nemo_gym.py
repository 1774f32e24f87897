from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fixtures import COMPETITIVE, ROUND_TRIP
from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    of_kind,
    read_bytes,
    read_fixtures,
    read_values,
)

SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
USE = {"type": "function_call", "call_id": "f1", "name": "look", "arguments": '{"at": 1}'}
RESULT = {"type": "function_call_output", "call_id": "f1", "output": "seen"}
ASKED = {"type": "message", "role": "user", "content": "more"}


def tokens(prompt: list[int], sampled: list[int]) -> dict[str, Any]:
    return {
        "prompt_token_ids": prompt,
        "generation_token_ids": sampled,
        "generation_log_probs": [-0.5] * len(sampled),
    }


def rollout(*output: Any, usage: Any = None, **line: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": "q"}], "temperature": 0.7},
        "response": {"id": "r", "model": "m", "output": list(output), "usage": usage},
        "reward": 1.0,
        **line,
    }


def calls_of(*output: Any) -> list[Any]:
    return of_kind(read_values(rollout(*output))[0], "call")


def wrote(call: Any) -> list[Any]:
    items: list[Any] = json.loads(call.completions[0].message)
    return items


def test_an_observation_ends_a_call_and_the_next_one_reads_it() -> None:
    first, second = calls_of(THOUGHT, USE, RESULT, SAID)
    assert wrote(first) == [THOUGHT, USE]
    assert wrote(second) == [SAID]
    assert json.loads(second.request)["input"] == [RESULT]
    assert json.loads(second.request)["temperature"] == 0.7
    assert (second.context, second.parent_call_id) == ("delta", first.id)


@pytest.mark.parametrize(
    ("output", "num_calls"),
    [
        ([THOUGHT, SAID], 1),
        ([THOUGHT, SAID, USE, USE], 1),
        ([SAID, SAID], 2),
        ([USE, THOUGHT, SAID], 2),
        ([USE, SAID], 2),
        ([{**USE, **tokens([1], [2])}, USE], 2),
        ([SAID, ASKED, SAID], 2),
        ([SAID, RESULT], 1),
        ([], 0),
    ],
)
def test_where_a_call_ends_follows_the_rule(output: list[Any], num_calls: int) -> None:
    assert len(calls_of(*output)) == num_calls


def test_token_lists_are_the_calls_and_not_part_of_its_items() -> None:
    (call,) = calls_of(THOUGHT, {**SAID, **tokens([1, 2], [3])})
    assert call.prompt_token_ids.json() == [1, 2]
    assert call.completions[0].token_ids.json() == [3]
    assert call.completions[0].logprobs.json() == [-0.5]
    assert wrote(call) == [THOUGHT, SAID]


@pytest.mark.parametrize("given", [{}, tokens([], [])])
def test_lists_that_are_absent_or_empty_are_unknown_and_a_gap(given: dict[str, Any]) -> None:
    events, _ = read_values(rollout({**SAID, **given}))
    (call,) = of_kind(events, "call")
    assert call.prompt_token_ids is None
    assert call.completions[0].token_ids is None
    assert [gap.cause for gap in of_kind(events, "gap")] == ["no_token_ids"]


def test_logprobs_of_minus_infinity_and_without_a_value_are_what_the_file_says() -> None:
    given = tokens([1], [4, 5, 6, 7, 8]) | {"generation_log_probs": "HERE"}
    line = as_lines(rollout(SAID | given)).replace(b'"HERE"', b"[-0.5, -Infinity, NaN, -9999.0, null]")
    (call,) = of_kind(read_bytes(line)[0], "call")
    (completion,) = call.completions
    assert [str(one) for one in completion.logprobs.json()] == ["-0.5", "-inf", "nan", "-9999.0", "None"]
    assert completion.token_ids.array.tolist() == [4, 5, 6, 7, 8]


def test_tool_calls_get_their_results_in_order_however_their_ids_repeat() -> None:
    again = {**RESULT, "output": "seen again"}
    events, _ = read_values(rollout(USE, RESULT, USE, again, USE))
    results = [one.result and json.loads(one.result) for one in of_kind(events, "tool_call")]
    assert results == ["seen", "seen again", None]


def test_rollouts_of_one_task_are_a_group_and_different_tasks_are_not() -> None:
    lines = [rollout(SAID, _ng_task_index=i, _ng_rollout_index=j) for i, j in ((0, 0), (1, 0), (0, 1))]
    events, _ = read_values(*lines, rollout(SAID))
    groups = [episode.group_id for episode in of_kind(events, "episode")]
    assert groups[0] == groups[2] != groups[1]
    assert groups[3] is None
    assert {group.id for group in of_kind(events, "group")} == set(groups[:2])


def test_equal_rollouts_are_two_episodes() -> None:
    events, _ = read_values(rollout(SAID), rollout(SAID))
    assert len({episode.id for episode in of_kind(events, "episode")}) == 2


def test_usage_is_the_calls_where_there_is_one_and_zeros_are_unknown() -> None:
    counted = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 0}}
    (one,) = of_kind(read_values(rollout(SAID, usage=counted))[0], "call")
    assert (one.usage.prompt_tokens, one.usage.cached_tokens, one.usage.completion_tokens) == (5, 0, 2)
    assert all(
        call.usage is None for call in of_kind(read_values(rollout(SAID, SAID, usage=counted))[0], "call")
    )
    zeros = {"input_tokens": 0, "output_tokens": 0}
    (none,) = of_kind(read_values(rollout(SAID, usage=zeros))[0], "call")
    assert none.usage is None


def test_parts_of_a_reward_weigh_nothing_beside_it() -> None:
    events, _ = read_values(rollout(SAID, reward_components={"format": 0.25}))
    assert [(r.name, r.value, r.weight) for r in of_kind(events, "reward")] == [
        ("reward", 1.0, None),
        ("format", 0.25, 0.0),
    ]


def test_a_masked_rollout_is_recorded_for_reading_only() -> None:
    (episode,) = of_kind(read_values(rollout(SAID, mask_sample=True))[0], "episode")
    assert episode.inference_only is True


def test_everything_else_of_a_line_is_kept() -> None:
    late = {**RESULT, "id": "i"}
    events, notes = read_values(
        rollout(USE, late, {"role": "user"}, patch="diff", reward_components={"a": "x"})
    )
    (episode,) = of_kind(events, "episode")
    assert json.loads(episode.meta)["nemo_gym"] == {
        "patch": "diff",
        "reward_components": {"a": "x"},
        "response": {"id": "r", "model": "m", "output_after_the_last_call": [late, {"role": "user"}]},
    }
    assert notes.not_understood == {}


def test_empty_lists_and_routed_experts_are_kept_beside_the_call() -> None:
    (call,) = calls_of({**SAID, **tokens([], []), "routed_experts": [[1]]})
    assert json.loads(call.meta) == {"nemo_gym": {**tokens([], []), "routed_experts": [[1]]}}


def test_a_task_that_nobody_attempted_is_no_episode() -> None:
    events, notes = read_values({"responses_create_params": {"input": "q"}})
    assert events == []
    assert notes.not_understood["nemo-gym: task without a response"].count == 1


@pytest.mark.parametrize(
    "line",
    [
        rollout("text"),
        rollout({**SAID, **tokens([1], [-2])}),
        rollout({**SAID, "generation_token_ids": [1], "generation_log_probs": []}),
        rollout(SAID, reward="high", agent_ref=3),
        rollout(SAID, usage={"input_tokens": -1, "output_tokens": "x"}),
        {"responses_create_params": {}, "response": {"output": 3}},
        {"responses_create_params": {}, "response": 3},
        {"other": 1},
        [1],
    ],
)
def test_a_field_of_another_type_never_ends_the_import(line: Any) -> None:
    events, notes = read_values(rollout(SAID), line)
    assert len(of_kind(events, "episode")) + len(notes.refused) + len(notes.not_understood) == 2


def test_split_and_repeated_and_grown_files_give_the_same() -> None:
    lines = [rollout(THOUGHT, USE, RESULT, SAID, _ng_task_index=0, _ng_rollout_index=n) for n in (0, 1)]
    assert_order_free(as_lines(lines[0]), as_lines(lines[1]))
    assert_grows(as_lines(*lines, rollout(SAID), rollout(SAID)).splitlines())


def test_no_leaf_changes_without_a_trace() -> None:
    line = rollout(THOUGHT, {**USE, **tokens([1, 2], [3])}, RESULT, SAID, ASKED, patch="p", mask_sample=False)
    assert_perturbation(as_lines(line), limit=40)


def test_the_round_trip_document_has_two_calls_with_their_ids() -> None:
    imported = read_fixtures(ROUND_TRIP)
    first, second = imported.of("call")
    assert (len(first.prompt_token_ids), len(second.prompt_token_ids)) == (3_088, 3_637)
    assert [len(call.completions[0].token_ids) for call in (first, second)] == [495, 207]
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]
    assert imported.of("reward") == []
    assert imported.notes.refused == []
    assert_builds(imported)


def test_the_coding_rollouts_are_one_group_with_every_sampled_id() -> None:
    imported = read_fixtures(COMPETITIVE)
    assert len(imported.of("group")) == 1
    assert imported.report["sampled_tokens"] == imported.report["usage"]["completion_tokens"] == 5_023
