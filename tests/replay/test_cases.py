"""What people reported of streams and recordings, and what a replay does with it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.proxy import dialects as d
from tests.fixtures import fixture
from tests.replay.conversations import recorded_of
from tracestore.importers.exchanges import answered
from tracestore.replay.answers import body_of, whole_of
from tracestore.replay.streams import stream_of
from tracestore.replay.tape import NotReplayable

SDK_STREAMS = "cassettes/anthropics__anthropic-sdk-python/tests/lib/streaming/fixtures/"
MESSAGES: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": [d.QUESTION]}
CHAT: dict[str, Any] = {"model": "m-1", "messages": [d.QUESTION]}
TOOL_CALLS = [
    d.chunk({"role": "assistant", "content": None}),
    d.chunk({"tool_calls": [{"index": 0, **d.TOOL, "function": {"name": "look", "arguments": '{"at": '}}]}),
]


def test_tool_arguments_that_the_limit_cut_go_out_again_as_a_stream_and_not_as_a_value() -> None:
    text = fixture(f"{SDK_STREAMS}incomplete_partial_json_response.txt").read_bytes()
    recorded = recorded_of("anthropic_messages", MESSAGES, text)
    with pytest.raises(NotReplayable, match="ask for a stream") as refused:
        whole_of(recorded)
    assert refused.value.values["tool"] == "make_file"
    assert refused.value.values["arguments"].endswith('\n"Filing taxes')
    streamed = answered(b"".join(stream_of(body_of(recorded), "anthropic_messages")))
    first = answered(text)
    assert streamed is not None
    assert first is not None
    assert [one.message for one in streamed.choices] == [one.message for one in first.choices]


def test_tool_arguments_that_the_limit_cut_are_a_text_in_chat_and_go_out_again_either_way() -> None:
    response = d.events(*TOOL_CALLS, d.chunk({}, reason="length"), done=True)
    recorded = recorded_of("openai_chat", CHAT, response)
    [choice] = json.loads(whole_of(recorded))["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"at": '


@pytest.mark.parametrize(
    ("dialect", "request_", "response"),
    [
        ("openai_chat", CHAT, d.events(*TOOL_CALLS)),
        (
            "anthropic_messages",
            MESSAGES,
            d.events(
                {"type": "message_start", "message": d.ANTHROPIC | {"content": [], "stop_reason": None}},
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "tool_use", "id": "t", "name": "look", "input": {}},
                },
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": '{"at": '},
                },
                named=True,
            ),
        ),
        (
            "openai_responses",
            {"model": "m-1", "input": "Wie?"},
            d.events(
                {"type": "response.created", "response": d.response(items=[], status="in_progress")},
                {
                    "type": "response.output_item.added",
                    "output_index": 0,
                    "item": d.ITEMS[1] | {"arguments": "", "status": "in_progress"},
                },
                {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"at": '},
                named=True,
            ),
        ),
    ],
    ids=["chat", "anthropic", "responses"],
)
def test_a_stream_that_broke_off_inside_tool_arguments_says_why_it_is_not_sent_again(
    dialect: str, request_: Any, response: bytes
) -> None:
    recorded = recorded_of(dialect, request_, response)
    assert recorded.completions[0].partial
    with pytest.raises(NotReplayable, match="broke off"):
        body_of(recorded)
