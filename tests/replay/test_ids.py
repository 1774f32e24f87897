"""The ids of an answer in the requests that follow an equal one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tracestore.replay.ids import asked_with_ids, ids_between, with_ids
from tracestore.replay.keys import Asked
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect
from tracestore.wire.completion import CompletionFields


def chat(*ids: str) -> list[Any]:
    """An answer with tool calls, and their results."""
    calls = [
        {"id": one, "type": "function", "function": {"name": "f", "arguments": '{"id":"a1"}'}} for one in ids
    ]
    return [
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": one, "content": '"a1"'} for one in ids),
    ]


def anthropic(*ids: str) -> list[Any]:
    uses = [{"type": "tool_use", "id": one, "name": "f", "input": {"id": "a1", "at": 1.50}} for one in ids]
    results = [{"type": "tool_result", "tool_use_id": one, "content": "a1"} for one in ids]
    return [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]


def responses(*ids: str) -> list[Any]:
    return [
        [
            {"type": "function_call", "id": f"fc_{one}", "call_id": one, "name": "f", "arguments": "{}"}
            for one in ids
        ],
        *({"type": "function_call_output", "call_id": one, "output": "a1"} for one in ids),
    ]


SAID: dict[Dialect, Any] = {
    "openai_chat": chat,
    "anthropic_messages": anthropic,
    "openai_responses": responses,
}


def answer(message: Any) -> list[CompletionFields]:
    return [CompletionFields(message=Raw(json.dumps(message).encode()))]


def request(dialect: Dialect, said: list[Any]) -> Asked:
    """What follows an answer."""
    name = "input" if dialect == "openai_responses" else "messages"
    first = said[0] if isinstance(said[0], list) else said[:1]
    messages = [{"role": "user", "content": "a1"}, *first, *said[1:]]
    return Asked(dialect, Raw(json.dumps({"model": "a1", name: messages, "user": "a1"}).encode()))


@pytest.mark.parametrize("dialect", SAID)
def test_what_follows_an_equal_answer_is_the_request_that_was_recorded(dialect: Dialect) -> None:
    said = SAID[dialect]
    recorded, fresh = said("r1", "r2"), said("a1", "a2")
    ids = ids_between(answer(recorded[0]), answer(fresh[0]), dialect)
    assert (ids["a1"], ids["a2"]) == ("r1", "r2")
    then = asked_with_ids(request(dialect, fresh), ids)
    assert then.key == request(dialect, recorded).key
    # Neither the arguments nor the texts that read as an id have changed, nor anything else.
    assert json.loads(then.body) == json.loads(request(dialect, recorded).body)


def test_ids_that_do_not_belong_to_each_other_one_by_one_are_none() -> None:
    assert ids_between(answer(chat("r", "r")[0]), answer(chat("a", "b")[0]), "openai_chat") == {}
    assert ids_between(answer(chat("r")[0]), answer(chat()[0]), "openai_chat") == {}
    assert ids_between([], answer(chat("a")[0]), "openai_chat") == {}


@given(ids=st.lists(st.text(), min_size=1, max_size=4, unique=True), prefix=st.text(min_size=1))
def test_other_ids_and_back_is_the_same_request(ids: list[str], prefix: str) -> None:
    new = {one: f"{place} {prefix}" for place, one in enumerate(ids)}
    assume(not new.keys() & set(new.values()))
    for said in chat(*ids) + anthropic(*ids):
        message = json.dumps(said, ensure_ascii=False).encode("utf-8", "surrogatepass")
        there = with_ids(message, new)
        assert there != message
        assert json.loads(with_ids(there, {value: name for name, value in new.items()})) == said


def test_a_message_without_such_ids_is_the_same_to_the_byte() -> None:
    message = b'{ "role": "tool",  "tool_call_id": "other", "content": "a1", "n": 1.50 }'
    assert with_ids(message, {"a1": "r1"}) == message
    assert with_ids(b'"a1"', {"a1": "r1"}) == b'"a1"'
