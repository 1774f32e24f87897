"""A server on loopback that decodes what it is sent and answers as it is told."""

from __future__ import annotations

import gzip
import hashlib
import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar

import zstandard

from tracestore.wire.decode import Decoded, Limits, decode_body
from tracestore.wire.errors import BodyError
from tracestore.wire.events import AnyEvent, revision_of


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
    texts: dict[tuple[str, str, str, int], bytes] = field(default_factory=dict)
    events: list[AnyEvent] = field(default_factory=list)
    answers: list[Answer | Callable[[], Answer | None]] = field(default_factory=list)
    """Answered first, in this order, without storing; a callable may return None to store after all."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    """By hash; `limits` must state max_offloaded_event_bytes for a client to send any."""
    key: str | None = None
    """Without it in a request, the answer is 401."""
    meta_reads: int = 0
    connections: list[socket.socket] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Of the fake itself: a test that met one fails."""

    def post(self, request: Request) -> Answer:
        self.requests.append(request)
        while self.answers:
            answer = self.answers.pop(0)
            answer = answer() if callable(answer) else answer
            if answer is not None:
                return answer
        return self.store(request)

    def store(self, request: Request) -> Answer:
        items = [{**self.store_item(one), "index": place} for place, one in enumerate(request.items)]
        kept = sum(item["status"] in ("stored", "duplicate") for item in items)
        status = 200 if kept == len(items) else 207 if kept else 422
        return status, {}, {"items": items, "stored": kept}

    def store_item(self, one: Decoded) -> dict[str, Any]:
        item = {"index": one.index, "kind": one.kind, "id": one.id, "problem": None}
        if one.event is None:
            assert one.error is not None
            return {**item, "status": "invalid", "problem": {"title": "refused", "detail": one.error.problem}}
        key = (one.event.kind, one.event.id, getattr(one.event, "phase", "whole"), revision_of(one.event))
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

    def read(self, body: bytes, content_type: str) -> list[Decoded]:
        """The events of a body, each reference to a blob replaced by the event in it."""
        limits = {name: value for name, value in self.limits.items() if name != "max_offloaded_event_bytes"}
        items = decode_body(body, content_type=content_type, limits=Limits(**limits))
        return [self._whole(one) if b'"offloaded"' in one.text[:400] else one for one in items]

    def _whole(self, one: Decoded) -> Decoded:
        named = json.loads(one.text)
        text = self.blobs[named["offloaded"]["hash"]]
        assert named == {"v": 1, "kind": named["kind"], "id": named["id"], "offloaded": named["offloaded"]}
        assert named["offloaded"]["size"] == len(text)
        (whole,) = decode_body(text, content_type="application/json", limits=Limits())
        assert (whole.kind, whole.id) == (named["kind"], named["id"])
        return whole

    def hang_up(self) -> None:
        """Close all connections, those that are kept alive too."""
        while self.connections:
            with suppress(OSError):
                self.connections.pop().shutdown(socket.SHUT_RDWR)

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: ClassVar[Fake]

    def do_HEAD(self) -> None:
        self._answer(200 if self.path.rpartition("/")[2] in self.fake.blobs else 404, {}, None)

    def do_PUT(self) -> None:
        payload = self.rfile.read(int(self.headers["Content-Length"]))
        name = self.path.removeprefix("/v1/blobs/")
        if name != hashlib.sha256(payload).hexdigest():
            self._answer(422, {}, {"title": "other bytes"})
        elif len(payload) > self.fake.limits.get("max_offloaded_event_bytes", 0):
            self._answer(413, {}, {"title": "too large"})
        else:
            self.fake.blobs[name] = payload
            self._answer(201, {}, {"hash": name, "size": len(payload), "status": "stored"})

    def do_GET(self) -> None:
        self.fake.meta_reads += 1
        limits = {"max_event_bytes": 2**24, "max_body_bytes": 2**28, "max_events": 10_000} | self.fake.limits
        self._answer(
            200, {}, {"wire_versions": [1], "limits": limits, "content_encodings": list(self.fake.encodings)}
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        coding = self.headers.get("Content-Encoding")
        if coding == "gzip":
            body = gzip.decompress(body)
        if coding == "zstd":
            body = zstandard.decompress(body)
        if self.fake.key is not None and self.headers["Authorization"] != f"Bearer {self.fake.key}":
            self._answer(401, {}, {"title": "No key", "detail": "No key: send a key"})
            return
        try:
            items = self.fake.read(body, self.headers["Content-Type"])
        except BodyError as error:
            self._answer(error.status, {}, {"title": error.title, "detail": str(error)})
            return
        self._answer(*self.fake.post(Request(dict(self.headers), body, items)))

    def _answer(self, status: int, headers: dict[str, str], answer: Any) -> None:
        text = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def fake_server(fake: Fake | None = None, *, port: int = 0) -> Iterator[Fake]:
    """A running server. Pass the same Fake and port again to bring one back."""
    fake = fake or Fake()
    connections = fake.connections

    class Server(ThreadingHTTPServer):
        block_on_close = False
        daemon_threads = True

        def finish_request(self, request: Any, client_address: Any) -> None:
            connections.append(request)
            super().finish_request(request, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            fault = sys.exc_info()[1]
            if not isinstance(fault, OSError):  # a client that goes away is part of these tests
                fake.faults.append(repr(fault))

    with Server(("127.0.0.1", port), type("Handler", (_Handler,), {"fake": fake})) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        fake.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
            fake.hang_up()
    assert fake.faults == []
