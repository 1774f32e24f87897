"""A body is read within its bounds, whatever its coding says."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Sequence
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tracestore.wire.errors import BodyTooLarge
from tracestore_api.body import Admission, coding_of, decompress, read_body
from tracestore_api.errors import BadEncoding, Busy, UnsupportedEncoding

ROOM = 1 << 24


def unfold(body: bytes, coding: str | None, *, max_bytes: int = ROOM) -> bytes:
    with Admission(max_requests=1, max_bytes=ROOM).ticket() as ticket:
        return decompress(body, coding=coding, max_bytes=max_bytes, ticket=ticket)


def fold(body: bytes, coding: str) -> bytes:
    return gzip.compress(body) if coding == "gzip" else zstandard.compress(body)


def receive(
    chunks: Sequence[bytes], *, whole: bool = True, admission: Admission, limit: int = 100
) -> bytes | None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
    ]
    messages.append({"type": "http.request", "body": b""} if whole else {"type": "http.disconnect"})

    async def next_message() -> dict[str, Any]:
        return messages.pop(0)

    async def read() -> bytes | None:
        with admission.ticket() as ticket:
            return await read_body(next_message, content_length=None, max_bytes=limit, ticket=ticket)

    return asyncio.run(read())


@given(st.lists(st.binary(max_size=200_000), min_size=1, max_size=3), st.sampled_from(["gzip", "zstd"]))
def test_any_body_comes_back_in_one_frame_or_in_several(parts: list[bytes], coding: str) -> None:
    assert unfold(b"".join(fold(part, coding) for part in parts), coding) == b"".join(parts)


def test_a_zstd_stream_without_a_content_size_is_read() -> None:
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    assert unfold(stream.compress(b"abc" * 1000) + stream.flush(), "zstd") == b"abc" * 1000


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [0, 1, 65536, 300_000])
def test_a_body_that_is_cut_short_or_followed_by_something_is_refused(coding: str, size: int) -> None:
    folded = fold(b"x" * size, coding)
    for broken in (b"", folded[:-1], folded[:-5], folded + b"more", b"{}"):
        with pytest.raises(BadEncoding):
            unfold(broken, coding)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_a_bomb_is_refused_before_it_unfolds(coding: str) -> None:
    bomb = fold(b"\0" * ROOM, coding)
    assert len(bomb) < ROOM // 500
    admission = Admission(max_requests=1, max_bytes=ROOM // 2)
    with admission.ticket() as ticket, pytest.raises(BodyTooLarge):
        decompress(bomb, coding=coding, max_bytes=1000, ticket=ticket)


def test_a_zstd_frame_that_asks_for_a_huge_window_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(BadEncoding):
        unfold(stream.compress(b"abc") + stream.flush(), "zstd")


def test_only_gzip_and_zstd_are_read() -> None:
    assert [coding_of(header) for header in (None, "", "identity", " GZip ", "x-gzip", "zstd")] == [
        None,
        None,
        None,
        "gzip",
        "gzip",
        "zstd",
    ]
    for header in ("br", "deflate", "gzip, zstd"):
        with pytest.raises(UnsupportedEncoding):
            coding_of(header)


def test_a_body_over_the_limit_is_refused_while_it_arrives() -> None:
    admission = Admission(max_requests=1, max_bytes=1000)
    assert receive([b"x" * 60, b"y" * 40], admission=admission) == b"x" * 60 + b"y" * 40
    with pytest.raises(BodyTooLarge):
        receive([b"x" * 60, b"y" * 41], admission=admission)


def test_a_client_that_goes_away_leaves_nothing() -> None:
    assert receive([b"{"], whole=False, admission=Admission(max_requests=1, max_bytes=10)) is None


def test_what_exceeds_the_room_is_busy_and_room_comes_back_when_requests_leave() -> None:
    admission = Admission(max_requests=2, max_bytes=100)
    with admission.ticket() as first, admission.ticket() as second:
        with pytest.raises(Busy) as busy:
            admission.ticket()
        assert busy.value.values["retry_after_s"] == 1
        first.take(60)
        with pytest.raises(Busy):
            second.take(41)
        second.take(40)
    with admission.ticket() as third:
        third.take(100)
