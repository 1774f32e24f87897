"""Phoenix exports -> episodes: spans as its REST API, its client and its web page write them.

- A span has `context` {trace_id, span_id}, `parent_id`, `span_kind` (OpenInference), `status_code`,
  `start_time` / `end_time` in ISO 8601, `attributes` and `events`. Attributes are flat
  (`llm.model_name`) or nested; a list of messages may hold flat keys (`message.role`). A data frame written
  as records has flat columns: `context.span_id`, `attributes.llm.model_name`.
- Spans stand one a line, in a list, or in a page ({"data": [...], "next_cursor"}). Phoenix's OTLP download is
  OTLP (`otlp`).
- `annotations` of a span are scores where they have one; `session.id` stays in `meta`.
- Neither sub-agents nor compactions are marked beyond the span kind AGENT.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers import otel_attributes, span_files
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import guarded
from tracestore.importers.items import Item, nanoseconds, taken
from tracestore.importers.notes import Notes
from tracestore.importers.spans import Score, Span

_STATUS = {"OK": True, "ERROR": False}


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and rewards of the spans, one trace at a time."""
    yield from span_files.read(sources, format="phoenix", notes=notes, found=_found, to_spans=_spans)


def _found(value: Any, at: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    for one in span_files.pages(value, ("data", "spans")):
        span = _nested(one) if isinstance(one, dict) and "context.span_id" in one else one
        if _is_span(span):
            notes.rows["phoenix/span"] += 1
            yield span["context"]["trace_id"], span
        else:
            notes.rows["phoenix/record without a span"] += 1
            notes.leftover("phoenix: record without a span", one, at=at)


def _is_span(value: Any) -> bool:
    context = value.get("context") if isinstance(value, dict) else None
    return isinstance(context, dict) and all(
        isinstance(context.get(name), str) for name in ("trace_id", "span_id")
    )


def _nested(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a data frame as a span."""
    span: dict[str, Any] = {"context": {}, "attributes": {}}
    for name, value in row.items():
        first, dot, rest = name.partition(".")
        if dot and first in span:
            if value is not None:
                span[first][rest] = value
        else:
            span[name] = value
    return span


def _spans(_trace_id: str, kept: list[tuple[Any, str]], notes: Notes) -> Iterator[Span]:
    for value, at in kept:
        yield from guarded(_span(dict(value), at), at=at, notes=notes)


def _span(value: dict[str, Any], at: str) -> Iterator[Span]:
    context = dict(value.pop("context"))
    given = value.pop("attributes", None)
    attributes = (
        flat(given) if isinstance(given, dict) else {"attributes": given} if given is not None else {}
    )
    kind = taken(value, "span_kind", str)
    if kind is not None:
        attributes.setdefault("openinference.span.kind", kind)
    known: dict[str, Any] = {
        "trace_id": context.pop("trace_id"),
        "span_id": context.pop("span_id"),
        "parent_id": taken(value, "parent_id", str) or None,
        "name": taken(value, "name", str),
        "place": at,
    }
    for field, name in (("started_at", "start_time"), ("ended_at", "end_time")):
        known[field] = nanoseconds(value.get(name))
        if known[field] is not None:
            del value[name]
    code = value.get("status_code")
    known["is_ok"] = _STATUS.get(code) if isinstance(code, str) else None
    known["error"] = taken(value, "status_message", str) or None
    events = [_event(one) for one in taken(value, "events", list) or () if isinstance(one, dict)]
    scores = _scores(value)
    rest = {name: one for name, one in value.items() if one not in (None, [], {})}
    rest |= {"context": context} if context else {}
    span = otel_attributes.span_of(attributes, events, **known, rest=rest)
    yield Span(
        **{name: getattr(span, name) for name in span.__dataclass_fields__} | {"scores": span.scores + scores}
    )


def flat(value: dict[str, Any]) -> dict[str, Any]:
    """Attributes under dotted names, from objects and lists of objects inside one another.

    Example: {"llm": {"input_messages": [{"message": {"role": "user"}}]}}
        -> {"llm.input_messages.0.message.role": "user"}
    """
    found: dict[str, Any] = {}
    for name, one in value.items():
        if isinstance(one, dict) and one:
            found |= {f"{name}.{inner}": deep for inner, deep in flat(one).items()}
        elif isinstance(one, list) and one and all(isinstance(element, dict) for element in one):
            listed = {str(place): element for place, element in enumerate(one)}
            found |= {f"{name}.{inner}": deep for inner, deep in flat(listed).items()}
        else:
            found[name] = one
    return found


def _event(value: dict[str, Any]) -> dict[str, Any]:
    event = dict(value)
    at = nanoseconds(event.get("timestamp"))
    if at is not None:
        event["at"] = at
        del event["timestamp"]
    attributes = event.get("attributes")
    return event | {"attributes": flat(attributes) if isinstance(attributes, dict) else {}}


def _scores(value: dict[str, Any]) -> tuple[Score, ...]:
    """Annotations with a score; the others stay in the span."""
    found, others = [], []
    for one in taken(value, "annotations", list) or ():
        inner = one.get("result") if isinstance(one, dict) else None
        result = dict(inner) if isinstance(inner, dict) else dict(one) if isinstance(one, dict) else {}
        score = taken(result, "score", float)
        if score is None or not isinstance(one.get("name"), str):
            others.append(one)
            continue
        rest = {
            name: part for name, part in one.items() if name not in ("name", "id", "annotator_kind", "result")
        }
        rest |= result
        scorer = one.get("annotator_kind")
        found.append(
            Score(one["name"], float(score), scorer=scorer if isinstance(scorer, str) else None, rest=rest)
        )
    if others:
        value["annotations"] = others
    return tuple(found)


def _recognises(head: Head) -> bool:
    first = next(span_files.pages(head.first, ("data", "spans")), None)
    if not isinstance(first, dict):
        return False
    return "context.span_id" in first or (_is_span(first) and "span_kind" in first and "status_code" in first)


FORMAT = Format("phoenix", "Phoenix span exports", _recognises, read)
