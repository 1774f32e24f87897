"""Requests of every dialect cut into the spans that were posted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import assistant, raw, tool_use
from tests.wire.grammar import strings, texts
from tracestore.graph.messages import (
    Message,
    ToolUse,
    answer_messages,
    context_messages,
    message_parts,
    messages_of,
    preview,
    request_param_spans,
    request_params,
    request_tools,
    result_ids,
    role_of,
    text_of,
    tool_uses,
)
from tracestore.graph.spans import elements, first_byte, members
from tracestore.wire.base import Raw


@given(
    st.lists(texts(), max_size=3),
    st.lists(st.sampled_from([b" ", b"\n", b"\t", b""]), min_size=2, max_size=2),
)
def test_messages_are_cut_as_they_were_posted(posted: list[bytes], space: list[bytes]) -> None:
    comma = b",".join(space)
    request = b'{"model": "\xc3\xa9", "messages" :%b[%b%b]%b}' % (
        space[0],
        space[1],
        comma.join(posted),
        space[1],
    )
    assert context_messages(Raw(request)) == tuple(posted)
    assert [request[part.start : part.end] for part in message_parts(request)] == posted


@given(st.dictionaries(strings, texts(), max_size=3))
def test_members_and_elements_are_cut_from_any_object(fields: dict[str, bytes]) -> None:
    inside = b",".join(json.dumps(key).encode() + b" :\n" + text for key, text in fields.items())
    text = b" {" + inside + b"}\n"
    assert {key: text[start:end] for key, (start, end) in members(text).items()} == fields
    array = b"\n[" + b" , ".join(fields.values()) + b" ]"
    assert [array[start:end] for start, end in elements(array)] == list(fields.values())
    assert first_byte(array) == b"["


@pytest.mark.parametrize("text", [b"1", b'"x"', b"null", b"[]", b"{}", b" [ ] ", b" { } "])
def test_what_is_no_container_has_no_parts(text: bytes) -> None:
    assert members(text) == {}
    assert elements(text) == []


def test_anthropic_has_its_system_prompt_first_wherever_it_stands() -> None:
    request = Raw(b'{"messages":[{"role":"user","content":"u"}],"system":"s"}')
    assert messages_of(request, "anthropic_messages") == (
        Message(Raw(b'"s"'), "system"),
        Message(Raw(b'{"role":"user","content":"u"}'), None),
    )
    blocks = Raw(b'{"system":[{"type":"text","text":"s"}],"messages":[]}')
    assert messages_of(blocks, "anthropic_messages") == ((b'[{"type":"text","text":"s"}]', "system"),)


def test_responses_has_instructions_then_input_as_text_or_items() -> None:
    as_text = Raw(b'{"input":"u","instructions":"s"}')
    assert messages_of(as_text, "openai_responses") == ((b'"s"', "system"), (b'"u"', "user"))
    as_items = Raw(b'{"input":[{"type":"reasoning"}, {"role":"user"}],"instructions":null}')
    assert messages_of(as_items, "openai_responses") == (
        (b'{"type":"reasoning"}', None),
        (b'{"role":"user"}', None),
    )


def test_a_text_prompt_is_one_message() -> None:
    assert context_messages(Raw(b'{"prompt":"once","n":1}'), "text") == (b'"once"',)
    assert context_messages(Raw(b'{"prompt":[1,2]}'), "text") == (b"[1,2]",)


@pytest.mark.parametrize("request_", [None, Raw(b"{}"), Raw(b"[]"), Raw(b'"x"'), Raw(b'{"messages":null}')])
def test_a_request_without_messages_has_none(request_: Raw | None) -> None:
    assert context_messages(request_) == ()


def test_messages_that_are_no_array_are_one_message() -> None:
    assert context_messages(Raw(b'{"messages":"hi"}')) == (b'"hi"',)


def test_a_responses_answer_is_its_items() -> None:
    items = Raw(b'[{"type":"reasoning"}, {"type":"message","role":"assistant"}]')
    cut = ((b'{"type":"reasoning"}', "assistant"), (b'{"type":"message","role":"assistant"}', "assistant"))
    assert answer_messages(items, "openai_responses") == cut
    assert answer_messages(Raw(b'{"object":"response","output":%b}' % items), "openai_responses") == cut
    assert answer_messages(Raw(b'{"role":"assistant"}'), "openai_responses") == (
        (b'{"role":"assistant"}', "assistant"),
    )
    assert answer_messages(items, "openai_chat") == ((items, "assistant"),)
    assert answer_messages(None) == ()


@pytest.mark.parametrize(
    ("request_", "tools"),
    [
        (b'{"tools": [ {"type":"function"} ]}', b'[ {"type":"function"} ]'),
        (b'{"tools":[]}', b"[]"),
        (b'{"tools":null}', None),
        (b"{}", None),
    ],
)
def test_tools_are_kept_as_posted_and_null_is_none(request_: bytes, tools: bytes | None) -> None:
    assert request_tools(Raw(request_)) == tools


def test_parameters_are_those_that_change_what_is_sampled() -> None:
    request = raw(
        {"temperature": 0.7, "seed": 2**60 + 1, "top_p": None, "stream": True, "model": "m", "messages": []}
    )
    assert request_params(request) == {"temperature": 0.7, "seed": 2**60 + 1}
    assert request_params(None) == {}


def test_parameters_of_any_number_of_digits_are_read() -> None:
    request = Raw(b'{"top_k":' + b"9" * 5000 + b',"seed":null,"temperature": 1.0 }')
    assert request_params(request) == {"top_k": float("inf"), "temperature": 1.0}
    assert request_param_spans(request) == {"top_k": b"9" * 5000, "temperature": b"1.0"}


@pytest.mark.parametrize(
    ("message", "role"),
    [
        ({"role": "user"}, "user"),
        ({"type": "function_call"}, "assistant"),
        ({"type": "reasoning"}, "assistant"),
        ({"type": "function_call_output"}, "tool"),
        ({"type": "item_reference"}, None),
        ("text", None),
        ({"role": 1}, None),
    ],
)
def test_a_role_is_stated_or_follows_from_the_type(message: object, role: str | None) -> None:
    assert role_of(raw(message)) == role
    assert role_of(raw(message), default="system") == (role or "system")


CUT_OFF = '{"path": "/tm'


@pytest.mark.parametrize(
    ("message", "dialect", "uses"),
    [
        (
            assistant(None, tool_calls=[tool_use("run", CUT_OFF), tool_use("go", id="t2")]),
            "openai_chat",
            (ToolUse("t1", "run", CUT_OFF), ToolUse("t2", "go", "{}")),
        ),
        (
            assistant(
                None, tool_calls=[{"id": "t1", "type": "custom", "custom": {"name": "sh", "input": "ls"}}]
            ),
            "openai_chat",
            (ToolUse("t1", "sh", "ls"),),
        ),
        (
            assistant(None, function_call={"name": "run", "arguments": "{}"}),
            "openai_chat",
            (ToolUse(None, "run", "{}"),),
        ),
        (
            assistant(
                [
                    {"type": "text", "text": "x"},
                    {"type": "tool_use", "id": "u", "name": "n", "input": Raw(b'{ "a":1 }')},
                ]
            ),
            "anthropic_messages",
            (ToolUse("u", "n", '{ "a":1 }'),),
        ),
        (
            [
                {"type": "reasoning"},
                {"type": "function_call", "call_id": "c", "name": "n", "arguments": CUT_OFF},
            ],
            "openai_responses",
            (ToolUse("c", "n", CUT_OFF),),
        ),
        (
            assistant("", tool_calls=[{"id": "t1", "function": "bash", "arguments": Raw(b'{"cmd": "ls"}')}]),
            "openai_chat",
            (ToolUse("t1", "bash", '{"cmd": "ls"}'),),
        ),
        (
            {
                "role": "model",
                "parts": [
                    {"text": "x"},
                    {"functionCall": {"id": "f1", "name": "n", "args": Raw(b'{ "a":1 }')}},
                    {"function_call": {"name": "m"}},
                ],
            },
            "openai_chat",
            (ToolUse("f1", "n", '{ "a":1 }'), ToolUse(None, "m", "")),
        ),
        (assistant("hi"), "openai_chat", ()),
        ("text", "text", ()),
        ({"role": "assistant", "tool_calls": "odd"}, "openai_chat", ()),
        (
            assistant(None, tool_calls=[1, {"id": 5}]),
            "openai_chat",
            (ToolUse(None, None, ""),),
        ),
    ],
)
def test_tool_uses_are_read_as_sampled(message: object, dialect: str, uses: tuple[ToolUse, ...]) -> None:
    assert tool_uses(raw(message), dialect) == uses  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        ({"role": "tool", "tool_call_id": "t1", "content": "x"}, ("t1",)),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a"},
                    {"type": "tool_result", "tool_use_id": "b"},
                ],
            },
            ("a", "b"),
        ),
        ({"type": "function_call_output", "call_id": "t1"}, ("t1",)),
        ({"type": "function_call", "call_id": "t1"}, ()),
        ("text", ()),
    ],
)
def test_results_name_the_tool_calls_they_answer(message: object, ids: tuple[str, ...]) -> None:
    assert result_ids(raw(message)) == ids


def test_text_is_what_people_read() -> None:
    message = assistant([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"}])
    assert text_of(raw(message)) == "hm\nhi"
    assert text_of(raw("bare")) == "bare"
    assert preview(raw(assistant("x" * 300))) == "x" * 80


def test_text_that_no_column_takes_is_shown_as_replaced() -> None:
    assert text_of(raw(assistant("a\x00b\ud83dc"))) == "a�b�c"


@given(texts())
def test_any_json_has_a_text_and_a_role(text: bytes) -> None:
    text_of(text).encode("utf-8")
    role_of(text)
    tool_uses(Raw(text))
    result_ids(text)
