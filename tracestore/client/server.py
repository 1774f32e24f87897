"""Batches -> one server, over one connection: limits, compression, retries, refused events."""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tracestore.client.errors import ClientError, Rejected, RequestRefused, ServerAway

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 4 * 2**20
MAX_PAUSE_S = 5.0
_COMPRESS_FROM_BYTES = 1024

_log = logging.getLogger("tracestore.client")


@dataclass(frozen=True, slots=True)
class Posted:
    """One event on its way."""

    index: int
    """Its place among the events of its client, or its line in a spool file, from 0."""
    text: bytes


@dataclass(frozen=True, slots=True)
class _Limits:
    max_events: int = MAX_BATCH_EVENTS
    max_bytes: int = MAX_BATCH_BYTES


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
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ClientError(url=url, hint="the server is an http:// or https:// URL")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=timeout_s)
        self._path = parts.path.rstrip("/")
        # A project name is UTF-8; http.client would write str as latin-1.
        self._headers = {name: value.encode("utf-8") for name, value in headers.items()}
        self._limits: _Limits | None = None
        self._encodings: Sequence[str] = ()

    def limits(self) -> _Limits:
        """How large a batch may be: ours, or the server's where that is smaller."""
        if self._limits is None:
            meta = self._answer("GET", "/v1/meta", None, {})
            self._encodings = meta.get("content_encodings") or ()
            limits = meta.get("limits") or {}
            self._limits = _Limits(
                max_events=min(MAX_BATCH_EVENTS, limits.get("max_events", MAX_BATCH_EVENTS)),
                max_bytes=min(MAX_BATCH_BYTES, limits.get("max_body_bytes", MAX_BATCH_BYTES)),
            )
        return self._limits

    def post(self, batch: Sequence[Posted]) -> list[Rejected]:
        """Send a batch; what comes back is what the server did not take.

        Raises:
            _TooLarge: send it in parts.
            RequestRefused: trying again does not help (key, address, version).
        """
        # NDJSON has no place for a line break inside a span that is kept as it was sent; an array has.
        lines = not any(b"\n" in posted.text for posted in batch)
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
        return [
            _rejected(posted, item)
            for posted, item in zip(batch, items, strict=True)
            if item.get("status") not in ("stored", "duplicate")
        ]

    def close(self) -> None:
        self._connection.close()

    def _answer(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        try:
            # A server may refuse a body before it has read it all: its answer says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                self._connection.request(method, self._path + path, body, {**self._headers, **headers})
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise _Retry(f"{type(error).__name__}: {error}") from None
        return _read_answer(response, text)


def _read_answer(response: http.client.HTTPResponse, text: bytes) -> dict[str, Any]:
    status = response.status
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        answer = {"detail": text[:200].decode("utf-8", "replace")}
        status = 502 if status < 300 else status  # whoever answers 200 without JSON is not the server
    if status in (200, 207) or (status == 422 and "items" in answer):
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
    try:
        value = float(header or "")
    except ValueError:  # a date, or nothing
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _compressed(body: bytes, encodings: Sequence[str]) -> tuple[bytes, str | None]:
    if "zstd" in encodings and (compress := _zstd()) is not None:
        return compress(body), "zstd"
    if "gzip" in encodings:
        return gzip.compress(body, compresslevel=1, mtime=0), "gzip"
    return body, None


def _zstd() -> Callable[[bytes], bytes] | None:
    # Looked for when first needed: importing the client must not import what happens to be installed.
    try:
        from compression.zstd import compress  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        try:
            from zstandard import compress
        except ImportError:
            return None
    found: Callable[[bytes], bytes] = compress
    return found


def deliver(
    server: Server, batch: Sequence[Posted], *, patience_s: float, stopped: threading.Event
) -> list[Rejected]:
    """Send a batch until the server has it, in parts where it is too large for one request.

    Raises:
        ServerAway: it did not answer for `patience_s` seconds, or the client stopped.
        RequestRefused: trying again does not help.
    """
    deadline = time.monotonic() + patience_s
    for attempt in itertools.count():
        try:
            parts = _parts(batch, server.limits())
            return [one for part in parts for one in _post_part(server, part)]
        except _Retry as error:
            pause = min(MAX_PAUSE_S, 0.05 * 2.0 ** min(attempt, 10)) * random.uniform(0.5, 1)
            pause = max(pause, error.after_s or 0.0)
            if attempt == 0 and patience_s > 0:
                _log.warning("%s; trying again for up to %g s", error.problem, patience_s)
            if time.monotonic() + pause > deadline or stopped.wait(pause):
                raise ServerAway(tries=attempt + 1, problem=error.problem) from None
    raise AssertionError


def _post_part(server: Server, part: Sequence[Posted]) -> list[Rejected]:
    try:
        return server.post(part)
    except _TooLarge as error:
        if len(part) == 1:
            kind, event_id = _kind_and_id(part[0].text)
            return [Rejected(part[0].index, kind, event_id, "invalid", str(error))]
    half = len(part) // 2
    return _post_part(server, part[:half]) + _post_part(server, part[half:])


def _parts(batch: Sequence[Posted], limits: _Limits) -> Iterator[list[Posted]]:
    """The batch in order, cut where the next event would pass a limit. An event over it goes alone."""
    part: list[Posted] = []
    size = 0
    for posted in batch:
        cost = len(posted.text) + 2
        if part and (len(part) >= limits.max_events or size + cost > limits.max_bytes):
            yield part
            part, size = [], 0
        part.append(posted)
        size += cost
    if part:
        yield part


def _kind_and_id(text: bytes) -> tuple[str | None, str | None]:
    event = json.loads(text, parse_int=len, parse_float=len)
    return event.get("kind"), event.get("id")
