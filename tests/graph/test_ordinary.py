"""What is read off an ordinary message in one go is what the general functions say of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracestore.graph.match import match_hash
from tracestore.graph.messages import parsed, role_of_value, storable, text_of, tool_uses
from tracestore.graph.ordinary import ordinary
from tracestore.wire.base import Raw

_TEXT = st.text(st.characters(exclude_categories=()), max_size=6) | st.just("")
_ANYTHING = _TEXT | st.none() | st.integers() | st.just([]) | st.just({})
_FUNCTION = st.fixed_dictionaries({"name": _TEXT, "arguments": _TEXT}) | st.dictionaries(
    st.sampled_from(["name", "arguments", "x"]), _ANYTHING, max_size=3
)
_CALL = st.fixed_dictionaries({"id": _TEXT, "type": _TEXT, "function": _FUNCTION}) | st.dictionaries(
    st.sampled_from(["id", "type", "function", "index"]), _ANYTHING | _FUNCTION, max_size=4
)
_MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "user", "tool", ""]) | _ANYTHING,
        "content": _ANYTHING,
        "name": _TEXT | _ANYTHING,
        "tool_call_id": _TEXT | _ANYTHING,
        "tool_calls": st.lists(_CALL, max_size=2) | _ANYTHING,
        "refusal": _ANYTHING,
    },
)


_NAMELESS = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}


@given(_MESSAGES)
@example({"role": "assistant", "content": None, "tool_calls": [_NAMELESS]})
def test_an_ordinary_message_is_read_as_any_other(value: dict[str, Any]) -> None:
    message = Raw(json.dumps(value).encode("ascii"))
    found = ordinary(message)
    if found is not None:
        assert found.role == role_of_value(parsed(message))
        assert found.match == match_hash(message)
        assert storable(found.text) == text_of(message)
        assert found.uses == tool_uses(message)
        assert found.name == value.get("name")


_USE = {"id": "t", "type": "function", "function": {"name": "run", "arguments": "{}"}}


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [_USE, _USE]},
        {"role": "assistant", "content": None, "tool_calls": [_USE]},
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": "tool", "content": "\x00é", "tool_call_id": "t", "name": "run"},
    ],
)
def test_the_usual_messages_are_ordinary(value: dict[str, Any]) -> None:
    assert ordinary(json.dumps(value).encode("ascii")) is not None


@pytest.mark.parametrize(
    "value",
    [
        "a",
        {"content": "a"},
        {"role": "user", "content": 1},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "\ud83d"},
        {"role": "assistant", "content": "a", "tool_calls": [{**_USE, "index": 0}]},
        {"role": "user", "content": "a", "name": None},
    ],
)
def test_others_are_not(value: Any) -> None:
    assert ordinary(json.dumps(value).encode("ascii")) is None
