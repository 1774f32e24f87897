"""The service, as a document for programs: what FastAPI knows of it, and what it cannot see into.

FastAPI sees the paths and parameters of reads. The answers, the plain ASGI doors, the keys and the errors,
which are problems (RFC 9457) everywhere, are added here. The doors of the recording proxy and of replays are
not in it: the providers describe what is spoken there.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import deepcopy
from typing import Any

from tracestore.wire.events import EVENT
from tracestore_api import shapes
from tracestore_api.access import KEY_HEADER, SESSION_COOKIE
from tracestore_api.parameters import DEFAULT_PROJECT, PROJECT_HEADER
from tracestore_api.shapes import ITEMS, REF, TEXT, Schema, page, ref

JSON = "application/json"
NDJSON = "application/x-ndjson"
PROBLEM = "application/problem+json"
PROTOBUF = "application/x-protobuf"
BYTES = "application/octet-stream"
PARTIAL = "application/partial-upload"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"

_BINARY: Schema = {"type": "string", "format": "binary"}
_WITHOUT_KEY = ("/v1/health",)
_WITHOUT_PROJECT = (*_WITHOUT_KEY, "/v1/session")

ANSWERS: dict[str, Schema] = {
    "/v1/health": shapes.HEALTH,
    "/v1/meta": shapes.META,
    "/v1/episodes": page("EpisodeItem"),
    "/v1/episodes/{episode_id}": ref("EpisodeTree"),
    "/v1/groups": page("GroupItem"),
    "/v1/agents": page("AgentItem"),
    "/v1/calls": page("CallItem"),
    "/v1/calls/{call_id}": ref("WholeCall"),
    "/v1/calls/{call_id}/request": shapes.ANY,
    "/v1/calls/{call_id}/context": ref("Context"),
    "/v1/candidates": page("CandidateItem"),
    "/v1/rewards": page("RewardItem"),
    "/v1/gaps": page("GapItem"),
    "/v1/orphans": page("OrphanItem"),
    "/v1/incomplete": page("IncompleteItem"),
    "/v1/blobs": page("BlobItem"),
}
"""What a GET answers with 200, by path."""


def complete(found: dict[str, Any], *, doors: Collection[tuple[str, str]]) -> dict[str, Any]:
    """The whole document.

    Args:
        found: as FastAPI makes it; it is changed.
        doors: method and path of the plain ASGI routes.
    """
    events = EVENT.json_schema(ref_template=REF + "{model}")
    components = found.setdefault("components", {})
    schemas: dict[str, Schema] = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas |= _schemas(events)
    components["securitySchemes"] = _SECURITY
    for (method, path), operation in _DOORS.items():
        if (method, path) in doors:
            found["paths"].setdefault(path, {})[method.lower()] = deepcopy(operation)
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            _finish(method, path, operation)
    # Without keys in its database the server takes requests of this machine without one.
    found["security"] = [{"key": []}, {"key_header": []}, {"session": []}, {}]
    return found


def _schemas(events: Schema) -> dict[str, Schema]:
    posted: dict[str, Schema] = events.pop("$defs")
    things = shapes.shown_events(posted)
    return {
        **posted,
        "Event": events,
        **things,
        **shapes.trees(things),
        **ITEMS,
        "Problem": shapes.PROBLEM,
        "Posted": shapes.POSTED,
        "PostedItem": shapes.POSTED_ITEM,
    }


def _finish(method: str, path: str, operation: dict[str, Any]) -> None:
    """What all operations have in common: their problems, their project, their answer."""
    responses = operation["responses"]
    # What FastAPI says of a query that it cannot read; it is a problem as any other.
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]
    if method == "get" and path in ANSWERS:
        responses["200"]["content"] = {JSON: {"schema": ANSWERS[path]}}
    problem = {"schema": ref("Problem")}
    for status, response in responses.items():
        if status.startswith("4"):
            response["content"][PROBLEM] = problem
    responses["default"] = {"description": "what went wrong, and what to do", "content": {PROBLEM: problem}}
    if path == _TRACES:
        # Its answers are OTLP's, in the encoding of the request.
        responses["200"]["content"][PROTOBUF] = {"schema": _BINARY}
        responses["default"]["content"] |= {JSON: {"schema": _OTLP_ERROR}, PROTOBUF: {"schema": _BINARY}}
    if path in _WITHOUT_KEY:
        operation["security"] = []
    if path not in _WITHOUT_PROJECT:
        operation.setdefault("parameters", []).append(_PROJECT)


def _answer(description: str, schema: Schema | None = None, media_type: str = JSON) -> dict[str, Any]:
    """A response, without a body where there is no schema."""
    if schema is None:
        return {"description": description}
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _door(
    name: str, summary: str, *, body: dict[str, Schema] | None = None, **responses: dict[str, Any]
) -> dict[str, Any]:
    """An operation; the responses are named `_200`."""
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": summary,
        "responses": {status.lstrip("_"): answer for status, answer in responses.items()},
    }
    if body is not None:
        content = {media_type: {"schema": schema} for media_type, schema in body.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


_PROJECT: Schema = {
    "name": PROJECT_HEADER,
    "in": "header",
    "required": False,
    # Without a default: a client that sent it would name another project than that of its key.
    "description": f"A key names its project by itself. Without keys: the project, else {DEFAULT_PROJECT!r}.",
    "schema": {"type": "string"},
}
_SECURITY: dict[str, Schema] = {
    "key": {"type": "http", "scheme": "bearer", "description": "an API key, ts_..."},
    "key_header": {"type": "apiKey", "in": "header", "name": KEY_HEADER},
    "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE},
}
_EVENT = ref("Event")
_OTLP: Schema = {"type": "object", "description": "ExportTraceServiceRequest of OTLP"}
_OTLP_ANSWER: Schema = {"type": "object", "description": "ExportTraceServiceResponse of OTLP"}
_OTLP_ERROR: Schema = {"type": "object", "description": "google.rpc.Status"}
_TRACES = "/v1/traces"
_HASH: Schema = {
    "name": "hash",
    "in": "path",
    "required": True,
    "description": "SHA-256 of the bytes",
    "schema": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
}
_TAKEN = _answer("the bytes are durable", shapes.BLOB_TAKEN)
_BLOB = "/v1/blobs/{hash}"
_DOORS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/events"): _door(
        "post_events",
        "Post one event, an array of events, or one event a line",
        body={
            JSON: {"anyOf": [_EVENT, {"type": "array", "items": _EVENT}]},
            NDJSON: {"type": "string", "description": "one event a line"},
        },
        _200=_answer("every event is stored, or was already", ref("Posted")),
        _207=_answer("some are; `items` says which", ref("Posted")),
        _422=_answer("none is; `items` says why", ref("Posted")),
    ),
    ("POST", "/v1/rewards"): _door(
        "post_reward",
        "Post one reward; `v`, `kind` and `id` may be left out",
        body={JSON: {"type": "object", "description": "a Reward without its first fields"}},
        _200=_answer("stored, or was already", shapes.REWARDED),
    ),
    ("POST", "/v1/sql"): _door(
        "post_sql",
        "Answer one SELECT over the views of the project",
        body={JSON: shapes.SQL_REQUEST},
        _200={
            "description": "the rows; the header X-Tracestore-Truncated says whether there are more",
            "content": {
                JSON: {"schema": shapes.SQL_ROWS},
                CSV: {"schema": TEXT},
                ARROW: {"schema": _BINARY},
            },
        },
    ),
    ("POST", _TRACES): _door(
        "post_traces",
        "Export spans by OpenTelemetry's OTLP/HTTP",
        body={PROTOBUF: _BINARY, JSON: _OTLP},
        _200=_answer("taken; `partialSuccess` says what was not", _OTLP_ANSWER),
    ),
    ("GET", _BLOB): {
        **_door(
            "get_blob",
            "The bytes of a blob, or a range of them",
            _200=_answer("the bytes", _BINARY, BYTES),
            _206=_answer("the range", _BINARY, BYTES),
        ),
        "parameters": [_HASH],
    },
    ("HEAD", _BLOB): {
        **_door(
            "head_blob",
            "Whether a blob is there, else how much of it has come (`Upload-Offset`)",
            _200=_answer("it is there"),
        ),
        "parameters": [_HASH],
    },
    ("PUT", _BLOB): {
        **_door("put_blob", "Store a blob", body={BYTES: _BINARY}, _200=_TAKEN, _201=_TAKEN),
        "parameters": [_HASH],
    },
    ("PATCH", _BLOB): {
        **_door(
            "patch_blob",
            "Go on with an upload that was broken off, from `Upload-Offset`",
            body={PARTIAL: _BINARY},
            _200=_TAKEN,
            _201=_TAKEN,
            _204=_answer("more of it has come"),
        ),
        "parameters": [_HASH],
    },
}
