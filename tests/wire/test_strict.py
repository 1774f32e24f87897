"""What is shown is strict JSON and keeps posted spans byte for byte."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import answer
from tracestore.wire.arrays import Logprobs
from tracestore.wire.base import Raw
from tracestore.wire.strict import dumps, is_strict


def strict(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(JSON)
def test_plain_values_come_back(value: Any) -> None:
    assert strict(dumps(value)) == value


def test_posted_spans_are_copied_byte_for_byte() -> None:
    span = Raw(b'{ "b":1.0, "a": [-0, 1e400, 123456789012345678901], "s":"\\ud83d \\u0000" }')
    assert dumps({"message": span}) == b'{"message":' + span + b"}"


def test_numbers_that_are_not_finite_are_strings() -> None:
    values = [math.nan, math.inf, -math.inf, 1.5]
    assert dumps(values) == b'["NaN","Infinity","-Infinity",1.5]'
    assert dumps(Logprobs.of([-0.5, None, -math.inf])) == b'[-0.5,null,"-Infinity"]'


@pytest.mark.parametrize("text", ['{"score":NaN}', "[-Infinity]", '["\\"",NaN,"\\""]'])
def test_a_span_with_a_bare_nan_is_given_as_its_text(text: str) -> None:
    assert not is_strict(text.encode())
    assert strict(dumps(Raw(text.encode()))) == {"$json": text}


@pytest.mark.parametrize("text", ['{"text":"NaN"}', '["a \\" Infinity"]', '{"NaN":1}'])
def test_nan_inside_a_string_is_only_text(text: str) -> None:
    assert dumps(Raw(text.encode())) == text.encode()


def test_a_model_shows_every_field_and_unknown_is_null() -> None:
    shown = strict(dumps(answer("hi", ids=[5, 6], logprobs=[-0.25, -1.0])))
    assert shown["token_ids"] == [5, 6]
    assert shown["logprobs"] == [-0.25, -1.0]
    assert shown["message"] == {"role": "assistant", "content": "hi"}
    assert shown["partial"] is None


def test_lone_surrogates_stay_escapes() -> None:
    assert dumps("\ud83d") == b'"\\ud83d"'
