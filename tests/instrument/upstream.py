"""A model provider on loopback that answers what it is told, and keeps what it was sent."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar


@dataclass(frozen=True)
class Reply:
    """One response: JSON, or a stream of events that may break off before its end."""

    body: Any = None
    events: Sequence[str] | None = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    is_gzipped: bool = False
    breaks: bool = False
    """Close the connection without the end of the body; without events, without any answer."""


@dataclass
class Upstream:
    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: ClassVar[Upstream]

    def do_POST(self) -> None:
        self.upstream.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        reply = self.upstream.replies.pop(0)
        if reply.events is None and reply.breaks:
            self.close_connection = True
            return
        text = json.dumps(reply.body).encode()
        if reply.events is not None:
            text = "".join(reply.events).encode()
        if reply.is_gzipped:
            text = gzip.compress(text, mtime=0)
        self.send_response(reply.status)
        kind = "application/json" if reply.events is None else "text/event-stream"
        coding = {"Content-Encoding": "gzip"} if reply.is_gzipped else {}
        for name, value in ({"Content-Type": kind, "x-request-id": "req_1"} | coding | reply.headers).items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for start in range(0, len(text), 40):
            part = text[start : start + 40]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        if reply.breaks:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a reader that leaves early is part of these tests


@contextmanager
def running_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        upstream.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        try:
            yield upstream
        finally:
            server.shutdown()
            thread.join()


def chat(
    *texts: str, tool: tuple[str, str, str] | None = None, ids: Sequence[int] | None = None, **more: Any
) -> dict[str, Any]:
    """A chat completion with a choice for each text, the first with a tool call (id, name, arguments)."""
    choices: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if tool is not None and index == 0:
            call = {"id": tool[0], "type": "function", "function": {"name": tool[1], "arguments": tool[2]}}
            message["tool_calls"] = [call]
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": "stop"}
        if ids is not None:
            choice["token_ids"] = list(ids)
        choices.append(choice)
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-2026"}
    return {**envelope, "choices": choices, "usage": usage, **more}


def chat_stream(*texts: str, is_done: bool = True) -> list[str]:
    """The same as a stream, a chunk for each text."""
    chunks: list[dict[str, Any]] = [
        {"delta": {"role": "assistant", "content": ""}, "finish_reason": None},
        *({"delta": {"content": text}, "finish_reason": None} for text in texts),
    ]
    if is_done:
        chunks.append({"delta": {}, "finish_reason": "stop"})
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-2026"}
    sent = [json.dumps({**envelope, "choices": [{"index": 0, **chunk}]}) for chunk in chunks]
    return [f"data: {one}\n\n" for one in [*sent, *(["[DONE]"] if is_done else [])]]


def response(text: str) -> dict[str, Any]:
    """An answer of the Responses API."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 3},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 7,
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "m-2026",
        "status": "completed",
        "output": [item],
        "usage": usage,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def message(text: str) -> dict[str, Any]:
    """An answer of Anthropic Messages."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [
            {"type": "text", "text": text},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "x"}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }


def message_stream(text: str) -> list[str]:
    """The same as events, of which the last is left out where the text ends with "..."."""
    start = {**message(""), "content": [], "stop_reason": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 2},
        },
        {"type": "message_stop"},
    ]
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events]
