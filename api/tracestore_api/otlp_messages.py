"""Bytes of OTLP/HTTP -> records of spans, and answers -> bytes, in protobuf and in JSON.

Records are what `importers.otlp.found_spans` gives: a span as OTLP's JSON has it, with its resource and scope
beside it. What the protocol does not know is ignored, as it demands.

A protobuf request is cut into its spans before any of them is decoded: `_OUTER` is OTLP's request with the
messages inside as bytes, which are the same on the wire. So a span that is no protobuf, or whose text is no
UTF-8, costs itself and not its neighbours.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracestore.importers import exact
from tracestore.importers.notes import Notes
from tracestore.importers.otlp import found_spans
from tracestore_api.errors import InvalidExport

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
MEDIA_TYPES = (PROTOBUF, JSON)

Record = dict[str, Any]
"""{"span", "resource", "scope"}, the last two where they say something."""


@dataclass(frozen=True, slots=True)
class Export:
    """The spans of one request."""

    records: list[Record]
    refused: list[str]
    """What is no span, in words."""


def spans_of(body: bytes, *, media_type: str) -> Export:
    """The spans of a request.

    Raises:
        InvalidExport: the body is no request of OTLP.
    """
    return _of_protobuf(body) if media_type == PROTOBUF else _of_json(body)


# --- JSON ---------------------------------------------------------------------------------------------------


def _of_json(body: bytes) -> Export:
    try:
        value = exact.loads(body)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InvalidExport(reason=reason, hint="send an ExportTraceServiceRequest as JSON") from None
    if not isinstance(value, dict) or not isinstance(value.get("resourceSpans", []), list):
        raise InvalidExport(reason="resourceSpans is no list", hint='send {"resourceSpans": [...]}')
    notes = Notes()
    # A request without a span, and with fields that nobody knows, is one.
    records = list(found_spans({"resourceSpans": []} | value, "body", notes))
    return Export(records, notes.refused)


# --- Protobuf -----------------------------------------------------------------------------------------------


def _messages(package: str, described: dict[str, Sequence[tuple[str, int, str]]]) -> dict[str, type[Message]]:
    """Message classes of (field, number, type): `bytes`, `int32`, `string`, or a name for a list of it."""
    kinds = descriptor_pb2.FieldDescriptorProto
    plain = {"bytes": kinds.TYPE_BYTES, "int32": kinds.TYPE_INT32, "string": kinds.TYPE_STRING}
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in described.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            inner = kind.removesuffix("*")
            message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL,
                type=plain.get(inner, kinds.TYPE_MESSAGE),
                type_name=None if inner in plain else f".{package}.{inner}",
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in described
    }


_OUTER: dict[str, Any] = _messages(
    "tracestore.outer",
    {
        "ScopeSpans": [("scope", 1, "bytes"), ("spans", 2, "bytes*"), ("schema_url", 3, "bytes")],
        "ResourceSpans": [
            ("resource", 1, "bytes"),
            ("scope_spans", 2, "ScopeSpans*"),
            ("schema_url", 3, "bytes"),
        ],
        "Request": [("resource_spans", 1, "ResourceSpans*")],
        "Status": [("code", 1, "int32"), ("message", 2, "string")],
    },
)


def _of_protobuf(body: bytes) -> Export:
    try:
        request = _OUTER["Request"].FromString(body)
    except DecodeError as error:
        raise InvalidExport(reason=str(error), hint="send an ExportTraceServiceRequest as protobuf") from None
    records: list[Record] = []
    refused: list[str] = []
    for resource in request.resource_spans:
        about = _shared(resource.resource, Resource, _resource, "resource", resource.schema_url)
        for scope in resource.scope_spans:
            shared = {"resource": about}
            shared["scope"] = _shared(scope.scope, InstrumentationScope, _scope, "scope", scope.schema_url)
            beside = {name: one for name, one in shared.items() if one}
            for data in scope.spans:
                try:
                    records.append({"span": _span(Span.FromString(data))} | beside)
                except (DecodeError, UnicodeDecodeError) as error:
                    refused.append(f"span {len(records) + len(refused)}: {_named(data)}{error}")
    return Export(records, refused)


def _shared(data: bytes, kind: type[Any], told: Callable[[Any], Record], name: str, url: bytes) -> Record:
    """What spans have in common; what cannot be read of it is kept as it is."""
    found: Record = {"schemaUrl": url.decode("utf-8", "replace")} if url else {}
    if data:
        try:
            found[name] = told(kind.FromString(data))
        except (DecodeError, UnicodeDecodeError):
            found[f"{name} (unreadable)"] = base64.b64encode(data).decode("ascii")
    return {key: one for key, one in found.items() if one}


def _named(data: bytes) -> str:
    """The id of a span that cannot be decoded whole, for people."""
    return f"{data[20:28].hex()}: " if data[:2] == b"\x0a\x10" and data[18:20] == b"\x12\x08" else ""


def _span(span: Span) -> Record:
    said = {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "parentSpanId": span.parent_span_id.hex(),
        "traceState": span.trace_state,
        "flags": span.flags,
        "kind": span.kind,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _attributes(span.attributes),
        "droppedAttributesCount": span.dropped_attributes_count,
        "events": [_event(one) for one in span.events],
        "droppedEventsCount": span.dropped_events_count,
        "links": [_link(one) for one in span.links],
        "droppedLinksCount": span.dropped_links_count,
        "status": _told({"code": span.status.code, "message": span.status.message}),
    }
    return {"name": span.name} | _told(said)


def _told(fields: Record) -> Record:
    """The fields that say something: in protobuf, what was not sent is 0 or empty."""
    return {name: one for name, one in fields.items() if one}


def _event(event: Any) -> Record:
    return {"name": event.name} | _told(
        {
            "timeUnixNano": event.time_unix_nano,
            "attributes": _attributes(event.attributes),
            "droppedAttributesCount": event.dropped_attributes_count,
        }
    )


def _link(link: Any) -> Record:
    return _told(
        {
            "traceId": link.trace_id.hex(),
            "spanId": link.span_id.hex(),
            "traceState": link.trace_state,
            "flags": link.flags,
            "attributes": _attributes(link.attributes),
            "droppedAttributesCount": link.dropped_attributes_count,
        }
    )


def _resource(resource: Any) -> Record:
    return _told(
        {
            "attributes": _attributes(resource.attributes),
            "droppedAttributesCount": resource.dropped_attributes_count,
        }
    )


def _scope(scope: Any) -> Record:
    return _told({"name": scope.name, "version": scope.version}) | _resource(scope)


def _attributes(pairs: Iterable[Any]) -> list[Record]:
    return [{"key": one.key, "value": _value(one.value)} for one in pairs]


def _value(value: Any) -> Any:
    """An AnyValue as OTLP's JSON has it; integers stay numbers, which lose nothing here."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    told = _VALUES.get(kind)
    return None if told is None else {told[0]: told[1](getattr(value, kind))}


def _double(value: float) -> float | str:
    """JSON has no word for these; OTLP's JSON writes their names."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


_VALUES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "string_value": ("stringValue", str),
    "bool_value": ("boolValue", bool),
    "int_value": ("intValue", int),
    "double_value": ("doubleValue", _double),
    "bytes_value": ("bytesValue", lambda value: base64.b64encode(value).decode("ascii")),
    "array_value": ("arrayValue", lambda value: {"values": [_value(one) for one in value.values]}),
    "kvlist_value": ("kvlistValue", lambda value: {"values": _attributes(value.values)}),
}


# --- Answers ------------------------------------------------------------------------------------------------


def answer(*, media_type: str, rejected: int, message: str) -> bytes:
    """An ExportTraceServiceResponse.

    Args:
        rejected: spans of the request that were not stored.
        message: why; a warning where none was rejected; "" where all is well.
    """
    if media_type == JSON:
        # 64-bit integers stand as text in protobuf's JSON.
        partial_success = _told({"rejectedSpans": str(rejected) if rejected else "", "errorMessage": message})
        return _json({"partialSuccess": partial_success} if partial_success else {})
    response = ExportTraceServiceResponse()
    if rejected or message:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = _utf8(message)
    data: bytes = response.SerializeToString()
    return data


def status(*, media_type: str, message: str) -> bytes:
    """A google.rpc.Status, which OTLP demands of every error. Its code says nothing: HTTP's does."""
    if media_type == JSON:
        return _json({"message": message})
    data: bytes = _OUTER["Status"](message=_utf8(message)).SerializeToString()
    return data


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _json(value: Record) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")
