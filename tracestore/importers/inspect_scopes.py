"""Events of an Inspect sample -> the scopes that they lie in: what tells its agents apart.

A scope is a span (`span_begin` to `span_end`, with a type and a parent), before May 2025 a step (`begin` to
`end`, in order), or a tool or subtask event that holds events of its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracestore.importers.items import nanoseconds, taken
from tracestore.importers.notes import Notes


@dataclass
class Scope:
    """A span, a step, or an event that holds events."""

    kind: str | None
    name: str | None
    parent: str | None
    begin: dict[str, Any]
    """What its first event says beyond this."""
    started_at: int | None
    ended_at: int | None = None


class Event(NamedTuple):
    """An event of a sample, wherever it lies."""

    key: str
    """Its place among the sample's events: `12`, or `12.3` inside event 12."""
    scope: str | None
    """The innermost step, tool or subtask that it lies in."""
    value: dict[str, Any]


def flat(
    events: list[Any], notes: Notes, at: str, *, path: str = "", scope: str | None = None
) -> Iterator[Event]:
    """Events and the events inside them; a step is a scope until its end."""
    within: list[str | None] = [scope]
    for place, event in enumerate(events):
        key = f"{path}{place}"
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            notes.refuse(f"{at}, event {key}", "no event: it is an object that names its event")
            continue
        kind, action = event["event"], event.get("action")
        notes.rows[f"inspect/event {kind}"] += 1
        if kind == "step" and action == "end" and len(within) > 1:
            within.pop()
        nested = taken(event, "events", list) if kind in ("tool", "subtask") else None
        yield Event(key, within[-1], event)
        if kind == "step" and action == "begin":
            within.append(key)
        yield from flat(nested or [], notes, at, path=f"{key}.", scope=key)


def scopes_of(events: list[Event]) -> dict[str, Scope]:
    """Every scope of a sample by name: a span's id, or the key of the step or event."""
    found: dict[str, Scope] = {}
    for key, scope, event in events:
        kind, at = event["event"], nanoseconds(event.get("timestamp"))
        if kind == "span_begin" and isinstance(event.get("id"), str):
            parent = event.get("parent_id") or scope
            found[event["id"]] = Scope(text_of(event, "type"), text_of(event, "name"), parent, event, at)
        elif kind == "span_end" and event.get("id") in found:
            found[event["id"]].ended_at = at
        elif kind == "step" and event.get("action") == "begin":
            found[key] = Scope(text_of(event, "type"), text_of(event, "name"), scope, event, at)
        elif kind in ("tool", "subtask"):
            name = text_of(event, "function" if kind == "tool" else "name")
            within = event.get("span_id") or scope
            found[key] = Scope(kind, name, within, {}, at, nanoseconds(event.get("completed")))
    return found


def text_of(record: dict[str, Any], name: str) -> str | None:
    """A field that is text; None where it is none."""
    value = record.get(name)
    return value if isinstance(value, str) else None


def tool_of_span(events: list[Event], scopes: dict[str, Scope]) -> dict[str, str]:
    """The tool event that each tool span is the work of: the k-th of one name for the k-th, in their span."""
    places: dict[tuple[str | None, str | None], list[str]] = defaultdict(list)
    for key, scope, event in events:
        if event["event"] == "tool":
            places[event.get("span_id") or scope, text_of(event, "function")].append(key)
    found, seen = {}, Counter[tuple[str | None, str | None]]()
    for name, one in scopes.items():
        if one.kind == "tool" and one.begin:
            kin = (one.parent, one.name)
            if seen[kin] < len(places[kin]):
                found[name] = places[kin][seen[kin]]
            seen[kin] += 1
    return found
