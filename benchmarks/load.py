"""Requests written beforehand -> answers: many connections, one thread, little CPU of its own.

It shares the cores with the server it measures, so it builds nothing while the clock runs: what is sent is
whole HTTP/1.1 requests, and of an answer only its status and its length are looked at.
"""

from __future__ import annotations

import http.client
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Address = tuple[str, int]

_BUSY = (429, 503)
_PAUSE_S = 0.05
"""After a server said that it is busy. All connections wait: no server is sent more than it takes."""
_POLL_S = 0.05
_TIMEOUT_S = 600
_RECEIVE_BYTES = 1 << 16
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


@dataclass
class Answers:
    """What came back, in no order."""

    bodies: list[bytes] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """From the first byte sent to the last one received, by request."""
    num_busy: int = 0
    """Answers of a server that had no room; the request was sent again."""


def request(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A POST as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def post_all(address: Address, requests: Sequence[bytes], *, connections: int) -> Answers:
    """Send every request, each connection the next one as soon as its answer is there.

    Raises:
        RuntimeError: an answer is neither 200 nor that the server is busy.
    """
    answers = Answers()
    waiting = deque(requests)
    with selectors.DefaultSelector() as selector:
        for _ in range(min(connections, len(requests))):
            connection = _Connection(address, selector)
            connection.send(waiting.popleft())
        while selector.get_map():
            ready = selector.select(timeout=_TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"no answer for {_TIMEOUT_S} s")
            for key, events in ready:
                connection = key.data
                if events & selectors.EVENT_WRITE:
                    connection.send_more()
                elif connection.receive():
                    _take(connection, answers, waiting)
    return answers


def _take(connection: _Connection, answers: Answers, waiting: deque[bytes]) -> None:
    if connection.status in _BUSY:
        answers.num_busy += 1
        waiting.appendleft(connection.sent)
        time.sleep(_PAUSE_S)
    elif connection.status != 200:
        raise RuntimeError(f"{connection.status}: {connection.body[:500]!r}")
    else:
        answers.bodies.append(connection.body)
        answers.seconds.append(time.perf_counter() - connection.begun)
    if waiting:
        connection.send(waiting.popleft())
    else:
        connection.close()


class _Connection:
    """One request at a time."""

    def __init__(self, address: Address, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ, self)
        self._event = selectors.EVENT_READ
        self._rest = memoryview(b"")
        self._received = b""
        self.sent = b""
        self.begun = 0.0
        self.status = 0
        self.body = b""

    def send(self, data: bytes) -> None:
        self.sent, self._rest, self._received = data, memoryview(data), b""
        self.begun = time.perf_counter()
        self.send_more()

    def send_more(self) -> None:
        """As much as the socket takes; then wait for it, or for the answer."""
        try:
            while self._rest:
                self._rest = self._rest[self._socket.send(self._rest) :]
        except BlockingIOError:
            self._wait_for(selectors.EVENT_WRITE)
        else:
            self._wait_for(selectors.EVENT_READ)

    def _wait_for(self, event: int) -> None:
        if event != self._event:  # mostly it is the same: a call into the system less
            self._selector.modify(self._socket, event, self)
            self._event = event

    def receive(self) -> bool:
        """Read what is there; says whether the answer is whole, `status` and `body` then hold it."""
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RuntimeError(f"the server closed the connection: {self._received[:500]!r}")
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return False
        length = _LENGTH.search(head + b"\r\n")
        if length is None:
            raise RuntimeError(f"an answer without its length: {head!r}")
        if len(body) < int(length[1]):
            return False
        self.status, self.body = int(head[9:12]), body
        return True

    def close(self) -> None:
        self._selector.unregister(self._socket)
        self._socket.close()


def exchange(
    address: Address,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def seconds_until(is_visible: Callable[[], bool], *, since: float) -> float:
    """When something could be read, in seconds after `since`: the moment the first look that saw it began."""
    while True:
        looked = time.perf_counter()
        if is_visible():
            return looked - since
        if looked - since > _TIMEOUT_S:
            raise RuntimeError(f"not to be read after {_TIMEOUT_S} s")
        time.sleep(_POLL_S)
