from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import as_lines, assert_builds, assert_order_free, assert_perturbation, read_data

START = {
    "type": "message_start",
    "message": {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "usage": None,
    },
}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
STOP = {"type": "message_stop"}
WHOLE = {"id": "m1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "hi"}]}


def sse(*events: dict[str, Any]) -> bytes:
    return "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events).encode()


def test_a_stream_as_events_or_as_lines_is_one_call_without_its_request() -> None:
    events = (START, BLOCK, DELTA, END, STOP)
    bare = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events)
    for data in (sse(*events), b": hello\n\n" + sse(*events), bare, as_lines(*events)):
        imported = read_data(data)
        (call,) = imported.of("call")
        assert call.completions[0].message.value()["content"] == [{"type": "text", "text": "hi"}]
        assert (call.request, call.status, call.model, call.provider_id) == (None, "ok", "c", "m1")
        assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]
        assert imported.notes.rows["stream event/content_block_delta"] == 1
        assert_builds(imported)


def test_a_stream_that_ends_early_is_an_aborted_call() -> None:
    for data in (sse(START, BLOCK, DELTA), sse(START, BLOCK, DELTA) + b'event: content\ndata: {"typ'):
        (call,) = read_data(data).of("call")
        assert (call.status, call.completions[0].partial) == ("aborted", True)
        assert call.completions[0].message.value()["content"] == [{"type": "text", "text": "hi"}]


def test_each_line_that_is_a_whole_answer_is_a_call() -> None:
    imported = read_data(as_lines(WHOLE, WHOLE, {**WHOLE, "stop_reason": "end_turn"}))
    assert sorted(call.ordinal for call in imported.of("call")) == [0, 1, 2]
    assert len(imported.of("episode")) == 1


def test_chunks_of_gemini_are_one_answer_and_whole_ones_several() -> None:
    def candidate(text: str, **fields: Any) -> dict[str, Any]:
        content = {"role": "model", "parts": [{"text": text}]}
        return {"candidates": [{"content": content, **fields}], "modelVersion": "g"}

    (call,) = read_data(as_lines(candidate("a"), candidate("b", finishReason="STOP"))).of("call")
    assert [part["text"] for part in call.completions[0].message.value()["parts"]] == ["a", "b"]
    whole = candidate("a", finishReason="STOP")
    assert len(read_data(as_lines(whole, whole)).of("call")) == 2


def test_an_error_alone_in_a_stream_is_a_failed_call() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}}
    imported = read_data(sse(error))
    (call,) = imported.of("call")
    assert (call.status, call.error.type, call.error.message) == ("failed", "overloaded_error", "later")
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]


def test_records_that_make_no_answer_are_shown() -> None:
    imported = read_data(as_lines({"some": "record"}, {"other": 1}), format="provider-answers")
    assert imported.events == []
    assert "provider-answers: records that make no answer" in imported.notes.not_understood


def test_bytes_that_are_no_text_are_refused_with_their_place() -> None:
    imported = read_data(b"data: {\xff}\n\n", format="provider-answers")
    assert imported.events == []
    assert imported.notes.refused == ["file-0: no UTF-8 at byte 7: invalid start byte"]


def test_copies_in_any_order_are_one() -> None:
    assert_order_free(sse(START, BLOCK, DELTA, END, STOP), as_lines(WHOLE))


def test_no_value_of_a_stream_or_a_body_changes_without_a_trace() -> None:
    assert_perturbation(as_lines(START, BLOCK, DELTA, END, STOP), limit=100)
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas = [{"role": "assistant", "content": "a"}, {"content": "b"}, {}]
    reasons = [None, None, "stop"]
    chunks = [
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}]}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    assert_perturbation(as_lines(*chunks), limit=100)
    usage = {"input_tokens": 1, "output_tokens": 2, "service_tier": "s", "cache_read_input_tokens": 0}
    assert_perturbation(as_lines({**WHOLE, "usage": usage, "stop_reason": None}), limit=100)
