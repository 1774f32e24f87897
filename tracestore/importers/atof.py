"""ATOF event streams of NVIDIA's agent runtimes (NeMo Relay, NeMo Agent Toolkit; v0.1, v0.2) -> episodes.

- One event a line. v0.1: kind `scope` with scope_category start / end, or `mark`; v0.2: ScopeStart, ScopeEnd,
  Mark, StreamHeaderEvent. Start and end of a scope share `uuid`, and `parent_uuid` names the scope above.
- `category` (v0.2: scope_type) llm is a call, tool a tool call, agent an agent; other scopes make no event.
- The episode is `metadata.session_id`, else `metadata.trace_id`, else the file. Marks that name a sub-agent
  (`*.subagent.start` with `child_session_id`) begin an agent; other marks are noted as not understood.
- What a scope read is the start's `data` or `input` (a provider's request, or {content: request}) and
  `category_profile.annotated_request`; what it said is the end's `data` or `output`, with usage and finish
  reason there or in `category_profile.annotated_response`.
- A scope with only an end, or only a start, is kept as far as it goes; a start alone has no status.
- `timestamp` is RFC 3339 or microseconds.
- Compactions are not marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracestore.importers import span_files
from tracestore.importers.chat_shapes import Exchange, Spoken, as_text, exchange
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import guarded
from tracestore.importers.items import Item, content_id, nanoseconds, taken
from tracestore.importers.notes import Notes
from tracestore.importers.otel_attributes import whole_number
from tracestore.importers.spans import Kind, Span, size
from tracestore.importers.usage import counted
from tracestore.wire.call import Usage

_KINDS: dict[str, Kind] = {"llm": "call", "tool": "tool", "agent": "agent"}
_PHASES = {"ScopeStart": "start", "ScopeEnd": "end"}
_USAGE = {
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "cached_tokens": ("cache_read_tokens", "cached_tokens"),
    "cache_write_tokens": ("cache_write_tokens",),
    "completion_tokens": ("completion_tokens", "output_tokens"),
    "reasoning_tokens": ("reasoning_tokens",),
}


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls and tool calls of the streams, one session at a time."""
    yield from span_files.read(sources, format="atof", notes=notes, found=_found, to_spans=_spans)


def _found(value: Any, at: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    if not _is_event(value):
        notes.rows["atof/other record"] += 1
        notes.leftover("atof: record that is no event", value, at=at)
        return
    phase = _phase(value)
    notes.rows[f"atof/{'mark' if phase is None else 'scope'}"] += 1
    metadata = value["metadata"] if isinstance(value.get("metadata"), dict) else {}
    ids = (metadata.get("session_id"), metadata.get("trace_id"))
    session = next((one for one in ids if isinstance(one, str) and one), at.rpartition(", line ")[0])
    if phase is None and not _is_sub_agent(value):
        notes.leftover(f"atof: mark {value.get('name')}", value, at=at)
        return
    yield session, value


def _is_event(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("uuid"), str):
        return False
    return value.get("kind") in ("scope", "mark", "Mark", *_PHASES)


def _phase(value: dict[str, Any]) -> str | None:
    if value["kind"] == "scope":
        return "end" if value.get("scope_category") == "end" else "start"
    return _PHASES.get(value["kind"])


def _is_sub_agent(value: dict[str, Any]) -> bool:
    data = value.get("data")
    named = str(value.get("name")).endswith(".subagent.start")
    return named and isinstance(data, dict) and isinstance(data.get("child_session_id"), str)


# --- Events -> spans --------------------------------------------------------------------------------------


def _spans(session: str, kept: list[tuple[Any, str]], notes: Notes) -> Iterator[Span]:
    scopes: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for value, at in kept:
        if _phase(value) is None:
            yield from guarded(_sub_agent(session, dict(value), at), at=at, notes=notes)
        else:
            scopes.setdefault(value["uuid"], []).append((value, at))
    for halves in scopes.values():
        yield from guarded(_scope(session, halves), at=halves[0][1], notes=notes)


def _sub_agent(session: str, value: dict[str, Any], at: str) -> Iterator[Span]:
    data = dict(value.pop("data"))
    rest = {name: one for name, one in (value | {"data": data}).items() if one not in (None, [], {})}
    yield Span(
        trace_id=session,
        span_id=data.pop("child_session_id"),
        parent_id=taken(rest, "parent_uuid", str),
        kind="agent",
        size=size(value),
        place=at,
        name=taken(data, "child_role", str),
        started_at=_moment(rest),
        rest=rest,
    )


def _scope(session: str, halves: list[tuple[dict[str, Any], str]]) -> Iterator[Span]:
    starts, ends = _distinct(halves, "start"), _distinct(halves, "end")
    start, end = (starts[0] if starts else {}), (ends[0] if ends else {})
    first = dict(start or end)
    kind = _KINDS.get(str(first.get("category", first.get("scope_type"))), "other")
    known: dict[str, Any] = {
        "trace_id": session,
        "span_id": first["uuid"],
        "parent_id": first["parent_uuid"] if isinstance(first.get("parent_uuid"), str) else None,
        "kind": kind,
        "size": sum(size(value) for value in (*starts, *ends)),
        "place": halves[0][1],
        "name": first["name"] if isinstance(first.get("name"), str) else None,
        "started_at": _moment(start),
        "ended_at": _moment(end),
    }
    known |= _outcome(end)
    given, got = _payload(start, "data", "input"), _payload(end, "data", "output")
    if kind == "call":
        known |= _call(given, got, start, end)
    elif kind == "tool":
        known |= {"tool": _tool(known["name"], given, start, end), "result": got}
    elif kind == "agent":
        known["exchange"] = exchange(given, got)
    rest: dict[str, Any] = {} if kind != "other" else {"given": given, "got": got}
    rest |= {"start": _left(start), "end": _left(end, start), "again": [*starts[1:], *ends[1:]]}
    rest |= {"name": known["name"]} if kind == "call" else {}
    yield Span(**known, rest={name: one for name, one in rest.items() if one not in (None, [], {})})


def _distinct(halves: list[tuple[dict[str, Any], str]], phase: str) -> list[dict[str, Any]]:
    """The starts, or the ends, of a scope: one event that stands twice is one."""
    found: list[dict[str, Any]] = []
    for value, _ in halves:
        if _phase(value) == phase and value not in found:
            found.append(value)
    return [dict(value) for value in sorted(found, key=lambda value: content_id("", value))]


def _left(value: dict[str, Any], other: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is left of a half; of the end only what the start did not say too."""
    return {
        name: one
        for name, one in value.items()
        if one not in (None, [], {}) and (other is None or other.get(name) != one)
    }


def _moment(value: dict[str, Any]) -> int | None:
    moment = nanoseconds(value.get("timestamp"))
    if moment is not None:
        del value["timestamp"]
    return moment


def _payload(value: dict[str, Any], *names: str) -> Any:
    for name in names:
        if value.get(name) is not None:
            return value.pop(name)
    return None


def _outcome(end: dict[str, Any]) -> dict[str, Any]:
    if not end:
        return {}
    metadata = end["metadata"] if isinstance(end.get("metadata"), dict) else {}
    data = end["data"] if isinstance(end.get("data"), dict) else {}
    error = next((one for one in (data.get("error"), end.get("error")) if one), None)
    told = (
        metadata.get("reason"),
        metadata.get("status"),
        end.get("status"),
        metadata.get("otel.status_code"),
    )
    failed = error is not None or any(
        str(one).lower() in ("error", "failed", "cancelled") for one in told if one
    )
    text = error if isinstance(error, str) else None if error is None else as_text(error)
    return {"is_ok": not failed, "error": text}


def _call(given: Any, got: Any, start: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
    sent = given["content"] if isinstance(given, dict) and _is_wrapped(given) else given
    said = dict(got) if isinstance(got, dict) else got
    answer = said
    others: dict[str, Any] = {}
    if isinstance(said, dict) and "assistant_message" in said:
        answer = (
            {"message": said.pop("assistant_message")}
            if isinstance(said["assistant_message"], dict)
            else said.pop("assistant_message")
        )
        if isinstance(answer, dict) and isinstance(said.get("finish_reason"), str):
            answer["finish_reason"] = said.pop("finish_reason")
        others = {"response": said} if said else {}
    elif isinstance(said, dict) and set(said) <= {"error"}:
        answer, others = None, {}
    elif isinstance(said, dict) and set(said) == {"response"}:
        answer = said["response"]
    known = exchange(sent, answer)
    rest = known.rest | others
    rest |= {name: one for name, one in given.items() if name != "content"} if sent is not given else {}
    usage = _usage(end, got)
    profile = _profile(start) | _profile(end)
    model = profile.get("model_name", _metadata(end).get("model", _metadata(start).get("model")))
    return {
        "exchange": Exchange(known.request, known.dialect, known.answers, rest),
        "usage": usage,
        "model": model if isinstance(model, str) else None,
        "provider_id": _metadata(end).get("api_request_id")
        if isinstance(_metadata(end).get("api_request_id"), str)
        else None,
    }


def _is_wrapped(given: dict[str, Any]) -> bool:
    return "content" in given and "role" not in given and given.keys() <= {"content", "headers"}


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    found = value.get("metadata")
    return found if isinstance(found, dict) else {}


def _profile(value: dict[str, Any]) -> dict[str, Any]:
    found = value.get("category_profile", value.get("profile"))
    return found if isinstance(found, dict) else {}


def _usage(end: dict[str, Any], got: Any) -> Usage | None:
    annotated = _profile(end).get("annotated_response")
    told = (got, annotated)
    usages = [one["usage"] for one in told if isinstance(one, dict) and isinstance(one.get("usage"), dict)]
    found: dict[str, int] = {}
    for usage in usages:
        details = [usage, *(one for one in usage.values() if isinstance(one, dict))]
        for field, names in _USAGE.items():
            numbers = (whole_number(one.get(name)) for name in names for one in details)
            number = next((one for one in numbers if one is not None), None)
            if number is not None:
                found.setdefault(field, number)
    return counted(**found)


def _tool(name: str | None, given: Any, start: dict[str, Any], end: dict[str, Any]) -> Spoken:
    ids = [place.get("tool_call_id") for half in (start, end) for place in (_profile(half), _metadata(half))]
    use_id = next((one for one in ids if isinstance(one, str) and one), None)
    return Spoken(use_id, name, None if given is None else as_text(given))


def _recognises(head: Head) -> bool:
    first = head.first
    if not _is_event(first) or not isinstance(first, dict):
        return False
    return "atof_version" in first or ("scope_type" in first and "schema_version" in first)


FORMAT = Format("atof", "ATOF event streams (NeMo)", _recognises, read)
