"""Bytes from the socket -> the body that was meant: bounded before, during and after decompression."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator
from threading import Lock

import zstandard
from starlette.types import Receive

from tracestore.wire.errors import BodyTooLarge
from tracestore_api.errors import BadEncoding, BodyStalled, Busy, UnsupportedEncoding

ENCODINGS = ("gzip", "zstd")
IDLE_S = 30
"""How long a sender may send nothing: one whose connection is lost must not hold its place for ever."""
STEP = 64 * 1024
# RFC 9659: a zstd content coding must be readable with a window of 8 MB.
ZSTD_WINDOW = 8 * 1024 * 1024
_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 2 to 4 of a frame that holds no data; the first is 0x50 to 0x5F."""
_LONGEST_HEADER = 18


class Admission:
    """How much may be in hand at once, over all requests: what exceeds it is sent away, not queued.

    One `Ticket` per request; the bytes are those of the body as received and as decompressed.
    """

    def __init__(self, *, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._requests = 0
        self._bytes = 0
        self._lock = Lock()

    def ticket(self) -> Ticket:
        """A place for one request.

        Raises:
            Busy: all places are taken.
        """
        with self._lock:
            if self._requests >= self._max_requests:
                raise _busy()
            self._requests += 1
        return Ticket(self)

    def take(self, size: int) -> None:
        """Count `size` more bytes; Busy when they do not fit."""
        with self._lock:
            if self._bytes + size > self._max_bytes:
                raise _busy()
            self._bytes += size

    def give_back(self, size: int) -> None:
        """A request left, with all its bytes."""
        with self._lock:
            self._requests -= 1
            self._bytes -= size


class Ticket:
    """One request's share of an `Admission`, given back on leaving the `with` block."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0

    def take(self, size: int) -> None:
        """Room for `size` more bytes; Busy when there is none."""
        self._admission.take(size)
        self._bytes += size

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *error: object) -> None:
        self._admission.give_back(self._bytes)


def _busy() -> Busy:
    return Busy(retry_after_s=1, hint="send it again after Retry-After seconds, with the same ids")


def coding_of(header: str | None) -> str | None:
    """The one content coding of a body, None for none.

    Raises:
        UnsupportedEncoding: it is not gzip or zstd, or there are several.
    """
    coding = (header or "identity").strip().lower()
    if coding in ("identity", ""):
        return None
    if coding == "x-gzip":
        return "gzip"
    if coding not in ENCODINGS:
        raise UnsupportedEncoding(
            content_encoding=coding,
            accept_encoding=", ".join(ENCODINGS),
            hint="send the body as it is, or as gzip or zstd",
        )
    return coding


async def read_body(
    receive: Receive, *, content_length: str | None, max_bytes: int, ticket: Ticket
) -> bytes | None:
    """The raw body; None when the client went away before its end.

    Raises:
        BodyTooLarge: more than `max_bytes`, as soon as that is known.
        BodyStalled: the rest of it did not come.
        Busy: the server has no room for it now.
    """
    if content_length is not None and content_length.isdecimal() and int(content_length) > max_bytes:
        raise _too_large(max_bytes, size=int(content_length))
    chunks: list[bytes] = []
    size = 0
    try:
        # One timer a body, moved on with each piece: anyio's costs a small post twice as much.
        async with asyncio.timeout(IDLE_S) as patience:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunk = message.get("body", b"")
                size += len(chunk)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                ticket.take(len(chunk))
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return b"".join(chunks)
                patience.reschedule(asyncio.get_running_loop().time() + IDLE_S)
    except TimeoutError:
        hint = f"send all of it, and never nothing for {IDLE_S} s"
        raise BodyStalled(received=size, hint=hint) from None


def decompress(body: bytes, *, coding: str | None, max_bytes: int, ticket: Ticket) -> bytes:
    """The body without its content coding.

    Raises:
        BodyTooLarge: it unfolds to more than `max_bytes`; no more than that is ever held.
        BadEncoding: it is broken, cut short, or something follows it.
    """
    if coding is None:
        return body
    pieces = _gunzip(body) if coding == "gzip" else _unzstd(body)
    chunks: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes, content_encoding=coding)
            ticket.take(len(piece))
            chunks.append(piece)
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        raise BadEncoding(
            content_encoding=coding,
            reason=str(error),
            hint="compress the whole body, and nothing else, that way",
        ) from error
    return b"".join(chunks)


def _too_large(
    max_bytes: int, *, size: int | None = None, content_encoding: str | None = None
) -> BodyTooLarge:
    return BodyTooLarge(
        bytes=size,
        content_encoding=content_encoding,
        max_body_bytes=max_bytes,
        hint="send the events in several requests; GET /v1/meta gives the limits",
    )


def _gunzip(body: bytes) -> Iterator[bytes]:
    """RFC 1952: one member or several, one after the other."""
    member = zlib.decompressobj(wbits=31)
    for start in range(0, len(body), STEP):
        rest = body[start : start + STEP]
        while rest:
            if member.eof:
                member = zlib.decompressobj(wbits=31)
            yield member.decompress(rest, STEP)
            rest = member.unused_data if member.eof else member.unconsumed_tail
    while not member.eof:
        # All input is in; what is still to come lies in the decompressor.
        piece = member.decompress(b"", STEP)
        if not piece:
            raise EOFError("the gzip data ends before its end mark")
        yield piece


def _unzstd(body: bytes) -> Iterator[bytes]:
    """RFC 8878: one frame or several, one after the other.

    Output is asked for piece by piece, as four bytes of input can unfold to 128 KiB. What reads so does not
    say whether a frame was whole, so its end is looked for first.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    start = 0
    while start < len(body) or start == 0:
        end = _end_of_frame(body, start)
        with decompressor.stream_reader(memoryview(body)[start:end]) as reader:
            while piece := reader.read(STEP):
                yield piece
        start = end


def _end_of_frame(body: bytes, start: int) -> int:
    """Where the zstd frame ends that begins at `start`, from the sizes in its headers (RFC 8878, 3.1).

    Raises:
        EOFError, ZstdError: there is no whole frame.
    """
    if body[start + 1 : start + 4] == _SKIPPABLE and body[start] >> 4 == 5:
        end = start + 8 + int.from_bytes(body[start + 4 : start + 8], "little")
        return _within(body, end)
    header = body[start : start + _LONGEST_HEADER]
    has_checksum = zstandard.get_frame_parameters(header).has_checksum
    at = start + zstandard.frame_header_size(header)
    is_last = False
    while not is_last:
        block = int.from_bytes(body[at : _within(body, at + 3)], "little")
        is_last = bool(block & 1)
        # A block of one repeated byte is that byte; its size is that of what it unfolds to.
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
    return _within(body, at + 4 * has_checksum)


def _within(body: bytes, end: int) -> int:
    if end > len(body):
        raise EOFError("the zstd data ends before its end mark")
    return end
