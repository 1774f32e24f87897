"""A server on loopback that decodes what it is sent and answers as it is told."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import zstandard

from tracestore.wire.decode import Decoded, Limits, decode_body
from tracestore.wire.errors import BodyError
from tracestore.wire.events import AnyEvent


@dataclass
class Request:
    """One POST /v1/events as it came."""

    headers: dict[str, str]
    text: bytes
    items: list[Decoded]


Answer = tuple[int, dict[str, str], Any]
"""Status, headers, JSON body."""


@dataclass
class Fake:
    """What the server knows and does. Events are kept by key, as a store keeps them."""

    url: str = ""
    limits: dict[str, int] = field(default_factory=dict)
    encodings: Sequence[str] = ("gzip",)
    requests: list[Request] = field(default_factory=list)
    texts: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)
    answers: list[Answer | Callable[[], Answer | None]] = field(default_factory=list)
    """Answered first, in this order, without storing; a callable may return None to store after all."""

    def post(self, request: Request) -> Answer:
        self.requests.append(request)
        while self.answers:
            answer = self.answers.pop(0)
            answer = answer() if callable(answer) else answer
            if answer is not None:
                return answer
        return self.store(request)

    def store(self, request: Request) -> Answer:
        items = [self._store_item(one) for one in request.items]
        kept = sum(item["status"] in ("stored", "duplicate") for item in items)
        status = 200 if kept == len(items) else 207 if kept else 422
        return status, {}, {"items": items, "stored": kept}

    def _store_item(self, one: Decoded) -> dict[str, Any]:
        item = {"index": one.index, "kind": one.kind, "id": one.id, "problem": None}
        if one.event is None:
            assert one.error is not None
            return {**item, "status": "invalid", "problem": {"title": "refused", "detail": one.error.problem}}
        key = (one.event.kind, one.event.id, getattr(one.event, "phase", "whole"))
        if key in self.texts:
            same = self.texts[key] == one.text
            return {
                **item,
                "status": "duplicate" if same else "conflict",
                "problem": None if same else "other value",
            }
        self.texts[key] = one.text
        self.events.append(one.event)
        return {**item, "status": "stored"}

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]


@contextmanager
def fake_server(fake: Fake | None = None, *, port: int = 0) -> Iterator[Fake]:
    """A running server. Pass the same Fake and port again to bring one back."""
    fake = fake or Fake()
    connections: list[socket.socket] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            limits = {"max_event_bytes": 2**24, "max_body_bytes": 2**28, "max_events": 10_000} | fake.limits
            self._answer(
                200, {}, {"wire_versions": [1], "limits": limits, "content_encodings": list(fake.encodings)}
            )

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            coding = self.headers.get("Content-Encoding")
            if coding == "gzip":
                body = gzip.decompress(body)
            if coding == "zstd":
                body = zstandard.decompress(body)
            try:
                items = decode_body(
                    body, content_type=self.headers["Content-Type"], limits=Limits(**fake.limits)
                )
            except BodyError as error:
                self._answer(error.status, {}, {"title": error.title, "detail": str(error)})
                return
            self._answer(*fake.post(Request(dict(self.headers), body, items)))

        def _answer(self, status: int, headers: dict[str, str], answer: Any) -> None:
            text = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        block_on_close = False
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().finish_request(request, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a client that goes away is part of these tests

    with Server(("127.0.0.1", port), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
            for connection in connections:  # those that are kept alive too: the server is gone
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
