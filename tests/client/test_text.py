"""What the client writes is what the wire reads, for values that JSON libraries stumble over."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.grammar import texts
from tracestore.client import NotRecordable
from tracestore.client.text import event_text
from tracestore.wire.base import WIRE_VERSIONS
from tracestore.wire.decode import decode_event

CALL = {"episode_id": "e", "agent_id": "a"}

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def test_the_client_writes_the_newest_wire_version() -> None:
    assert event_text("gap", "g", {}).startswith(b'{"v":%d,' % WIRE_VERSIONS[0])


@given(_values)
def test_any_python_json_value_is_read_back_as_it_was(value: Any) -> None:
    # Lone surrogates and NaN included: the call declares its NaN by itself.
    event = decode_event(event_text("call", "c", {**CALL, "request": {"x": value}}))
    assert repr(event.request.value()["x"]) == repr(value)  # type: ignore[union-attr]


@given(texts(), st.sampled_from(["", " ", "\n"]))
def test_bytes_are_kept_byte_for_byte(text: bytes, space: str) -> None:
    fields = {
        **CALL,
        "completions": [{"message": (space.encode() + text + space.encode())}],
        "meta": {"m": text},
    }
    event = decode_event(event_text("call", "c", fields))
    assert event.completions[0].message == (None if text == b"null" else text)  # type: ignore[union-attr,index]
    assert event.meta == b'{"m":' + text + b"}"


def test_arrays_and_mappings_of_other_libraries_are_taken() -> None:
    answer = UserDict(
        token_ids=np.array([1, 2], dtype=np.uint16), logprobs=np.array([-0.5, -np.inf], dtype=np.float32)
    )
    event = decode_event(event_text("call", "c", {**CALL, "completions": [answer]}))
    assert event.non_finite is True  # type: ignore[union-attr]
    (body,) = event.completions  # type: ignore[union-attr,misc]
    assert (body.token_ids.json(), body.logprobs.json()) == ([1, 2], [-0.5, float("-inf")])


def test_nan_is_declared_only_where_it_stands_bare() -> None:
    assert b"non_finite" not in event_text("call", "c", {**CALL, "meta": {"text": "NaN, Infinity"}})
    assert b'"non_finite":true' in event_text("call", "c", {**CALL, "request": b'{"x": [NaN]}'})
    assert b'"non_finite":true' in event_text("completion", "c", {"logprobs": [float("nan")]})


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        ("reward", {"value": float("nan")}, "a reward holds finite numbers only"),
        ("call", {"request": object()}, "object is no JSON value"),
        ("call", {"request": b'{"x": }'}, "bytes are JSON text that is kept as it is"),
        ("call", {"request": b"\xff"}, "bytes are JSON text that is kept as it is"),
        ("call", {"request": {"x": [b"{"]}}, "bytes are JSON text that is kept as it is"),
        ("call", {"request": {(1, 2): 3}}, "keys must be"),
    ],
)
def test_what_cannot_be_written_is_said_where_it_is_recorded(
    kind: str, fields: dict[str, Any], problem: str
) -> None:
    with pytest.raises(NotRecordable, match=problem):
        event_text(kind, "x", fields)
