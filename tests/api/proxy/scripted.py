"""A real HTTP server on loopback that answers byte by byte as it is told, and a proxy in front of it."""

from __future__ import annotations

import socketserver
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import uvicorn

from tracestore.settings import SETTINGS, Settings
from tracestore.store.blobs import Blobs
from tracestore.store.store import Store
from tracestore_api.app import create_app
from tracestore_api.proxy.route import Proxy
from tracestore_api.replay import Times


@dataclass(frozen=True)
class Seen:
    """A request that reached the upstream."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for one, value in self.headers if one.lower() == name), None)


@dataclass(frozen=True)
class Said:
    """What the upstream answers."""

    body: bytes | Sequence[bytes] = b""
    """Pieces: sent one by one, each a chunk of its own where there is no length."""
    status: int = 200
    headers: Sequence[tuple[str, str]] = (("content-type", "application/json"),)
    has_length: bool = True
    pause_s: float = 0.0
    """Between pieces."""
    breaks: bool = False
    """The connection ends after the last piece, before the body does."""


def sse(*pieces: bytes, **fields: Any) -> Said:
    """A stream of events."""
    return Said(pieces, headers=(("content-type", "text/event-stream"),), has_length=False, **fields)


@dataclass
class Upstream:
    """Answers requests in order; `otherwise` where nothing is scripted."""

    url: str = ""
    script: deque[Said] = field(default_factory=deque)
    seen: list[Seen] = field(default_factory=list)
    otherwise: Callable[[Seen], Said] | None = None
    hung_up: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away while it was answered."""

    def says(self, *answers: Said) -> None:
        self.script.extend(answers)

    def answer(self, seen: Seen) -> Said:
        self.seen.append(seen)
        if self.script:
            return self.script.popleft()
        assert self.otherwise is not None, f"nothing is scripted for {seen.method} {seen.target}"
        return self.otherwise(seen)


class _Handler(socketserver.StreamRequestHandler):
    disable_nagle_algorithm = True
    upstream: Upstream

    def handle(self) -> None:
        with suppress(ConnectionError):
            while self._answer():
                pass

    def _answer(self) -> bool:
        line = self.rfile.readline()
        if not line:
            return False
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers: list[tuple[str, str]] = []
        while line := self.rfile.readline().rstrip(b"\r\n"):
            name, _, value = line.decode("latin-1").partition(":")
            headers.append((name, value.strip()))
        length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        said = self.upstream.answer(Seen(method, target, headers, self.rfile.read(length)))
        try:
            self._say(said)
        except OSError:
            self.upstream.hung_up.set()
            return False
        return not said.breaks

    def _say(self, said: Said) -> None:
        pieces = [said.body] if isinstance(said.body, bytes) else list(said.body)
        head = [f"HTTP/1.1 {said.status} Said", *(f"{name}: {value}" for name, value in said.headers)]
        size = sum(map(len, pieces)) + (1 if said.breaks else 0)
        head.append(f"content-length: {size}" if said.has_length else "transfer-encoding: chunked")
        self.wfile.write("\r\n".join([*head, "", ""]).encode("latin-1"))
        for piece in pieces:
            self.wfile.write(piece if said.has_length else b"%x\r\n%b\r\n" % (len(piece), piece))
            time.sleep(said.pause_s)
        if not said.has_length and not said.breaks:
            self.wfile.write(b"0\r\n\r\n")


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        raise AssertionError("the scripted upstream failed")


@contextmanager
def scripted_upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    handler = type("Handler", (_Handler,), {"upstream": upstream})
    with _Server(("127.0.0.1", 0), handler) as server:
        upstream.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield upstream
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Running:
    """A service with its proxy."""

    url: str
    """Of the proxy: where the upstream's paths begin."""
    proxy: Proxy
    store: Store

    @property
    def host(self) -> tuple[str, int]:
        where = urlsplit(self.url)
        assert where.hostname is not None
        assert where.port is not None
        return where.hostname, where.port

    def settle(self, *, project: str = "default") -> None:
        """Return when everything of a project that passed is recorded."""
        while self.proxy.status(project)["passing"]:
            time.sleep(0.005)
        self.proxy.recorder.settle()

    def events(self, kind: str, *, project: str = "default") -> list[Any]:
        """All stored events of a kind, when everything that passed is recorded."""
        self.settle(project=project)
        groups = self.store.groups(project)
        ids = [episode for group in groups for episode in group.episode_ids]
        return [event for id_ in ids for event in self.store.load(project, id_) if event.kind == kind]

    def calls(self) -> list[Any]:
        """All stored calls, in the order in which they began."""
        return sorted(self.events("call"), key=lambda call: call.started_at)


@contextmanager
def running_proxy(
    store: Store,
    upstream: str,
    *,
    inject: bool = False,
    settings: Settings = SETTINGS,
    replay_times: Times = "at-once",
    blobs: Blobs | None = None,
) -> Iterator[Running]:
    """The service in a thread of this process; the upstream's paths begin below `/proxy`."""
    proxy = Proxy(store, upstream=upstream, inject=inject, settings=settings)
    config = uvicorn.Config(
        create_app(store, settings=settings, proxy=proxy, replay_times=replay_times, blobs=blobs),
        port=0,
        log_level="critical",
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the service did not start"
            time.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Running(f"http://127.0.0.1:{port}/proxy", proxy, store)
    finally:
        server.should_exit = True
        thread.join()
