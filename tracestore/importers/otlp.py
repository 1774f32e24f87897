"""OpenTelemetry spans as JSON -> episodes: OTLP requests, lists of SDK spans, and bare attributes.

- OTLP/JSON (`resourceSpans`, also in snake case as Phoenix writes it): ids are hex of any case, integers may
  be text, attributes are lists of {key, value}. A file is one request, or one a line (the collector's file
  exporter). The trace's id is the episode; `gen_ai.conversation.id` and `session.id` stay in `meta`.
- SDK span JSON: a list of spans, one span, or one a line: `spanContext` or `context` with the ids,
  attributes as an object, times as [seconds, nanoseconds], ISO 8601 or nanoseconds.
- A bare object of attributes (a span's, as test suites keep them) is a trace of one span, named by content.
- Captured export requests whose body is left out, and lists of span names, hold no span: they are noted.
- Attributes are read as `otel_attributes` says, and spans become events as `spans` says.
- Resource, scope, links, trace state, flags and events that say nothing of messages are kept in `meta`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from tracestore.importers import otel_attributes, span_files
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import guarded
from tracestore.importers.items import Item, content_id
from tracestore.importers.notes import Notes
from tracestore.importers.spans import Span

_SPAN_IDS = ("spanId", "span_id")
_MARKS = ("gen_ai.", "openinference.", "llm.", "ai.", "traceloop.")
_STATUS = {1: True, 2: False, "STATUS_CODE_OK": True, "STATUS_CODE_ERROR": False, "OK": True, "ERROR": False}


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and rewards of the spans, one trace at a time."""
    yield from span_files.read(sources, format="otlp", notes=notes, found=_found, to_spans=_spans)


def events_of(value: Any, *, at: str, notes: Notes) -> Iterator[Item]:
    """The events of one request (or list of spans) that is in memory, trace by trace.

    Args:
        at: its place, for people.
    """
    traces: dict[str, list[tuple[Any, str]]] = {}
    for trace_id, one in guarded(_found(value, at, notes), at=at, notes=notes):
        traces.setdefault(trace_id, []).append((one, at))
    for trace_id in sorted(traces):
        yield from span_files.of_trace(
            trace_id, traces[trace_id], format="otlp", notes=notes, to_spans=_spans
        )


def span_of(record: dict[str, Any], *, at: str, notes: Notes) -> Span | None:
    """The span of one of `found_spans`; None where it has no ids or cannot be read, and the notes say why."""
    trace_id = _trace_id(record["span"])
    if trace_id is None:
        notes.refuse(at, "a span without a trace id")
        return None
    return next(iter(_spans(trace_id, [(record, at)], notes)), None)


def _found(value: Any, at: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    for one in found_spans(value, at, notes):
        notes.rows["otlp/span"] += 1
        yield _trace_id(one["span"]) or content_id("trace", one["span"]), one


def _spans(trace_id: str, kept: list[tuple[Any, str]], notes: Notes) -> Iterator[Span]:
    for value, at in kept:
        yield from guarded(_span(trace_id, value, at, notes), at=at, notes=notes)


def found_spans(value: Any, at: str, notes: Notes) -> Iterator[dict[str, Any]]:
    """The spans of a record, each as {"span": ..., and what it shares with others}."""
    if isinstance(value, list):
        for one in value:
            yield from found_spans(one, at, notes)
    elif isinstance(value, dict) and any(isinstance(value.get(name), list) for name in _RESOURCE):
        yield from _of_request(value, at, notes)
    elif _is_span(value) or _is_attributes(value):
        yield {"span": value}
    else:
        notes.rows["otlp/record without a span"] += 1
        notes.leftover("otlp: record without a span", value, at=at)


_RESOURCE = ("resourceSpans", "resource_spans")
_SCOPE = ("scopeSpans", "scope_spans", "instrumentationLibrarySpans")


def _of_request(value: dict[str, Any], at: str, notes: Notes) -> Iterator[dict[str, Any]]:
    others = {name: one for name, one in value.items() if name not in _RESOURCE}
    if others:
        notes.leftover("otlp: field of a request", others, at=at)
    for resource in _each(value, _RESOURCE, at, notes):
        for scope in _each(resource, _SCOPE, at, notes):
            shared = {"resource": _without(resource, _SCOPE), "scope": _without(scope, ("spans",))}
            for span in _each(scope, ("spans",), at, notes):
                yield {"span": span} | {name: one for name, one in shared.items() if one}


def _without(value: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: one for name, one in value.items() if name not in names}


def _each(value: dict[str, Any], names: tuple[str, ...], at: str, notes: Notes) -> Iterator[dict[str, Any]]:
    for name in names:
        for one in value[name] if isinstance(value.get(name), list) else ():
            if isinstance(one, dict):
                yield one
            else:
                notes.refuse(at, f"an element of {name} is no object")


def _is_span(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    context = _context(value)
    return any(isinstance(context.get(name), str) for name in _SPAN_IDS) and "name" in value


def _is_attributes(value: Any) -> bool:
    return isinstance(value, dict) and any(
        name.startswith(_MARKS) and not isinstance(one, dict) for name, one in value.items()
    )


def _context(value: dict[str, Any]) -> dict[str, Any]:
    for name in ("spanContext", "context"):
        if isinstance(value.get(name), dict):
            context: dict[str, Any] = value[name]
            return context
    return value


def _trace_id(value: dict[str, Any]) -> str | None:
    context = _context(value)
    found = context.get("traceId", context.get("trace_id"))
    return _hex(found)


def _hex(value: Any) -> str | None:
    """An id as lower-case hex; some exporters write base64, or 0x before it."""
    if not isinstance(value, str) or not value:
        return None
    text = value.lower().removeprefix("0x")
    if set(text) <= set("0123456789abcdef"):
        return None if set(text) == {"0"} else text
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return value
    return data.hex() if len(data) in (8, 16) else value


# --- One span -------------------------------------------------------------------------------------------


def _span(trace_id: str, record: dict[str, Any], at: str, notes: Notes) -> Iterator[Span]:
    shared = dict(record)
    value = dict(shared.pop("span"))
    if not _is_span(value):
        if not _is_attributes(value):
            notes.refuse(at, "a span without an id")
            return
        span_id = content_id("span", value)
        yield otel_attributes.span_of(value, trace_id=trace_id, span_id=span_id, place=at)
        return
    context = _context(value)
    named = next(_hex(context[name]) for name in _SPAN_IDS if isinstance(context.get(name), str))
    known = {
        "trace_id": trace_id,
        "span_id": named or content_id("span", value),
        "parent_id": _parent(value),
        "place": at,
        "started_at": _moment(value, "startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time"),
        "ended_at": _moment(value, "endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time"),
        "name": value.pop("name") if isinstance(value.get("name"), str) else None,
    }
    known |= _status(value)
    attributes = _attributes(value.pop("attributes", None))
    told = value.get("events")
    is_known = isinstance(told, list) and all(isinstance(one, dict) for one in told)
    events = [_event(one) for one in value.pop("events")] if is_known else []
    known["rest"] = _left(value) | shared
    yield otel_attributes.span_of(attributes, events, **known)


def _left(value: dict[str, Any]) -> dict[str, Any]:
    """The rest of a span without the ids, which are the event's."""
    ids = {"traceId", "trace_id", "spanId", "span_id", "parentSpanId", "parent_span_id"}
    rest = {name: one for name, one in value.items() if name not in ids and one not in (None, [], {})}
    for name in ("spanContext", "context"):
        if isinstance(rest.get(name), dict):
            rest[name] = {key: one for key, one in rest[name].items() if key not in ids}
            if not rest[name]:
                del rest[name]
    return rest


def _parent(value: dict[str, Any]) -> str | None:
    for name in ("parentSpanId", "parent_span_id", "parentId", "parent_id"):
        if name in value:
            return _hex(value.pop(name))
    context = value.pop("parentSpanContext", None)
    return _hex(context.get("spanId")) if isinstance(context, dict) else None


def _moment(value: dict[str, Any], *names: str) -> int | None:
    for name in names:
        told = value.get(name)
        is_exact = name.lower().endswith("nano") and (isinstance(told, int) or str(told).isdecimal())
        found = _exact(told) if is_exact else otel_attributes.moment(told)
        if found is not None:
            del value[name]
            return found
    return None


def _exact(value: Any) -> int | None:
    """A time whose unit its name states: no size of the number tells another. 0 is unknown."""
    number = int(value) if isinstance(value, (int, str)) and len(str(value)) < 20 else 0
    return number if 0 < number < 2**63 else None


def _status(value: dict[str, Any]) -> dict[str, Any]:
    status = value.get("status")
    if not isinstance(status, dict):
        return {}
    rest = dict(status)
    code = rest.pop("code", rest.pop("status_code", rest.pop("statusCode", None)))
    is_ok = _STATUS.get(code) if isinstance(code, (int, str)) and not isinstance(code, bool) else None
    message = rest.pop("message", rest.pop("description", None))
    known = {"is_ok": is_ok, "error": message if isinstance(message, str) and message else None}
    if code is not None:
        rest["code"] = code
    value.pop("status")
    if rest:
        value["status"] = rest
    return known


def _event(value: dict[str, Any]) -> dict[str, Any]:
    event = dict(value)
    event["attributes"] = _attributes(event.get("attributes"))
    at = _moment(event, "timeUnixNano", "time_unix_nano", "time", "timestamp")
    return event | ({"at": at} if at is not None else {})


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes by name, from OTLP's list of {key, value} or an object."""
    if isinstance(value, dict):
        return dict(value)
    found: dict[str, Any] = {}
    for one in value if isinstance(value, list) else ():
        if isinstance(one, dict) and isinstance(one.get("key"), str) and one["key"] not in found:
            found[one["key"]] = _value(one.get("value"))
        else:
            found.setdefault("(not an attribute)", []).append(one)
    return found


def _value(value: Any) -> Any:
    """An AnyValue of OTLP."""
    if not isinstance(value, dict) or len(value) != 1:
        return value
    kind, inner = next(iter(value.items()))
    kind = kind.replace("_value", "Value")
    if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        return inner
    if kind == "intValue":
        is_text = isinstance(inner, str) and inner.lstrip("-").isdecimal()
        return int(inner) if is_text and len(inner) <= 20 else inner
    if kind == "arrayValue":
        return [_value(one) for one in inner.get("values") or ()] if isinstance(inner, dict) else value
    if kind == "kvlistValue":
        return _attributes(inner.get("values")) if isinstance(inner, dict) else value
    return value


def _recognises(head: Head) -> bool:
    first = head.first
    if isinstance(first, list):
        return bool(first) and all(_is_ours(one) for one in first[:20])
    return _is_ours(first)


def _is_ours(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if any(isinstance(value.get(name), list) for name in _RESOURCE):
        return True
    if _is_request_snapshot(value) or value.keys() == {"hasParent", "name"}:
        return True
    times = ("startTimeUnixNano", "start_time_unix_nano", "startTime", "start_time")
    return _is_attributes(value) or (_is_span(value) and any(name in value for name in times))


def _is_request_snapshot(value: dict[str, Any]) -> bool:
    path = value.get("path")
    return isinstance(path, str) and path.endswith("/v1/traces") and "method" in value


FORMAT = Format("otlp", "OpenTelemetry spans (OTLP JSON, span lists)", _recognises, read)
