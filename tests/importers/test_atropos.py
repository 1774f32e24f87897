from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    as_lines,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    of_kind,
    read_data,
    read_values,
)


def group(**fields: Any) -> dict[str, Any]:
    """One sequence that ends with its only run, unless `fields` say otherwise."""
    return {
        "tokens": [[1, 2, 3, 4, 5]],
        "masks": [[-100, -100, -100, 4, 5]],
        "scores": [0.5],
        "messages": [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]],
        **fields,
    }


def test_unmasked_tokens_are_what_was_sampled_after_everything_before_them() -> None:
    events, notes = read_values(group())
    (call,) = of_kind(events, "call")
    assert call.prompt_token_ids.json() == [1, 2, 3]
    assert call.completions[0].token_ids.json() == [4, 5]
    assert json.loads(call.request) == {"messages": [{"role": "user", "content": "q"}]}
    assert json.loads(call.completions[0].message) == {"role": "assistant", "content": "a"}
    assert call.policy is None
    assert call.completions[0].logprobs is None
    assert (notes.not_understood, notes.warnings, notes.refused) == ({}, {}, [])


def test_each_run_of_a_sequence_is_a_call_that_extends_the_one_before() -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "agent", "content": "a"},
        {"role": "environment", "content": "o"},
        {"role": "agent", "content": "b"},
    ]
    mask = [-100, 2, 3, -100, 5]
    events, notes = read_values(group(masks=[mask], messages=[messages]))
    first, second = of_kind(events, "call")
    assert (first.prompt_token_ids.json(), first.completions[0].token_ids.json()) == ([1], [2, 3])
    assert (second.prompt_token_ids.json(), second.completions[0].token_ids.json()) == ([1, 2, 3, 4], [5])
    assert second.parent_call_id == first.id
    assert second.context == "delta"
    assert json.loads(second.request) == {"messages": messages[2:3]}
    assert notes.warnings == {}


def test_a_run_on_an_observation_is_imported_as_the_file_says_with_a_warning() -> None:
    messages = [[{"role": "agent", "content": "a"}, {"role": "environment", "content": "o"}]]
    events, notes = read_values(group(messages=messages))
    (call,) = of_kind(events, "call")
    assert json.loads(call.completions[0].message) == messages[0][1]
    assert notes.warnings == {"the mask trains a message of role 'environment'": 1}


def test_runs_that_match_no_messages_leave_the_messages_unknown_and_say_so() -> None:
    events, notes = read_values(group(masks=[[-100, 2, -100, 4, -100]]))
    assert [call.request for call in of_kind(events, "call")] == [None, None]
    assert [call.completions[0].message for call in of_kind(events, "call")] == [None, None]
    assert {gap.cause for gap in of_kind(events, "gap")} == {"messages_not_aligned", "unsampled_tail"}
    assert notes.warnings["tokens after the last sampled run"] == 1


def test_logprobs_of_the_sampler_count_inside_runs_only() -> None:
    events, _ = read_values(group(inference_logprobs=[[1.0, 1.0, 1.0, -0.25, -0.5]]))
    (call,) = of_kind(events, "call")
    assert call.completions[0].logprobs.json() == [-0.25, -0.5]


def test_lists_of_another_length_refuse_the_line_and_keep_the_others() -> None:
    events, notes = read_values(group(masks=[[-100]]), group())
    assert len(of_kind(events, "group")) == 1
    assert notes.refused == ["file-0, line 1: sequence 0 has 5 tokens and a mask of 1"]


def test_what_has_no_place_is_kept_in_meta() -> None:
    mask = [-100, 2, -100, -100, -100]
    given = group(seed=7, parsed_actions=["U"], advantages=[[0.5] * 5], masks=[mask], inference_logprobs=None)
    events, notes = read_values(given)
    assert json.loads(of_kind(events, "group")[0].meta) == {"atropos": {"seed": 7}}
    assert json.loads(of_kind(events, "episode")[0].meta) == {
        "atropos": {"parsed_actions": "U", "advantages": [0.5] * 5, "tokens": [3, 4, 5]}
    }
    assert notes.not_understood == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"tokens": None},
        {"tokens": ["x"]},
        {"tokens": [[1, 2, 3, 4, -5]], "masks": [[-100] * 4 + [-5]]},
        {"scores": [None]},
        {"scores": ["high"]},
        {"messages": ["hello"]},
        {"messages": [[1, 2]]},
        {"inference_logprobs": [["x"] * 5]},
        {"masks": [[None] * 5]},
    ],
)
def test_a_field_of_another_type_never_ends_the_import(fields: dict[str, Any]) -> None:
    events, notes = read_values(group(), group(**fields))
    assert len(of_kind(events, "group")) + len(notes.refused) == 2


def test_no_leaf_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(group(seed=7, advantages=[[0.5] * 5], images=[None])), limit=40)


def test_a_group_read_again_names_the_same_things_and_an_equal_one_is_another() -> None:
    two = as_lines(group(), group())
    assert len(read_data(two).of("group")) == 2
    assert_order_free(two, as_lines(group(scores=[1.0])))
    assert_grows(two.splitlines())
