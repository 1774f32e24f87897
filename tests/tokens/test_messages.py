from __future__ import annotations

import re
from typing import Any

import pytest

from tests.factories import raw
from tracestore.graph.messages import Message
from tracestore.tokens.messages import GUARD, Reader, Said, Unrenderable, conversation, joined
from tracestore.wire.call import Dialect

CALL = {"type": "function", "id": "t1", "function": {"name": "run", "arguments": {"n": 1}}}
GEMINI_CALL = {"functionCall": {"id": "t1", "name": "run", "args": {"n": 1}}}
INSPECT_CALL = {"id": "t1", "function": "run", "arguments": {"n": 1}}
PI_CALL = {"type": "toolCall", "id": "t1", "name": "run", "arguments": {"n": 1}}
THOUGHT = {"type": "thinking", "thinking": "r", "thinkingSignature": "s"}
PNG = {"type": "image_url", "image_url": {"url": "data:"}}


def read(value: Any, dialect: Dialect = "openai_chat", *, role: str | None = None) -> tuple[Said, ...]:
    return Reader(None).read(Message(raw(value), role), dialect)


def message(value: Any, dialect: Dialect = "openai_chat", *, role: str | None = None) -> dict[str, Any]:
    (said,) = read(value, dialect, role=role)
    return said.message


@pytest.mark.parametrize(
    ("posted", "expected"),
    [
        ({"role": "user", "content": "u"}, {"role": "user", "content": "u"}),
        ({"role": "developer", "content": "d"}, {"role": "system", "content": "d"}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "ab"},
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "r"},
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "t1", "function": {"name": "run", "arguments": '{"n": 1}'}}],
            },
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        (
            {"role": "assistant", "function_call": {"name": "run", "arguments": "{broken"}},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {"name": "run", "arguments": "{broken"}}],
            },
        ),
        (
            {"role": "tool", "tool_call_id": "t1", "content": "x"},
            {"role": "tool", "content": "x", "tool_call_id": "t1"},
        ),
        (
            {"role": "function", "name": "run", "content": "x"},
            {"role": "tool", "content": "x", "name": "run"},
        ),
    ],
)
def test_a_chat_message_keeps_what_it_says(posted: Any, expected: Any) -> None:
    assert message(posted) == expected


def test_an_anthropic_answer_is_one_message_with_its_thinking_apart() -> None:
    blocks = [
        {"type": "thinking", "thinking": "r", "signature": "s"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t1", "name": "run", "input": {"n": 1}},
    ]
    answer = {"role": "assistant", "type": "message", "content": blocks}
    assert message(answer, "anthropic_messages") == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "r",
        "thinking": "r",
        "tool_calls": [CALL],
    }


def test_tool_results_in_a_user_message_become_messages_of_their_own_in_order() -> None:
    blocks = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "one"}]},
        {"type": "tool_result", "tool_use_id": "t2", "content": "two"},
        {"type": "text", "text": "and now?"},
    ]
    said = read({"role": "user", "content": blocks}, "anthropic_messages")
    assert [one.message for one in said] == [
        {"role": "tool", "content": "one", "tool_call_id": "t1"},
        {"role": "tool", "content": "two", "tool_call_id": "t2"},
        {"role": "user", "content": "and now?"},
    ]


def test_the_items_of_a_responses_answer_are_one_message_and_its_result_carries_the_name() -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "t1", "name": "run", "arguments": '{"n": 1}'},
        {"type": "function_call_output", "call_id": "t1", "output": "x"},
    ]
    entries = [(said, None) for item in items for said in read(item, "openai_responses")]
    answer = {"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "r"}
    result = {"role": "tool", "content": "x", "tool_call_id": "t1", "name": "run"}
    assert conversation(entries) == [{**answer, "tool_calls": [CALL]}, result]
    assert joined([said for said, _ in entries[:3]]).message == {**answer, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    ("item", "calls", "left_out"),
    [
        ({"type": "local_shell_call", "call_id": "t1", "action": {"n": 1}}, ["local_shell"], set()),
        ({"type": "custom_tool_call", "call_id": "t1", "name": "run", "input": "x"}, ["run"], set()),
        ({"type": "web_search_call", "id": "ws_1", "action": {}}, [], {"hosted_tool"}),
        ({"type": "reasoning", "summary": [], "encrypted_content": "x"}, [], {"hidden_reasoning"}),
    ],
)
def test_other_items_are_calls_by_their_type_or_left_out(
    item: Any, calls: list[str], left_out: set[str]
) -> None:
    (said,) = read(item, "openai_responses")
    assert [call["function"]["name"] for call in said.message.get("tool_calls", ())] == calls
    assert said.left_out == left_out


def test_items_of_two_answers_stay_two_messages() -> None:
    item = {"type": "message", "role": "assistant", "content": "a"}
    (said,) = read(item, "openai_responses")
    assert len(conversation([(said, ("c0", 0)), (said, ("c1", 0))])) == 2
    assert len(conversation([(said, ("c0", 0)), (said, ("c0", 0))])) == 1


def test_what_pi_tells_the_model_of_a_command_and_a_summary_is_the_users() -> None:
    ran = message({"role": "bashExecution", "command": "ls", "output": "a\nb", "exitCode": 0})
    assert ran == {"role": "user", "content": "Ran `ls`\n```\na\nb\n```"}
    assert message({"role": "compactionSummary", "summary": "s"}) == {"role": "user", "content": "s"}


def test_a_bare_text_takes_the_role_of_its_place() -> None:
    assert message("s", role="system") == {"role": "system", "content": "s"}
    assert message("p", "text") == {"role": "user", "content": "p"}
    assert message({"text": "a"}, "text", role="assistant") == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([PNG], "media"),
        ([{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "image"}]}], "media"),
        ([{"inlineData": {}}], "media"),
        ([{"executableCode": {}}], "unknown_part"),
        ([{"type": "hologram"}], "unknown_part"),
        ([{"type": "tool_result", "content": [{"type": "tool_result"}]}], "unknown_part"),
        ([7], "unknown_part"),
        ({"a": 1}, "unknown_part"),
    ],
)
def test_what_no_template_can_say_is_refused_by_name(content: Any, why: str) -> None:
    with pytest.raises(Unrenderable) as error:
        read({"role": "user", "content": content})
    assert error.value.why == why


def test_a_message_without_content_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(Unrenderable, match="without content"):
        read({"role": "user", "words": "u"})
    assert message({"role": "assistant", "content": None}) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "posted",
    [
        {"role": "model", "parts": [{"text": "r", "thought": True}, {"text": "a"}, GEMINI_CALL]},
        {"role": "assistant", "content": "a", "reasoning": "r", "tool_calls": [INSPECT_CALL]},
        {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "a"}, PI_CALL]},
    ],
)
def test_the_spellings_of_other_formats_say_the_same(posted: Any) -> None:
    answer = {"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "r"}
    assert message(posted) == {**answer, "tool_calls": [CALL]}


@pytest.mark.parametrize(
    "posted",
    [
        {"role": "user", "parts": [{"functionResponse": {"id": "t1", "name": "run", "response": {"n": 1}}}]},
        {
            "role": "toolResult",
            "toolCallId": "t1",
            "toolName": "run",
            "content": [{"text": '{"n": 1}', "type": "text"}],
        },
        {"role": "tool", "tool_call_ids": ["t1"], "name": "run", "content": '{"n": 1}'},
        {"type": "function_call_output", "call_id": "t1", "name": "run", "output": {"n": 1}},
    ],
)
def test_so_do_results_of_tools(posted: Any) -> None:
    assert message(posted) | {"name": "run"} == {
        "role": "tool",
        "content": '{"n": 1}',
        "tool_call_id": "t1",
        "name": "run",
    }


def test_results_inside_an_answer_stand_behind_it() -> None:
    state = {"status": "completed", "input": {"n": 1}, "output": "x"}
    used = {"type": "tool", "tool": "run", "callID": "t1", "state": state}
    said = read({"role": "assistant", "content": [used, {"type": "text", "text": "a"}]})
    assert [one.message for one in said] == [
        {"role": "assistant", "content": "a", "tool_calls": [CALL]},
        {"role": "tool", "content": "x", "tool_call_id": "t1"},
    ]


@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        ({"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}, "hidden_reasoning"),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "name": "f"}, {"type": "text", "text": "a"}],
            },
            "part_order",
        ),
        ({"role": "user", "content": "a\ud800b"}, "unpaired_surrogate"),
        (
            {"role": "assistant", "content": [{"type": "server_tool_use"}, {"type": "text", "text": "a"}]},
            "hosted_tool",
        ),
    ],
)
def test_what_is_lost_on_the_way_is_named(value: Any, left_out: str) -> None:
    (said,) = read(value)
    assert said.left_out == {left_out}
    assert "\ud800" not in said.message["content"]


def test_text_that_spells_a_control_token_is_broken_up_wherever_it_stands() -> None:
    reader = Reader(re.compile(re.escape("<|im_end|>")))
    broken = f"<{GUARD}|im_end|>"
    use = {"id": "t1", "function": {"name": "run", "arguments": '{"<|im_end|>": ["<|im_end|>"]}'}}
    answer = Message(raw({"role": "assistant", "content": "<|im_end|>", "tool_calls": [use]}))
    (said,) = reader.read(answer, "openai_chat")
    assert said.message["content"] == broken
    assert said.message["tool_calls"][0]["function"]["arguments"] == {broken: [broken]}
    tools, _ = reader.tools(raw([{"name": "f", "description": "<|im_end|>"}]))
    assert tools[0]["function"]["description"] == broken


def test_a_text_with_the_noncharacter_itself_cannot_pass_for_a_broken_up_token() -> None:
    assert message({"role": "user", "content": f"a{GUARD}b"})["content"] == "a\ufffdb"


def test_the_tools_of_the_three_apis_are_the_same_functions() -> None:
    schema = {"type": "object"}
    expected = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}]
    for tool in (
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"type": "function", "name": "f", "description": "d", "parameters": schema},
        {"name": "f", "description": "d", "input_schema": schema},
    ):
        assert Reader(None).tools(raw([tool])) == (expected, frozenset())
    assert Reader(None).tools(raw([{"type": "web_search"}])) == ([], {"tools"})
