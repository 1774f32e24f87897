"""Whatever an upstream sends, and wherever it breaks off, the recording is a call that the store takes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reliability.test_fuzz import spoiled
from tracestore.importers.items import Item
from tracestore.wire.call import Call
from tracestore.wire.decode import decode_event
from tracestore.wire.limits import LIMITS
from tracestore_api.proxy.calls import Calls
from tracestore_api.proxy.capture import Capture
from tracestore_api.proxy.lineage import Lineage
from tracestore_api.proxy.names import Names

ASKED = json.dumps({"model": "m", "messages": [{"role": "user", "content": "q"}], "stream": True}).encode()
STREAM = "text/event-stream"


def events(*data: Any) -> bytes:
    """Server-sent events; a type stands before the data that name one."""
    told = []
    for one in data:
        kind = one.get("type") if isinstance(one, dict) else None
        text = one if isinstance(one, str) else json.dumps(one)
        told.append((f"event: {kind}\n" if kind else "") + f"data: {text}\n\n")
    return "".join(told).encode()


def chunk(delta: dict[str, Any], *, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "id": "x",
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": reason, **more}],
    }


USE = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}
SCORED = {"content": [{"token": "token_id:5", "logprob": -0.25, "bytes": None, "top_logprobs": []}]}
ANSWERS: list[tuple[str, str, bytes]] = [
    (
        "/v1/chat/completions",
        STREAM,
        events(
            chunk({"role": "assistant", "content": "he"}, logprobs=SCORED, token_ids=[5]),
            chunk({"reasoning_content": "hm", "tool_calls": [USE]}),
            chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}, reason="tool_calls"),
            {"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            "[DONE]",
        ),
    ),
    (
        "/v1/chat/completions",
        "application/json",
        json.dumps(
            {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}}]}
        ).encode(),
    ),
    (
        "/v1/messages",
        STREAM,
        events(
            {
                "type": "message_start",
                "message": {"id": "m", "role": "assistant", "content": [], "usage": {}},
            },
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": "t", "input": {}},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"a'},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
        ),
    ),
    (
        "/v1/responses",
        STREAM,
        events(
            {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "message", "content": []},
            },
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "he"},
            {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": []}},
        ),
    ),
]


def recorded(captures: Sequence[Capture]) -> list[Item]:
    """What is stored of calls that passed one after the other."""
    calls = Calls(Lineage(lambda project, agent: None), limits=LIMITS)
    return [item for capture in captures for item in calls.of(capture).items]


def capture_of(path: str, media_type: str, chunks: Sequence[bytes], *, coding: str, status: int) -> Capture:
    capture = Capture(
        project="p",
        names=Names(),
        call_id="c",
        url=f"http://127.0.0.1{path}",
        method="POST",
        request=ASKED,
        request_headers=[(b"content-type", b"application/json")],
        room=2**20,
    )
    capture.status = status
    capture.response_headers = [
        (b"content-type", media_type.encode()),
        (b"content-encoding", coding.encode()),
    ]
    for piece in chunks:
        capture.take(piece)
    capture.end()
    return capture


@st.composite
def captures(draw: st.DrawFn) -> Capture:
    """An answer in any pieces, spoiled or not, packed or not, under any status."""
    path, media_type, body = draw(st.sampled_from(ANSWERS))
    body = draw(spoiled(st.just(body)))
    coding = draw(st.sampled_from(["identity", "identity", "gzip", "zstd", "br", ""]))
    packed = {"gzip": gzip.compress, "zstd": zstandard.compress}.get(coding, bytes)(body)
    if coding in ("gzip", "zstd") and draw(st.booleans()):
        packed = draw(spoiled(st.just(packed)))
    cuts = sorted(draw(st.lists(st.integers(0, len(packed)), max_size=4)))
    pieces = [packed[a:b] for a, b in zip([0, *cuts], [*cuts, len(packed)], strict=True)]
    status = draw(st.sampled_from([200, 200, 200, 429, 500, 204]))
    return capture_of(path, media_type, pieces, coding=coding, status=status)


@settings(max_examples=40)
@given(capture=captures())
def test_any_answer_is_recorded_as_a_call_with_its_request_as_it_was_sent(capture: Capture) -> None:
    is_recorded(capture)


@pytest.mark.soak
@settings(max_examples=5_000)
@given(capture=captures())
def test_any_of_many_answers_is_recorded(capture: Capture) -> None:
    is_recorded(capture)


def is_recorded(capture: Capture) -> None:
    items = recorded([capture])
    taken = [decode_event(item.text, limits=LIMITS) for item in items]
    [call] = [event for event in taken if isinstance(event, Call)]
    assert call.request == ASKED
