"""What passed between a harness and an upstream, as bytes -> an exchange that a call can be made of."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard

from tracestore.importers import cuts
from tracestore.importers.exchanges import Exchange
from tracestore.importers.items import Item
from tracestore.wire.call import CallError
from tracestore_api.body import STEP, ZSTD_WINDOW
from tracestore_api.proxy.names import Names

CODINGS = ("gzip", "x-gzip", "deflate", "zstd", "identity")
"""Content codings that are read here; others are not offered to the upstream."""
CLIENT_GONE, UPSTREAM_BROKE, UPSTREAM_AWAY = (
    "client_disconnected",
    "upstream_broke_off",
    "upstream_unreachable",
)
SHUT_DOWN = "proxy_shut_down"
_TOLD_ELSEWHERE = frozenset(
    {
        *("accept", "accept-encoding", "connection", "content-length", "date", "host"),
        *("keep-alive", "server", "transfer-encoding", "via", "x-tracestore-call"),
    }
)
"""Headers that say nothing of a call that its event, or every other call, does not."""
_TELLING = frozenset({"x-stainless-retry-count", "x-stainless-timeout", "x-stainless-helper-method"})
MAX_UNPACKED_BYTES = 256 * 2**20


@dataclass
class Capture:
    """One request and its response, growing while they pass."""

    project: str
    names: Names
    call_id: str
    """The one that the harness named, else one made here."""
    url: str
    """At the upstream."""
    method: str
    request: bytes
    """Body as the harness sent it."""
    request_headers: list[tuple[bytes, bytes]]
    room: int
    """Bytes of the response that may still be kept."""
    started_at: int = field(default_factory=time.time_ns)
    forwarded_sha256: str | None = None
    """Of the body that went out, where that was another one."""
    injected: dict[str, Any] = field(default_factory=dict)
    refused: list[Mapping[str, Any]] = field(default_factory=list)
    """Fields that the upstream refused before, each with the status."""
    status: int | None = None
    response_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """When each of them came."""
    first_token_at: int | None = None
    ended_at: int | None = None
    broken: CallError | None = None
    is_cut: bool = False
    """The response was larger than what is kept of it."""
    starts: Sequence[Item] = ()
    """Of the episode and agents that it lies in, where more is known of them than it says; stored with it."""
    stale_observation: str | None = None
    """Why what was sampled does not follow from what was sampled before it; None: it does."""

    @property
    def size(self) -> int:
        """Bytes that it holds, about."""
        return len(self.request) + sum(map(len, self.chunks)) + 4096

    @property
    def is_stream(self) -> bool:
        """Whether the response is a stream of events."""
        return (text_of(self.response_headers, "content-type") or "").startswith("text/event-stream")

    def take(self, chunk: bytes) -> None:
        """Keep a piece of the response, as far as there is room."""
        if self.first_token_at is None and self.is_stream and not chunk.startswith(b":"):
            self.first_token_at = time.time_ns()
        self.room -= len(chunk)
        if self.room < 0:
            self.cut()
        else:
            self.chunks.append(chunk)
            self.times.append(time.time_ns())

    def event_times(self) -> list[int] | None:
        """When each event of a stream had come, in ms; None where it was none, or came compressed."""
        coding = text_of(self.response_headers, "content-encoding")
        if not self.is_stream or not self.chunks or coding not in (None, "identity"):
            return None
        return cuts.times(self.chunks, self.times, since=self.started_at)

    def cut(self) -> None:
        """Keep nothing of the response."""
        self.is_cut = True
        self.chunks.clear()
        self.times.clear()

    def end(self, broken: CallError | None = None) -> None:
        """Nothing more comes."""
        self.ended_at = time.time_ns()
        self.broken = broken

    def header_names(self) -> list[str]:
        """The names of all headers of both sides."""
        return sorted({name.decode("latin-1") for name, _ in (*self.request_headers, *self.response_headers)})

    def exchange(self) -> Exchange:
        """The exchange, its bodies without their content coding. What was cut has no response."""
        request = unpacked(self.request, text_of(self.request_headers, "content-encoding"))
        body = b"".join(self.chunks)
        return Exchange(
            method=self.method,
            url=self.url,
            request=request,
            request_headers=told(self.request_headers),
            status=self.status,
            response=None
            if self.is_cut
            else unpacked(body, text_of(self.response_headers, "content-encoding")),
            response_headers=told(self.response_headers),
            started_at=self.started_at,
            ended_at=self.ended_at,
            broken=self.broken,
        )


def text_of(headers: Iterable[tuple[bytes, bytes]], name: str) -> str | None:
    """The text of a header by its name in lower case; None where it is absent."""
    wanted = name.encode("ascii")
    return next((value.decode("latin-1") for one, value in headers if one == wanted), None)


def told(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The headers that say something of a call, by name; those that stand several times as a list."""
    found: dict[str, Any] = {}
    for name, value in headers:
        text = name.decode("latin-1")
        if text in _TOLD_ELSEWHERE or (text.startswith("x-stainless-") and text not in _TELLING):
            continue
        one = value.decode("latin-1")
        held = found.get(text)
        found[text] = one if held is None else [*(held if isinstance(held, list) else [held]), one]
    return found


def unpacked(body: bytes, coding: str | None, *, max_bytes: int = MAX_UNPACKED_BYTES) -> bytes:
    """A body without its content coding: as far as it came, and as it is where the coding is not known.

    Args:
        max_bytes: how much of it is read, about.
    """
    coding = (coding or "identity").strip().lower()
    if coding in ("gzip", "x-gzip"):
        wbits = 31
    elif coding == "deflate":
        # RFC 9110 means zlib; some servers send the bare stream.
        wbits = 15 if body[:1] == b"\x78" else -15
    else:
        return _unzstd(body, max_bytes) if coding == "zstd" else body
    try:
        return zlib.decompressobj(wbits=wbits).decompress(body, max_bytes)
    except zlib.error:
        return body


def _unzstd(body: bytes, max_bytes: int) -> bytes:
    # Asked for piece by piece, as four bytes of input can unfold to 128 KiB.
    pieces = bytearray()
    try:
        with zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW).stream_reader(body) as reader:
            while piece := reader.read(min(STEP, max_bytes - len(pieces))):
                pieces += piece
    except zstandard.ZstdError:
        return body
    return bytes(pieces)
