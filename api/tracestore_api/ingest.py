"""Posted body -> events -> store: `POST /v1/events`, plain ASGI, long work off the event loop.

A small body is decoded on the loop: that takes less time than handing it to a thread and back. Any other one
is read in a thread, so a health check answers while a large batch is decoded. The answer is sent when the
store says that the events are on disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracestore.store.blobs import Blobs
from tracestore.store.ingest import Outcome
from tracestore.store.store import Store
from tracestore.wire.decode import Decoded, Limits, decode_body
from tracestore.wire.events import AnyEvent
from tracestore.wire.memory import SpanMemory
from tracestore.wire.strict import dumps
from tracestore_api.access import admitted
from tracestore_api.body import Admission, Ticket, coding_of, decompress, read_body
from tracestore_api.errors import UnknownParameter, UnsupportedMediaType
from tracestore_api.offloaded import Offloaded
from tracestore_api.problems import problem_of

MEDIA_TYPES = ("application/json", "application/x-ndjson")
SMALL_BYTES = 64 * 1024
"""A body up to here is decoded in a fraction of a millisecond."""


class EventsRoute:
    """ASGI endpoint of `POST /v1/events`.

    200 when every event is stored or was already, 207 when some are, 422 when none is; the answer is
    `{stored, duplicate, conflict, invalid, items: [{index, kind, id, status, problem}]}`, one item per event
    in the order posted. Where rules of the project took text out of an event, its item says how many pieces:
    `redacted`.
    """

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits,
        admission: Admission,
        max_threads: int,
        blobs: Blobs | None = None,
    ) -> None:
        self._store = store
        self._offloaded = Offloaded(blobs, limits=limits)
        self._limits = limits
        self._memory = SpanMemory()
        self._admission = admission
        self._threads = CapacityLimiter(max_threads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if scope["query_string"]:
            raise UnknownParameter(
                query=scope["query_string"].decode("latin-1"), hint="this route takes none"
            )
        project = admitted(scope, needs="write")
        media_type = media_type_of(headers.get("content-type"))
        coding = coding_of(headers.get("content-encoding"))
        with self._admission.ticket() as ticket:
            body = await read_body(
                receive,
                content_length=headers.get("content-length"),
                max_bytes=self._limits.max_body_bytes,
                ticket=ticket,
            )
            if body is None:
                return
            if coding is None and self._is_small(body):
                response = await self._respond_here(project, media_type, body)
            else:
                response = await to_thread.run_sync(
                    self._respond, project, media_type, coding, body, ticket, limiter=self._threads
                )
        await response(scope, receive, send)

    def _is_small(self, body: bytes) -> bool:
        """Whether the event loop can read a body itself. An event that lies in a blob takes longer."""
        return len(body) <= SMALL_BYTES and b'"offloaded"' not in body

    def _decoded(self, text: bytes, media_type: str | None) -> list[Decoded]:
        return decode_body(text, content_type=media_type, limits=self._limits, memory=self._memory)

    async def _respond_here(self, project: str, media_type: str | None, body: bytes) -> Response:
        decoded = self._decoded(body, media_type)
        return response_of(items_of(decoded, await committed(self._store, project, events_of(decoded))))

    def _respond(
        self, project: str, media_type: str | None, coding: str | None, body: bytes, ticket: Ticket
    ) -> Response:
        text = decompress(body, coding=coding, max_bytes=self._limits.max_body_bytes, ticket=ticket)
        decoded = self._decoded(text, media_type)
        stubs = self._offloaded.stubs(decoded, ticket=ticket)
        items = store_decoded(self._store, project, decoded)
        for one, stub in stubs:
            with self._offloaded.read(project, one, stub) as event:
                [items[one.index]] = store_decoded(self._store, project, [event])
        return response_of(items)


def media_type_of(header: str | None) -> str | None:
    """The media type of a body, None when the sender does not say (then its first bytes decide).

    Raises:
        UnsupportedMediaType: neither JSON nor NDJSON. Form types are refused on purpose: a browser sends
            them to other sites without asking.
    """
    if header is None:
        return None
    media_type = header.partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise UnsupportedMediaType(content_type=media_type, hint=f"send {' or '.join(MEDIA_TYPES)}")
    return media_type


def store_decoded(store: Store, project: str, decoded: Sequence[Decoded]) -> list[dict[str, Any]]:
    """Store what could be read, and give one answer item per posted event, in the order posted."""
    return items_of(decoded, store.ingest(project, events_of(decoded)))


async def committed(store: Store, project: str, events: Sequence[tuple[AnyEvent, bytes]]) -> list[Outcome]:
    """`store.ingest` that waits on the event loop."""
    if not events:
        return []
    # Shielded: a request that is given up must not take its events back from the committer.
    return await asyncio.shield(asyncio.wrap_future(store.submit(project, events)))


def events_of(decoded: Sequence[Decoded]) -> list[tuple[AnyEvent, bytes]]:
    """What could be read, as the store takes it."""
    return [(one.event, one.text) for one in decoded if one.event is not None]


def items_of(decoded: Sequence[Decoded], outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """One answer item per posted event; the outcomes are those of what could be read."""
    stored = iter(outcomes)
    return [_refused_item(one) if one.event is None else _outcome_item(one, next(stored)) for one in decoded]


def response_of(items: Sequence[dict[str, Any]]) -> Response:
    """The answer to a request with these items."""
    status, answer = answer_of(items)
    return Response(dumps(answer), status_code=status, media_type="application/json")


def answer_of(items: Sequence[dict[str, Any]]) -> tuple[int, dict[str, Any]]:
    """HTTP status and body of the answer to a request with these items."""
    counts = dict.fromkeys(("stored", "duplicate", "conflict", "invalid"), 0)
    for item in items:
        counts[item["status"]] += 1
    kept = counts["stored"] + counts["duplicate"]
    if kept == len(items):
        status = HTTPStatus.OK
    else:
        status = HTTPStatus.MULTI_STATUS if kept else HTTPStatus.UNPROCESSABLE_ENTITY
    return int(status), {**counts, "items": list(items)}


def _outcome_item(one: Decoded, outcome: Outcome) -> dict[str, Any]:
    problem = None
    status: str = outcome.status
    if status == "conflict":
        problem = _problem(409, "conflicting-event", "Another event with this key is stored", outcome.problem)
    elif status == "deleted":
        status = "invalid"
        problem = _problem(410, "deleted", "What the event belongs to was deleted", outcome.problem)
    elif status == "error":
        status = "invalid"
        problem = _problem(422, "refused-event", "The event does not fit what is stored", outcome.problem)
    item = {"index": one.index, "kind": one.kind, "id": one.id, "status": status, "problem": problem}
    return item | {"redacted": outcome.redacted} if outcome.redacted else item


def _problem(status: int, name: str, title: str, detail: str | None) -> dict[str, Any]:
    return {
        "type": f"urn:tracestore:problem:{name}",
        "title": title,
        "status": status,
        "detail": detail or title,
    }


def _refused_item(one: Decoded) -> dict[str, Any]:
    assert one.error is not None
    return {
        "index": one.index,
        "kind": one.kind,
        "id": one.id,
        "status": "invalid",
        "problem": problem_of(one.error),
    }
