"""Which messages are one message in the spellings of real clients, and which are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import assistant, raw, system, tool, tool_use, user
from tests.strategies import spelled
from tests.wire.grammar import spellings, texts, values
from tracestore.graph.match import match_hash, node_key
from tracestore.wire.base import Raw

USE = tool_use("run", '{"a": 1}')
SDK_NULLS = {"refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}


def same(first: Any, second: Any) -> bool:
    return match_hash(raw(first)) == match_hash(raw(second))


OPENAI_CHAT = {
    "model_dump writes every optional field": (assistant("hi"), assistant("hi", **SDK_NULLS)),
    "key order": (assistant("hi"), {"content": "hi", "role": "assistant"}),
    "empty tool calls": (assistant("hi"), assistant("hi", tool_calls=[])),
    "text as one block": (assistant("hi"), assistant([{"type": "text", "text": "hi"}])),
    "content or '' beside tool calls": (assistant(None, tool_calls=[USE]), assistant("", tool_calls=[USE])),
    "content left out": (
        assistant(None, tool_calls=[USE]),
        {"role": "assistant", "tool_calls": [USE]},
    ),
    "index of a streamed tool call": (
        assistant(None, tool_calls=[USE]),
        assistant(None, tool_calls=[{"index": 0, **USE}]),
    ),
    "parsed by a helper": (
        assistant(None, tool_calls=[USE]),
        assistant(
            None,
            tool_calls=[{**USE, "function": {**USE["function"], "parsed_arguments": {"a": 1}}}],
            parsed=None,
        ),
    ),
    "reasoning spelled twice": (assistant("hi", reasoning="hm"), assistant("hi", reasoning_content="hm")),
    "reasoning in both fields": (
        assistant("hi", reasoning="hm"),
        assistant("hi", reasoning="hm", reasoning_content="hm"),
    ),
    "empty reasoning": (assistant("hi"), assistant("hi", reasoning_content="")),
    "audio echoed by id": (
        assistant(None, audio={"id": "a1", "data": "UklG", "expires_at": 1, "transcript": "x"}),
        assistant(None, audio={"id": "a1"}),
    ),
    "gateway fields that say nothing": (assistant("hi"), assistant("hi", provider_specific_fields={})),
    "tool result as a block": (tool("42"), tool([{"type": "text", "text": "42"}])),
}
OPENAI_RESPONSES = {
    "item ids and status": (
        {"type": "function_call", "call_id": "t1", "name": "run", "arguments": "{}"},
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "t1",
            "name": "run",
            "arguments": "{}",
            "status": "completed",
        },
    ),
    "an output message as an easy message": (
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
        },
        assistant("hi"),
    ),
    "input text": (user([{"type": "input_text", "text": "hi"}]), user("hi")),
    "reasoning with its optional fields": (
        {"type": "reasoning", "summary": []},
        {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": None, "status": None},
    ),
    "output as a block": (
        {"type": "function_call_output", "call_id": "t1", "output": "42"},
        {"type": "function_call_output", "call_id": "t1", "output": [{"type": "input_text", "text": "42"}]},
    ),
}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
TOOL_USE = {"type": "tool_use", "id": "tu_1", "name": "run", "input": {"b": 2, "a": None}}
ANTHROPIC = {
    "the response object": (
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [THINKING, TOOL_USE],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 2},
        },
        {"role": "assistant", "content": [THINKING, TOOL_USE]},
    ),
    "citations that model_dump adds": (
        assistant([{"type": "text", "text": "hi", "citations": None}, TOOL_USE]),
        assistant([{"text": "hi", "type": "text"}, TOOL_USE]),
    ),
    "cache hints": (
        user([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]),
        user("hi"),
    ),
    "cache hints on a tool result": (
        user([{"type": "tool_result", "tool_use_id": "tu_1", "content": "42"}]),
        user(
            [
                {
                    "type": "tool_result",
                    "tool_use_id": "tu_1",
                    "content": [{"type": "text", "text": "42"}],
                    "cache_control": {"type": "ephemeral"},
                }
            ]
        ),
    ),
    "key order of an input": (
        assistant([TOOL_USE]),
        assistant([{**TOOL_USE, "input": {"a": None, "b": 2}}]),
    ),
}
SPELLINGS = {**OPENAI_CHAT, **OPENAI_RESPONSES, **ANTHROPIC}


@pytest.mark.parametrize("name", SPELLINGS)
def test_these_are_one_message(name: str) -> None:
    assert same(*SPELLINGS[name])


DIFFERENT = {
    "roles": (user("hi"), system("hi")),
    "system and developer": (system("hi"), {"role": "developer", "content": "hi"}),
    "text": (assistant("hi"), assistant("hi ")),
    "stripped thinking": (assistant([THINKING, TOOL_USE]), assistant([TOOL_USE])),
    "stripped reasoning": (assistant("hi", reasoning="hm"), assistant("hi")),
    "two reasonings that differ": (
        assistant("hi", reasoning="hm", reasoning_content="hmm"),
        assistant("hi", reasoning="hm"),
    ),
    "several text blocks and their sum": (
        assistant([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        assistant("ab"),
    ),
    "arguments that are one JSON value in two spellings": (
        assistant(None, tool_calls=[tool_use("run", '{"a": 1}')]),
        assistant(None, tool_calls=[tool_use("run", '{"a":1}')]),
    ),
    "a null inside an input": (
        assistant([TOOL_USE]),
        assistant([{**TOOL_USE, "input": {"b": 2}}]),
    ),
    "ids of tool calls": (
        assistant(None, tool_calls=[USE]),
        assistant(None, tool_calls=[{**USE, "id": "t2"}]),
    ),
    "whose result it is": (tool("42", tool_call_id="t1"), tool("42", tool_call_id="t2")),
    "a refusal": (assistant("no"), assistant(None, refusal="no")),
    "an item reference": (
        {"type": "item_reference", "id": "msg_1"},
        {"type": "item_reference", "id": "msg_2"},
    ),
    "an empty user message and none": (user(""), {"role": "user"}),
    "content that is an object with a null": (tool({"a": None}), tool({})),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_these_are_two_messages(name: str) -> None:
    assert not same(*DIFFERENT[name])


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (b"9007199254740992", b"9007199254740993", False),
        (b"1", b"1.0", True),
        (b"1e2", b"100", True),
        (b"1e400", b"10e399", True),
        (b"1e400", b"1e401", False),
        (b'"\\u0041\\u00e9"', '"Aé"'.encode(), True),
        (b'"\\ud83d"', b'"\\ud83e"', False),
        (b'"\\u0000"', b'""', False),
        (b'"1"', b"1", False),
        (b"1" * 5000, b"1" * 4999 + b"2", False),
    ],
)
def test_values_compare_exactly(first: bytes, second: bytes, is_same: bool) -> None:
    hashes = {match_hash(b'{"role":"tool","content":%b}' % text) for text in (first, second)}
    assert (len(hashes) == 1) is is_same


def test_a_bare_string_has_the_role_of_its_place() -> None:
    assert match_hash(b'"hi"', role="system") == match_hash(raw(system("hi")))
    assert match_hash(b'"hi"', role="system") != match_hash(b'"hi"', role="user")
    blocks = raw([{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}])
    assert match_hash(blocks, role="system") == match_hash(b'"hi"', role="system")


@given(st.data())
def test_client_spellings_of_a_message_match(data: st.DataObject) -> None:
    value = data.draw(
        st.sampled_from([assistant("hi", tool_calls=[USE]), assistant("a"), user("b"), tool("c")])
    )
    assert match_hash(data.draw(spelled(value))) == match_hash(raw(value))


@given(values, spellings, spellings)
def test_any_two_spellings_of_a_value_match(value: Any, first: Any, second: Any) -> None:
    assert match_hash(first.write(value).encode()) == match_hash(second.write(value).encode())


@given(texts())
def test_any_json_is_a_message(text: bytes) -> None:
    assert len(match_hash(text)) == 16
    assert len(match_hash(raw({"role": "user", "content": Raw(text), "tool_calls": Raw(text)}))) == 16


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=6,
    ),
    st.integers(),
)
def test_different_arguments_never_match(value: Any, other: int) -> None:
    first = {"type": "tool_use", "id": "t", "name": "n", "input": {"x": value}}
    second = {**first, "input": {"x": [value, other]}}
    assert not same(assistant([first]), assistant([second]))
    assert same(assistant([first]), assistant([json.loads(json.dumps(first))]))


def test_a_node_key_hashes_the_path() -> None:
    a, b = match_hash(raw(user("a"))), match_hash(raw(user("b")))
    assert node_key(node_key(None, a), b) != node_key(node_key(None, b), a)
    assert node_key(None, a) == node_key(None, match_hash(raw({"content": "a", "role": "user"})))
