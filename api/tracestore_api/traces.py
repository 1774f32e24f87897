"""OTLP export -> events -> store: `POST /v1/traces`, what OpenTelemetry's exporters already send.

    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:8421/v1/traces
    OTEL_EXPORTER_OTLP_TRACES_HEADERS=X-Tracestore-Project=mine

Protobuf or JSON, plain, gzip or zstd; the answer is in the encoding of the request, and comes when the spans
are on disk. `span_parts` says how spans that come one by one become an episode. A trace that our exporter
wrote comes in one request and is read as the importer reads it.

OTLP has words of its own for what goes wrong. Spans that cannot be stored are counted in `partial_success`,
with a message that names them, and their neighbours are stored: 200. The same field warns of what is stored
and looks wrong. An error of the whole request is a google.rpc.Status; an exporter sends a request again after
429, 502, 503 and 504 only, so a full disk is 503 here.
"""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

from anyio import CapacityLimiter, to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracestore.errors import TracestoreError
from tracestore.importers import otlp
from tracestore.importers.notes import Notes
from tracestore.importers.spans import Span
from tracestore.store.store import Store
from tracestore.wire.limits import Limits
from tracestore_api.access import admitted
from tracestore_api.body import Admission, Ticket, coding_of, decompress, read_body
from tracestore_api.errors import TooManySpans, UnsupportedMediaType
from tracestore_api.otlp_messages import MEDIA_TYPES, answer, spans_of, status
from tracestore_api.problems import problem_of, problem_response
from tracestore_api.trace_memory import TraceMemory

_MAX_NAMED = 5
"""Refused spans that a message names; all are counted."""
_FULL_RETRY_S = 30
_NO_MESSAGES = (
    "model calls came without their messages: instrumentations send them only when asked to, e.g. by "
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_only"
)


class TracesRoute:
    """ASGI endpoint of `POST /v1/traces`."""

    def __init__(self, store: Store, *, limits: Limits, admission: Admission, max_threads: int) -> None:
        self._limits = limits
        self._admission = admission
        self._memory = TraceMemory(store, limits=limits)
        self._threads = CapacityLimiter(max_threads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        media_type = media_type_of(headers.get("content-type"))
        try:
            response = await self._answered(scope, receive, headers, media_type)
        except TracestoreError as error:
            response = refusal(error, media_type=media_type)
        if response is not None:
            await response(scope, receive, send)

    async def _answered(
        self, scope: Scope, receive: Receive, headers: Headers, media_type: str
    ) -> Response | None:
        """None where the client went away before the end of its body."""
        project = admitted(scope, needs="write")
        coding = coding_of(headers.get("content-encoding"))
        with self._admission.ticket() as ticket:
            body = await read_body(
                receive,
                content_length=headers.get("content-length"),
                max_bytes=self._limits.max_body_bytes,
                ticket=ticket,
            )
            if body is None:
                return None
            return await to_thread.run_sync(
                self._respond, project, media_type, coding, body, ticket, limiter=self._threads
            )

    def _respond(
        self, project: str, media_type: str, coding: str | None, body: bytes, ticket: Ticket
    ) -> Response:
        data = decompress(body, coding=coding, max_bytes=self._limits.max_body_bytes, ticket=ticket)
        export = spans_of(data, media_type=media_type)
        if len(export.records) > self._limits.max_events:
            raise TooManySpans(
                spans=len(export.records),
                max_events=self._limits.max_events,
                hint="export smaller batches: OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            )
        rejected, said = self._store_all(project, export.records, export.refused)
        return Response(
            answer(media_type=media_type, rejected=rejected, message="; ".join(said)), media_type=media_type
        )

    def _store_all(
        self, project: str, records: list[dict[str, object]], refused: list[str]
    ) -> tuple[int, list[str]]:
        """(number of spans that are not stored, what the sender should know)."""
        notes = Notes()
        traces: dict[str, list[Span]] = {}
        for number, record in enumerate(records):
            span = otlp.span_of(record, at=f"span {number}", notes=notes)
            if span is not None:
                traces.setdefault(span.trace_id, []).append(span)
        problems = [*refused]
        num_waiting = 0
        for trace_id, spans in sorted(traces.items()):
            stored = self._memory.store(project, trace_id, spans, notes=notes)
            problems += [f"span {one.span_id} of trace {trace_id}: {one.problem}" for one in stored.refused]
            num_waiting += stored.num_waiting
        problems += notes.refused
        rejected = len(problems) + num_waiting
        said = problems[:_MAX_NAMED]
        if len(problems) > _MAX_NAMED:
            said.append(f"and {len(problems) - _MAX_NAMED} more")
        if num_waiting:
            said.append(
                f"{num_waiting} not kept: nothing of their traces is an agent, a model call or a tool so far"
            )
        return rejected, said + _warnings(notes, [span for spans in traces.values() for span in spans])


def _warnings(notes: Notes, spans: list[Span]) -> list[str]:
    said = Counter(notes.warnings)
    said[_NO_MESSAGES] += sum(
        span.kind == "call" and span.exchange.request is None and not span.exchange.answers for span in spans
    )
    return [f"{number} times: {text}" for text, number in said.items() if number]


def media_type_of(header: str | None) -> str:
    """The encoding of a request, which is that of its answer.

    Raises:
        UnsupportedMediaType: it is neither of OTLP's.
    """
    media_type = (header or "").partition(";")[0].strip().lower()
    if media_type not in MEDIA_TYPES:
        raise UnsupportedMediaType(content_type=header, hint=f"send {' or '.join(MEDIA_TYPES)}")
    return media_type


def refusal(error: TracestoreError, *, media_type: str) -> Response:
    """The answer to a request of which nothing was stored, with the headers that its problem has."""
    problem = problem_of(error)
    if problem["status"] == HTTPStatus.INSUFFICIENT_STORAGE:
        problem |= {"status": int(HTTPStatus.SERVICE_UNAVAILABLE), "retry_after_s": _FULL_RETRY_S}
    response = problem_response(problem)
    response.body = status(media_type=media_type, message=problem["detail"])
    response.headers["content-type"] = media_type
    response.headers["content-length"] = str(len(response.body))
    return response
