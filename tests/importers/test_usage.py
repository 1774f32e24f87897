from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore.importers import usage
from tracestore.wire.call import Usage

NAMES = (
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "total_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "reasoning_tokens",
    "other",
)


def test_openai_counts_cached_and_reasoning_tokens_inside_the_others() -> None:
    for prompt, said in (("prompt", "completion"), ("input", "output")):
        given = {
            f"{prompt}_tokens": 10,
            f"{said}_tokens": 4,
            "total_tokens": 14,
            f"{prompt}_tokens_details": {"cached_tokens": 8, "audio_tokens": 1},
            f"{said}_tokens_details": {"reasoning_tokens": 3},
        }
        known, rest = usage.of(given)
        assert known == Usage(prompt_tokens=10, cached_tokens=8, completion_tokens=4, reasoning_tokens=3)
        assert rest == {f"{prompt}_tokens_details": {"audio_tokens": 1}}


def test_anthropic_counts_three_parts_of_the_prompt_apart() -> None:
    known, rest = usage.of(
        {
            "input_tokens": 3,
            "cache_creation_input_tokens": 20,
            "cache_read_input_tokens": 100,
            "output_tokens": 7,
            "output_tokens_details": {"thinking_tokens": 5},
            "service_tier": "standard",
        }
    )
    # 3 + 20 + 100 = 123 were read.
    assert known == Usage(
        prompt_tokens=123, cached_tokens=100, cache_write_tokens=20, completion_tokens=7, reasoning_tokens=5
    )
    assert rest == {"service_tier": "standard"}


def test_litellm_counts_as_openai_under_the_names_of_the_providers_too() -> None:
    known, rest = usage.of(
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 90},
            "cache_read_input_tokens": 90,
            "cache_creation_input_tokens": 4,
        },
        cost=0.25,
    )
    assert known == Usage(
        prompt_tokens=100, cached_tokens=90, cache_write_tokens=4, completion_tokens=5, cost_usd=0.25
    )
    assert rest == {}


def test_deepseek_counts_hits_and_the_misses_stay() -> None:
    known, rest = usage.of(
        {"prompt_tokens": 9, "prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 3, "total_tokens": 9}
    )
    assert known == Usage(prompt_tokens=9, cached_tokens=6)
    assert rest == {"prompt_cache_miss_tokens": 3}


def test_counts_that_contradict_each_other_are_kept_both() -> None:
    known, rest = usage.of(
        {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 7, "cache_read_input_tokens": 2}
        | {"prompt_tokens_details": {"cached_tokens": 3}}
    )
    assert known == Usage(prompt_tokens=5, cached_tokens=3, completion_tokens=1)
    assert rest == {"total_tokens": 7, "cache_read_input_tokens": 2}


def test_gemini_counts_thoughts_beside_what_was_said() -> None:
    known, rest = usage.of_gemini(
        {
            "promptTokenCount": 7,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 73,
            "cachedContentTokenCount": 2,
            "totalTokenCount": 87,
            "trafficType": "ON_DEMAND",
        }
    )
    # 7 said + 73 thought = 80 sampled; 7 + 80 = 87, which says nothing more.
    assert known == Usage(prompt_tokens=7, cached_tokens=2, completion_tokens=80, reasoning_tokens=73)
    assert rest == {"trafficType": "ON_DEMAND"}
    assert usage.of_gemini({"totalTokenCount": 3}) == (None, {"totalTokenCount": 3})


@pytest.mark.parametrize("read", [usage.of, usage.of_gemini])
def test_what_counts_nothing_is_no_usage(read: Any) -> None:
    assert read(None) == (None, {})
    assert read({}) == (None, {})
    assert read("12") == (None, {"value": "12"})


def test_a_count_that_is_none_stays_where_it_is() -> None:
    for wrong in (-1, 2**63, 1.5, True, "3"):
        assert usage.of({"prompt_tokens": wrong}) == (None, {"prompt_tokens": wrong})


def test_a_cost_alone_is_a_usage_and_no_number_is_no_cost() -> None:
    assert usage.of(None, cost=2) == (Usage(cost_usd=2.0), {})
    assert usage.of(None, cost="free") == (None, {})


@given(st.dictionaries(st.sampled_from(NAMES), st.none() | st.integers(0, 9), min_size=1), st.data())
def test_no_count_changes_without_a_trace_and_the_value_stays_as_it_is(
    value: dict[str, Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(value)))
    changed = {**value, name: (value[name] or 0) + 1_000}
    before = dict(value)
    assert usage.of(changed) != usage.of(value)
    assert value == before
