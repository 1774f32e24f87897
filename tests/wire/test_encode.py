"""decode(encode(event)) == event, for every kind and both ways to write arrays."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.events import any_events, events
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionBody
from tracestore.wire.decode import decode_body, decode_event
from tracestore.wire.encode import encode, encode_array
from tracestore.wire.events import KINDS
from tracestore.wire.gap import Gap

ARRAYS: tuple[Literal["json", "base64"], ...] = ("json", "base64")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_an_event_comes_back_as_it_was_written(kind: str, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    for arrays in ARRAYS:
        again = decode_event(encode(event, arrays=arrays))
        assert _exact(again) == _exact(event)
        assert again.model_fields_set - {"v", "kind"} == event.model_fields_set - {"v", "kind"}


def _exact(value: Any) -> Any:
    """Type and text, so that -0.0 is not 0.0 (arrays compare as bytes, NaN and all)."""
    return type(value), repr(value)


@settings(max_examples=50)
@given(st.lists(any_events, max_size=3))
def test_a_body_of_events_comes_back(posted: list[Any]) -> None:
    if posted:
        found = decode_body(encode_array(posted), content_type="application/json")
        assert [repr(one.event) for one in found] == [repr(event) for event in posted]


def test_spans_are_written_verbatim_and_unset_fields_are_not_written() -> None:
    span = Raw(rb'{ "a":1e400,"b":"\ud83d" }')
    event = Gap(id="g", episode_id="e", cause="x", meta=span)
    assert encode(event) == b'{"v":1,"id":"g","meta":' + span + b',"episode_id":"e","kind":"gap","cause":"x"}'


def test_arrays_are_lists_or_base64_of_little_endian_numbers() -> None:
    body = CompletionBody(token_ids=TokenIds.of([1, 256]), logprobs=Logprobs.of([-0.5, None]))
    event = Call(id="c", episode_id="e", agent_id="a", completions=(body,))
    assert encode(event).endswith(b'"completions":[{"token_ids":[1,256],"logprobs":[-0.5,null]}]}')
    # 1 = 01 00 00 00, 256 = 00 01 00 00; -0.5f = 00 00 00 bf, then zeros where there is no value
    binary = (
        b'{"token_ids":{"dtype":"int32","base64":"AQAAAAABAAA="},'
        b'"logprobs":{"dtype":"float32","base64":"AAAAvwAAAAA=","nulls":[1]}}'
    )
    assert encode(event, arrays="base64").endswith(b'"completions":[' + binary + b"]}")


def test_undeclared_nan_is_written_as_bits_and_declared_nan_bare() -> None:
    body = CompletionBody(token_ids=TokenIds.of([1]), logprobs=Logprobs.of(np.array([np.nan], dtype="<f4")))
    event = Call(id="c", episode_id="e", agent_id="a", completions=(body,))
    assert b"NaN" not in encode(event)
    assert b'"logprobs":[NaN]' in encode(event.model_copy(update={"non_finite": True}))
    assert decode_event(encode(event)) == event
