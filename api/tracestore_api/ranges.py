"""Request -> which bytes of a file it wants: all, a range, or none since it has them (RFC 9110).

A file is named by its sha256, which is its entity tag too: what has one tag never changes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response

from tracestore_api.access import KEY_HEADER
from tracestore_api.errors import RangeNotSatisfiable
from tracestore_api.parameters import PROJECT_HEADER
from tracestore_api.problems import problem_of, problem_response

_RANGE = re.compile(r"bytes *= *(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """What is sent."""

    start: int
    stop: int
    status: int
    """200 for all of it, 206 for a range."""
    headers: Mapping[str, str]


def part_of(headers: Headers, *, tag: str, size: int, described: Mapping[str, str]) -> Part | Response:
    """The part that a request asks for, or its whole answer: 304, or 416.

    Args:
        tag: sha256 of the file, hex.
        described: headers of the file.
    """
    if _names(headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=dict(described))
    start, stop, status, more = 0, size, 200, {}
    wanted = headers.get("range")
    if wanted is not None and headers.get("if-range", quoted(tag)) == quoted(tag):
        try:
            found = range_of(wanted, size=size)
        except RangeNotSatisfiable as error:
            return problem_response(problem_of(error), headers={"content-range": f"bytes */{size}"})
        if found is not None:
            start, stop, status = *found, 206
            more["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    return Part(start, stop, status, {**described, **more, "content-length": str(stop - start)})


def range_of(header: str, *, size: int) -> tuple[int, int] | None:
    """The part of a file that a Range header asks for, from `start` up to `stop`; None for all of it.

    Several ranges, other units and what cannot be read are answered with all of it, as RFC 9110 allows.

    Raises:
        RangeNotSatisfiable: it begins behind the end.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        return None
    first, last, suffix = (None if group is None else int(group) for group in match.groups())
    if first is not None and last is not None and last < first:
        return None
    start = max(size - (suffix or 0), 0) if first is None else first
    if start >= size:
        raise RangeNotSatisfiable(range=header, size=size)
    return start, size if last is None else min(last + 1, size)


def described_bytes(tag: str) -> dict[str, str]:
    """Headers of bytes with this sha256, hex, whoever wrote them."""
    digest = base64.b64encode(bytes.fromhex(tag)).decode("ascii")
    return {
        "etag": quoted(tag),
        "accept-ranges": "bytes",
        "repr-digest": f"sha-256=:{digest}:",
        # The bytes are a stranger's: no browser may take them for a page of ours.
        "content-type": "application/octet-stream",
        "content-disposition": "attachment",
        "x-content-type-options": "nosniff",
        # One URL is other bytes, or none, in another project.
        "vary": f"{PROJECT_HEADER}, {KEY_HEADER}, Authorization, Cookie",
        "cache-control": "private, no-cache",
    }


def quoted(tag: str) -> str:
    """An entity tag as headers spell it."""
    return f'"{tag}"'


def _names(header: str | None, tag: str) -> bool:
    """Whether an If-None-Match names the file."""
    tags = [] if header is None else [one.strip().removeprefix("W/") for one in header.split(",")]
    return "*" in tags or quoted(tag) in tags
