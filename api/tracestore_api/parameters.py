"""What a request says besides its body: project, ids in paths, times, cursors. Nothing is ignored."""

from __future__ import annotations

import base64
import binascii
import json
import re
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.types import Scope

from tracestore.ids import id_problem
from tracestore_api.errors import InvalidCursor, InvalidProject

PROJECT_HEADER = "X-Tracestore-Project"
DEFAULT_PROJECT = "default"
MAX_PAGE = 1000

_RFC3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:([Zz])|([+\- ])(\d\d):(\d\d))", re.ASCII
)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - offsets are taken off by hand, to keep nanoseconds


def project_of(headers: Headers) -> str:
    """The project that a request names; `default` when it names none.

    Raises:
        InvalidProject: the header stands twice, or its value is no id.
    """
    return named_project(headers) or DEFAULT_PROJECT


def named_project(headers: Headers) -> str | None:
    """The project that a request names, None when it names none.

    Raises:
        InvalidProject: the header stands twice, or its value is no id.
    """
    values = headers.getlist(PROJECT_HEADER)
    if not values:
        return None
    if len(values) > 1:
        raise InvalidProject(hint=f"send {PROJECT_HEADER} once")
    try:
        # A header travels as bytes; Starlette reads them as latin-1, ids are UTF-8.
        project = values[0].encode("latin-1").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidProject(hint="a project name is valid UTF-8") from error
    problem = id_problem(project)
    if problem:
        raise InvalidProject(project=project, hint=problem)
    return project


class _IdConvertor(Convertor[str]):
    """An id in a path is one percent-encoded segment; the path reaches the router still encoded."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return unquote(value, errors="replace")

    def to_string(self, value: str) -> str:
        raise AssertionError("no URL is built from a route")


register_url_convertor("id", _IdConvertor())


def encoded_path(scope: Scope) -> str:
    """The path as sent. Routes match it, so that an id may hold a `/` (as %2F)."""
    raw: bytes | None = scope.get("raw_path")
    path: str = scope["path"] if raw is None else raw.decode("latin-1")
    return path


def _nanoseconds(value: Any) -> int:
    text = str(value)
    if text.isascii() and text.isdecimal():
        return int(text)
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("a time is nanoseconds since 1970 (UTC), or RFC 3339 with an offset or Z")
    day, clock, fraction, _, sign, hours, minutes = match.groups()
    # In a query a bare "+" means a space, and nothing else can stand there.
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
    moment = datetime.fromisoformat(f"{day}T{clock}") - offset - _EPOCH
    return (moment.days * 86_400 + moment.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))


Time = Annotated[
    int,
    BeforeValidator(_nanoseconds),
    Field(ge=0, lt=2**63),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "exclusiveMaximum": 2**63},
                {"type": "string", "format": "date-time"},
            ],
            "description": "nanoseconds since 1970 (UTC), or RFC 3339 with an offset or Z",
        }
    ),
]


class Parameters(BaseModel):
    """Query parameters of a route. An unknown one is an error: a misspelt filter would list too much."""

    model_config = ConfigDict(extra="forbid")


class Page(Parameters):
    """Where a page of a list begins and how long it is."""

    cursor: str | None = None
    """`next_cursor` of the page before; without it, the first page."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


Place = tuple[int | str, ...]
"""What a list is ordered by, of one of its rows."""


def cursor_of(place: Place, *, of: str) -> str:
    """The opaque cursor that says: after this place in the list `of`."""
    return base64.urlsafe_b64encode(json.dumps([of, *place]).encode("ascii")).decode("ascii").rstrip("=")


def place_of(cursor: str | None, *, of: str, types: tuple[type, ...] = (int,)) -> Place | None:
    """The place after which a page begins; None for the first page.

    Args:
        types: of the parts of a place in this list.

    Raises:
        InvalidCursor: it was made for another list, or not by us.
    """
    if cursor is None:
        return None
    refusal = InvalidCursor(cursor=cursor, hint="use next_cursor of a page of the same list, unchanged")
    try:
        name, *place = json.loads(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
    except (binascii.Error, ValueError, TypeError, RecursionError) as error:
        raise refusal from error
    if (
        name != of
        or tuple(map(type, place)) != types
        or any(type(p) is int and abs(p) >= 2**63 for p in place)
    ):
        raise refusal
    return tuple(place)
