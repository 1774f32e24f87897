"""A request taken apart and put together again is the request, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.grammar import texts
from tracestore.store.skeleton import cut, fill
from tracestore.wire.call import Dialect

_SPACE = st.sampled_from([b"", b" ", b"\n  "])
_DIALECTS: tuple[Dialect, ...] = ("openai_chat", "anthropic_messages", "openai_responses", "text")


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Objects with the fields that hold messages and tools, in any order and white space."""
    names = ("messages", "system", "instructions", "input", "prompt", "tools", "model", "temperature")
    fields = []
    for name in draw(st.permutations(names))[: draw(st.integers(0, len(names)))]:
        if draw(st.booleans()):
            between = draw(_SPACE) + b"," + draw(_SPACE)
            items = draw(st.lists(texts().map(bytes), max_size=4))
            value = b"[" + draw(_SPACE) + between.join(items) + draw(_SPACE) + b"]"
        else:
            value = bytes(draw(texts()))
        fields.append(b'"%b"%b:%b%b' % (name.encode(), draw(_SPACE), draw(_SPACE), value))
    return b"{" + draw(_SPACE) + b", ".join(fields) + draw(_SPACE) + b"}"


@settings(max_examples=60)
@given(requests(), st.sampled_from(_DIALECTS))
def test_a_request_is_put_together_byte_for_byte(request: bytes, dialect: Dialect) -> None:
    parts = cut(request, dialect)
    assert fill(parts.skeleton, [data for data, _ in parts.messages], parts.tools) == request


@settings(max_examples=40)
@given(texts().map(bytes), st.sampled_from(_DIALECTS))
def test_what_is_no_object_survives_too(request: bytes, dialect: Dialect) -> None:
    parts = cut(request, dialect)
    assert fill(parts.skeleton, [data for data, _ in parts.messages], parts.tools) == request


def test_growing_requests_share_one_skeleton() -> None:
    first = b'{"messages": [{"a":1}, {"b":2}], "tools": [], "temperature": 1}'
    second = b'{"messages": [{"a":1}, {"b":2}, {"c":3}, {"d":4}], "tools": [], "temperature": 1}'
    assert cut(first, "openai_chat").skeleton == cut(second, "openai_chat").skeleton


def test_unequal_white_space_between_messages_is_kept() -> None:
    request = b'{"messages":[1,2, 3,\n4,5]}'
    parts = cut(request, "openai_chat")
    assert [data for data, _ in parts.messages] == [b"1", b"2", b"3", b"4", b"5"]
    assert fill(parts.skeleton, [data for data, _ in parts.messages], None) == request


def test_the_system_prompt_comes_first_wherever_it_stands() -> None:
    request = b'{"messages":[{"role":"user","content":"u"}],"system":"s"}'
    parts = cut(request, "anthropic_messages")
    assert parts.messages == ((b'"s"', "system"), (b'{"role":"user","content":"u"}', None))
    assert fill(parts.skeleton, [b'"s"', b'{"role":"user","content":"u"}'], None) == request


@pytest.mark.parametrize("tools", [b"null", b"[]", b'{"x": 1}'])
def test_tools_that_are_null_are_none_and_empty_ones_are_not(tools: bytes) -> None:
    parts = cut(b'{"messages":[],"tools":%b}' % tools, "openai_chat")
    assert parts.tools == (None if tools == b"null" else tools)
