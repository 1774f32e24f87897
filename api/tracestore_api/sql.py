"""`POST /v1/sql`: one SELECT over the views of a project, answered by a child process.

The child formats the rows as well, so that this process carries bytes and never maps DuckDB's scanner of
SQLite files. A few queries run at once, some more wait, and what is beyond that is sent away. A client that
goes away takes its query along.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracestore.settings import Settings
from tracestore.store.duck import SqlAnswer, SqlLimits, SqlQuery, database
from tracestore.store.store import Store
from tracestore_api.access import admitted
from tracestore_api.body import Admission, read_body
from tracestore_api.errors import InvalidSqlRequest, SqlBusy, UnknownParameter, UnsupportedMediaType

DEFAULT_ROWS = 10_000
MAX_REQUEST_BYTES = 2**20
MEDIA_TYPES = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8; header=present",
    "arrow": "application/vnd.apache.arrow.stream",
}
_MAX_ANSWER_BYTES = 64 * 2**20
"""Of rows, as Arrow. An answer is held whole while it is sent."""
_RETRY_AFTER_S = 5


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request."""

    query: str
    max_rows: int | None = None
    """None: `DEFAULT_ROWS`, or as many as the server allows."""
    format: Literal["json", "csv", "arrow"] | None = None
    """None: what the header Accept asks for, else JSON."""


class SqlRoute:
    """ASGI endpoint; answers `{columns, rows, truncated}`, or CSV or an Arrow stream."""

    def __init__(self, store: Store, *, settings: Settings, admission: Admission) -> None:
        self._url = store.engine.url.render_as_string(hide_password=False)
        self._settings = settings
        self._threads = CapacityLimiter(settings.max_sql_queries)
        self._places = settings.max_sql_queries + settings.max_sql_waiting
        self._in_hand = 0
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["query_string"]:
            query = scope["query_string"].decode("latin-1")
            raise UnknownParameter(query=query, hint="this route takes none: the SQL stands in the body")
        project = admitted(scope, needs="read")
        _require_json(headers)
        with self._admission.ticket() as ticket:
            body = await read_body(
                receive,
                content_length=headers.get("content-length"),
                max_bytes=MAX_REQUEST_BYTES,
                ticket=ticket,
            )
        if body is None:
            return
        asked = _asked(body, max_rows=self._settings.max_sql_rows)
        as_ = asked.format or _accepted(headers.get("accept", ""))
        query = self._query(project, asked, as_=as_)
        answer = await self._answered(query, receive)
        if answer is not None:
            response = Response(
                answer.body,
                headers={
                    "content-type": MEDIA_TYPES[as_],
                    "x-tracestore-truncated": "true" if answer.truncated else "false",
                },
            )
            await response(scope, receive, send)

    def _query(self, project: str, asked: Asked, *, as_: str) -> SqlQuery:
        limits = SqlLimits(
            max_rows=_rows(asked, max_rows=self._settings.max_sql_rows),
            timeout_s=self._settings.max_sql_s,
            memory_mb=self._settings.max_sql_mb,
            answer_bytes=_MAX_ANSWER_BYTES,
        )
        return SqlQuery(database(self._url, project), asked.query, limits=limits, as_=as_)

    async def _answered(self, query: SqlQuery, receive: Receive) -> SqlAnswer | None:
        """The answer; None when the client went away first, with its query ended."""
        if self._in_hand >= self._places:
            raise SqlBusy(retry_after_s=_RETRY_AFTER_S, hint="ask again after Retry-After seconds")
        self._in_hand += 1
        working = asyncio.ensure_future(to_thread.run_sync(query.answer, limiter=self._threads))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            query.cancel()
            working.cancel()
            leaving.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)
            self._in_hand -= 1


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _require_json(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" or headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMediaType(
            content_type=media_type, hint='send {"query": "SELECT ..."} as application/json, not compressed'
        )


def _asked(body: bytes, *, max_rows: int) -> Asked:
    try:
        asked = msgspec.json.decode(body, type=Asked)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = 'send {"query": "SELECT ...", "max_rows": N, "format": "json" | "csv" | "arrow"}'
        raise InvalidSqlRequest(reason=str(error), hint=hint) from None
    if asked.max_rows is not None and not 0 <= asked.max_rows <= max_rows:
        raise InvalidSqlRequest(max_rows=asked.max_rows, hint=f"ask for 0 to {max_rows} rows")
    return asked


def _rows(asked: Asked, *, max_rows: int) -> int:
    return min(DEFAULT_ROWS, max_rows) if asked.max_rows is None else asked.max_rows


def _accepted(accept: str) -> str:
    """The format that stands first among those that Accept names; JSON where it names none."""
    names = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    ours = {media_type.partition(";")[0]: name for name, media_type in MEDIA_TYPES.items()}
    return next((ours[name] for name in names if name in ours), "json")
