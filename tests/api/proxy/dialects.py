"""Answers as OpenAI, Anthropic, vLLM and SGLang give them, small, and written by hand."""

from __future__ import annotations

import json
from typing import Any

QUESTION = {"role": "user", "content": "Wie heißt du?"}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
TOOL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1.50}'}}


def body_of(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def chat(*texts: str, **fields: Any) -> bytes:
    """A chat completion with one choice a text."""
    choices = [
        {"index": place, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for place, text in enumerate(texts)
    ]
    return body_of(
        {"id": "c1", "object": "chat.completion", "model": "m-1", "choices": choices, "usage": USAGE} | fields
    )


def events(*values: Any, done: bool = False, named: bool = False) -> bytes:
    """Server-sent events of these values."""
    texts = [
        (f"event: {value['type']}\n" if named else "") + f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
        for value in values
    ]
    return "".join([*texts, "data: [DONE]\n\n" if done else ""]).encode()


def chunk(delta: Any, *, reason: str | None = None, index: int = 0, **fields: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    return head | {"choices": [choice | fields]}


CHAT_STREAM = events(
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm"}),
    chunk({"content": "Ic"}),
    chunk({"content": "h - 🙂"}),
    chunk({"tool_calls": [{"index": 0, **TOOL, "function": {"name": "look", "arguments": '{"at": '}}]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1.50}"}}]}),
    chunk({}, reason="tool_calls"),
    {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m-1",
        "choices": [],
        "usage": USAGE,
    },
    done=True,
)
CHAT_STREAM_MESSAGE = {
    "role": "assistant",
    "content": "Ich - 🙂",
    "reasoning_content": "Hm",
    "tool_calls": [TOOL],
}

ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "Ich"},
        {"type": "tool_use", "id": "tu_1", "name": "look", "input": {"at": 1.5}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 4, "output_tokens": 3, "cache_read_input_tokens": 10},
}
ANTHROPIC_STREAM = events(
    {"type": "message_start", "message": ANTHROPIC | {"content": [], "stop_reason": None}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "ping"},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Ic"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "h 🙂"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
    named=True,
)

ITEMS = [
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Ich 🙂", "annotations": []}],
    },
    {
        "id": "fc_1",
        "type": "function_call",
        "call_id": "call_1",
        "name": "look",
        "arguments": '{"at": 1.50}',
        "status": "completed",
    },
]


def response(id_: str = "resp_1", *, items: Any = None, **fields: Any) -> dict[str, Any]:
    """A Responses object."""
    return {
        "id": id_,
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "m-1",
        "output": ITEMS if items is None else items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 7,
        },
    } | fields


RESPONSE_STREAM = events(
    {"type": "response.created", "sequence_number": 0, "response": response(items=[], status="in_progress")},
    {
        "type": "response.output_item.added",
        "sequence_number": 1,
        "output_index": 0,
        "item": ITEMS[0] | {"content": [], "status": "in_progress"},
    },
    {
        "type": "response.content_part.added",
        "sequence_number": 2,
        "output_index": 0,
        "content_index": 0,
        "item_id": "msg_1",
        "part": {"type": "output_text", "text": "", "annotations": []},
    },
    {
        "type": "response.output_text.delta",
        "sequence_number": 3,
        "output_index": 0,
        "content_index": 0,
        "item_id": "msg_1",
        "delta": "Ich 🙂",
        "logprobs": [],
    },
    {"type": "response.output_item.done", "sequence_number": 4, "output_index": 0, "item": ITEMS[0]},
    {"type": "response.completed", "sequence_number": 5, "response": response(items=ITEMS[:1])},
    named=True,
)
