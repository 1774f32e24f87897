"""Batches -> one server, over one connection: limits, compression, retries, refused and oversize events."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import itertools
import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tracestore.client.errors import ClientError, PayloadTooLarge, Rejected, RequestRefused, ServerAway

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 4 * 2**20
MAX_PAUSE_S = 5.0
_COMPRESS_FROM_BYTES = 1024
_TAKEN = ("stored", "duplicate")
T = TypeVar("T")
_HEAD = re.compile(rb'\{"v":\d+,"kind":("[a-z_]+"),"id":("(?:[^"\\]|\\.)*")')
"""How the events that this client writes begin."""


@dataclass(frozen=True, slots=True)
class Posted:
    """One event on its way."""

    index: int
    """Its place among the events of its client, or its line in a spool file, from 0."""
    text: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one request may hold: ours, or the server's where that is smaller."""

    max_events: int
    max_body_bytes: int
    """Of a body of several events."""
    max_event_bytes: int
    """A larger event goes as a blob, with a reference in its place."""
    max_offloaded_event_bytes: int
    """And one larger than this not at all; 0: the server takes no blobs in place of events."""


class _Retry(Exception):
    """The same request may succeed later."""

    def __init__(self, problem: str, *, after_s: float | None = None) -> None:
        self.problem = problem
        self.after_s = after_s
        super().__init__(problem)


class _TooLarge(Exception):
    """The body is over the server's limit."""


class Server:
    """One connection, used by one thread. Every method raises _Retry where trying again may help."""

    def __init__(self, url: str, *, headers: Mapping[str, str], timeout_s: float) -> None:
        parts = checked_url(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        assert parts.hostname is not None
        self.url = url
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._path = parts.path.rstrip("/")
        # A project name is UTF-8; http.client would write str as latin-1.
        self._headers = {name: value.encode("utf-8") for name, value in headers.items()}
        self._limits: ServerLimits | None = None
        self._encodings: Sequence[str] = ()

    def limits(self) -> ServerLimits:
        """What the server takes, asked once."""
        if self._limits is None:
            meta = self._answer("GET", "/v1/meta", None, {})
            self._encodings = meta.get("content_encodings") or ()
            stated = meta.get("limits") or {}
            max_body_bytes = stated.get("max_body_bytes", MAX_BATCH_BYTES)
            self._limits = ServerLimits(
                max_events=min(MAX_BATCH_EVENTS, stated.get("max_events", MAX_BATCH_EVENTS)),
                max_body_bytes=min(MAX_BATCH_BYTES, max_body_bytes),
                max_event_bytes=min(max_body_bytes, stated.get("max_event_bytes", max_body_bytes)),
                max_offloaded_event_bytes=stated.get("max_offloaded_event_bytes") or 0,
            )
        return self._limits

    def reach(self) -> None:
        """Ask what it takes, once and without trying again.

        Raises:
            ServerAway: nobody answers there.
            RequestRefused: it does not answer us.
        """
        try:
            self.limits()
        except _Retry as error:
            raise ServerAway(
                problem=f"{self.url}: {error.problem}", hint="is `tracestore serve` running there?"
            ) from None

    def forget_limits(self) -> None:
        """Ask again: a server that was away, or refused what it had allowed, may have others by now."""
        self._limits = None

    def post(self, batch: Sequence[Posted]) -> list[tuple[Posted, Mapping[str, Any]]]:
        """Send a batch whose texts all hold line breaks, or none does, and say what came of each event.

        Raises:
            _TooLarge: send it in parts.
            RequestRefused: trying again does not help (key, address, version).
        """
        # NDJSON has no place for a line break inside a span that is kept as it was sent; an array has.
        lines = not _breaks(batch[0])
        texts = [posted.text for posted in batch]
        body = b"\n".join(texts) if lines else b"[" + b",".join(texts) + b"]"
        headers = {"Content-Type": "application/x-ndjson" if lines else "application/json"}
        if len(body) >= _COMPRESS_FROM_BYTES:
            body, encoding = _compressed(body, self._encodings)
            headers |= {"Content-Encoding": encoding} if encoding else {}
        answer = self._answer("POST", "/v1/events", body, headers)
        items: Any = answer.get("items")
        if not _are_answers(items, len(batch)):
            raise _Retry(f"the server answered for {len(items or ())} of {len(batch)} events")
        return list(zip(batch, items, strict=True))

    def put_blob(self, payload: bytes) -> str:
        """Store a payload by its sha256, and return that in hex. Raises _TooLarge and RequestRefused."""
        digest = hashlib.sha256(payload).hexdigest()
        path = f"/v1/blobs/{digest}"
        # Asked first: of a PUT whose answer was lost, nothing needs to be sent again.
        response, text = self._exchange("HEAD", path, None, {})
        if response.status == 404:
            self._answer("PUT", path, payload, {"Content-Type": "application/octet-stream"})
        elif response.status != 200:
            _read_answer(response, text)
        return digest

    def close(self) -> None:
        self._connection.close()

    def _answer(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        response, text = self._exchange(method, path, body, headers)
        return _read_answer(response, text)

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        while True:
            was_used = self._connection.sock is not None
            try:
                self._send(method, path, body, headers)
                response = self._connection.getresponse()
                return response, response.read()
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                # A server may close an idle connection at the moment it is used again: no sign of trouble.
                if not (was_used and isinstance(error, ConnectionError)):
                    raise _Retry(f"{type(error).__name__}: {error}") from None

    def _send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        try:
            self._connection.request(method, self._path + path, body, {**self._headers, **headers})
        except (BrokenPipeError, ConnectionResetError):
            # A server may refuse a body before it has read it all: its answer says why.
            if self._connection.sock is None:
                raise  # but this one did not even take the connection


def checked_url(url: str) -> Any:
    """The parts of a server's URL.

    Raises:
        ClientError: it is none, or holds more than an address. It is not shown then: it may hold a password.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        is_usable = parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise ClientError(hint="the server is an http:// or https:// URL, such as http://127.0.0.1:8421")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ClientError(
            hint="the server's URL holds an address alone: the key goes into api_key or TRACESTORE_API_KEY"
        )
    return parts


def _breaks(posted: Posted) -> bool:
    return b"\n" in posted.text


def _read_answer(response: http.client.HTTPResponse, text: bytes) -> dict[str, Any]:
    status = response.status
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        answer = {"detail": text[:200].decode("utf-8", "replace")}
        status = 502 if status < 300 else status  # whoever answers 200 without JSON is not the server
    if status in (200, 201, 207) or (status == 422 and "items" in answer):
        return answer
    problem = f"{status} {response.reason}: {_problem_text(answer)}"
    if status == 413:
        raise _TooLarge(problem)
    if status in (408, 425, 429) or status >= 500:
        raise _Retry(problem, after_s=_seconds(response.getheader("Retry-After")))
    raise RequestRefused(http_status=status, hint=problem)


def _are_answers(items: Any, count: int) -> bool:
    return isinstance(items, list) and len(items) == count and all(isinstance(item, dict) for item in items)


def _rejected(posted: Posted, item: Mapping[str, Any]) -> Rejected:
    problem = item.get("problem")
    text = _problem_text(problem) if isinstance(problem, Mapping) else str(problem)
    return Rejected(posted.index, item.get("kind"), item.get("id"), str(item.get("status")), text)


def _problem_text(problem: Mapping[str, Any]) -> str:
    """problem+json as one line; a part that another one repeats is said once."""
    stated = (problem.get(name) for name in ("title", "detail", "hint"))
    parts = list(dict.fromkeys(str(part) for part in stated if part))
    return "; ".join(part for part in parts if not any(part in other for other in parts if other != part))


def _seconds(header: str | None) -> float | None:
    """What Retry-After says, as seconds or as a date; None where it says nothing."""
    try:
        value = float(header or "")
    except ValueError:
        try:
            value = parsedate_to_datetime(header or "").timestamp() - time.time()
        except ValueError:
            return None
        value = max(0.0, value)
    return value if math.isfinite(value) and value >= 0 else None


def _compressed(body: bytes, encodings: Sequence[str]) -> tuple[bytes, str | None]:
    if "zstd" in encodings and (compress := _zstd()) is not None:
        return compress(body, 1), "zstd"
    if "gzip" in encodings:
        return gzip.compress(body, compresslevel=1, mtime=0), "gzip"
    return body, None


def _zstd() -> Callable[[bytes, int], bytes] | None:
    # Looked for when first needed: importing the client must not import what happens to be installed.
    try:
        from compression.zstd import compress  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from zstandard import compress
        except ImportError:
            return None
    found: Callable[[bytes, int], bytes] = compress
    return found


# --- Batches ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Patience:
    """How long a server that does not answer is tried again before it counts as away."""

    seconds: Callable[[], float]
    """Since the first try; asked before each pause, because it may change meanwhile."""
    stopped: threading.Event
    """Ends a pause."""
    on_trouble: Callable[[str], object]
    """Told the problem once, when a second has passed."""
    _told: bool = False

    def pause(self, error: _Retry, *, attempt: int, began: float) -> bool:
        """Wait before the next try; False where there is to be none."""
        pause = min(MAX_PAUSE_S, 0.05 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1)
        pause = max(pause, error.after_s or 0.0)
        elapsed = time.monotonic() - began
        if elapsed > 1 and not self._told:
            self._told = True
            self.on_trouble(error.problem)
        return elapsed + pause <= self.seconds() and not self.stopped.wait(pause)


def deliver(
    server: Server,
    batch: Sequence[Posted],
    *,
    patience: Patience,
    on_taken: Callable[[Posted, str], object] | None = None,
) -> list[Rejected]:
    """Send a batch until the server has it, in parts where it is too large for one request.

    Args:
        on_taken: told of each event that the server has, and whether it is `stored` or a `duplicate`.

    Raises:
        ServerAway: it did not answer for as long as `patience` has, or the client stopped.
        RequestRefused: trying again does not help.
    """
    delivery = _Delivery(server, on_taken)
    return _tried(server, lambda: delivery.send(batch), patience)


def send_payload(server: Server, payload: bytes, *, patience: Patience) -> str:
    """Send a payload until the server has it on its disk. Returns its sha256, hex.

    Raises:
        PayloadTooLarge: it is over the server's limit.
        ServerAway, RequestRefused: as `deliver`.
    """
    try:
        return _tried(server, lambda: server.put_blob(payload), patience)
    except _TooLarge as error:
        raise PayloadTooLarge(bytes=len(payload), hint=str(error)) from None


def _tried(server: Server, work: Callable[[], T], patience: Patience) -> T:
    """Do it until it succeeds, or the server counts as away."""
    began = time.monotonic()
    for attempt in itertools.count():
        try:
            return work()
        except _Retry as error:
            if not patience.pause(error, attempt=attempt, began=began):
                server.forget_limits()
                problem = f"{server.url}: {error.problem}"
                raise ServerAway(tries=attempt + 1, problem=problem, retry_after_s=error.after_s) from None
    raise AssertionError


@dataclass(slots=True)
class _Delivery:
    """One batch on its way, over all its tries."""

    server: Server
    on_taken: Callable[[Posted, str], object] | None
    references: dict[int, Posted] = field(default_factory=dict)
    """What goes in place of an event whose text is at the server as a blob, by the event's index."""

    def send(self, batch: Sequence[Posted]) -> list[Rejected]:
        limits = self.server.limits()
        rejected: list[Rejected] = []
        ready: list[Posted] = []
        for posted in batch:
            if len(posted.text) <= limits.max_event_bytes and posted.index not in self.references:
                ready.append(posted)
                continue
            why = f"{len(posted.text)} bytes, and the server takes events of up to {limits.max_event_bytes}"
            one = self._reference(posted, why=why)
            (rejected if isinstance(one, Rejected) else ready).append(one)  # type: ignore[arg-type]
        for part in _parts(ready, limits):
            rejected += self._post(part)
        return rejected

    def _post(self, part: Sequence[Posted]) -> list[Rejected]:
        try:
            answers = self.server.post(part)
        except _TooLarge as error:
            self.server.forget_limits()
            if len(part) == 1:
                return self._offload(part[0], why=str(error))
            half = len(part) // 2
            return self._post(part[:half]) + self._post(part[half:])
        rejected: list[Rejected] = []
        for posted, item in answers:
            status = item.get("status")
            if status in _TAKEN:
                if self.on_taken is not None:
                    self.on_taken(posted, status)
                continue
            one = _rejected(posted, item)
            rejected += self._offload(posted, why=one.problem) if _is_too_large(item) else [one]
        return rejected

    def _offload(self, posted: Posted, *, why: str) -> list[Rejected]:
        """Send an event that was refused for its size once more, as a reference to a blob."""
        if self.references.get(posted.index) is posted:
            return [_unsendable(posted, why)]
        one = self._reference(posted, why=why)
        return [one] if isinstance(one, Rejected) else self._post([one])

    def _reference(self, posted: Posted, *, why: str) -> Posted | Rejected:
        """The event's text as a blob at the server, and what is posted in its place."""
        if posted.index in self.references:
            return self.references[posted.index]
        size, most = len(posted.text), self.server.limits().max_offloaded_event_bytes
        if size > most:
            return _unsendable(posted, f"{why}, or as blobs of up to {most}" if most else why)
        try:
            digest = self.server.put_blob(posted.text)
        except _TooLarge as error:
            return _unsendable(posted, str(error))
        kind, event_id = _kind_and_id(posted.text)
        event = {"v": 1, "kind": kind, "id": event_id, "offloaded": {"hash": digest, "size": size}}
        reference = Posted(posted.index, json.dumps(event, separators=(",", ":")).encode("ascii"))
        self.references[posted.index] = reference
        return reference


def _unsendable(posted: Posted, problem: str) -> Rejected:
    return Rejected(posted.index, *_kind_and_id(posted.text), "invalid", problem)


def _is_too_large(item: Mapping[str, Any]) -> bool:
    problem = item.get("problem")
    return isinstance(problem, Mapping) and problem.get("status") == 413


def _parts(batch: Sequence[Posted], limits: ServerLimits) -> Iterator[list[Posted]]:
    """The batch in order, cut where the next event would pass a limit, or goes in another kind of body."""
    part: list[Posted] = []
    size = 0
    for posted in batch:
        cost = len(posted.text) + 2
        is_full = len(part) >= limits.max_events or size + cost > limits.max_body_bytes
        # A line that is no JSON (of a damaged spool) fails alone among lines; in an array all would fail.
        if part and (is_full or _breaks(posted) != _breaks(part[0])):
            yield part
            part, size = [], 0
        part.append(posted)
        size += cost
    if part:
        yield part


def _kind_and_id(text: bytes) -> tuple[str | None, str | None]:
    """What an event says it is, without reading on where it begins as ours do: it may be large."""
    if head := _HEAD.match(text):
        return json.loads(head[1]), json.loads(head[2])
    event = json.loads(text, parse_int=len, parse_float=len)
    return event.get("kind"), event.get("id")
