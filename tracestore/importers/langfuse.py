"""Langfuse exports -> episodes: traces with their observations, and lists of observations.

- A trace ({id, name, sessionId, input, output, scores, observations}) is an episode; the web page writes
  {"trace", "observations"}, the API a trace with its observations inside, or pages ({"data"}) of either.
- An observation: id, traceId, parentObservationId, type, startTime, endTime, completionStartTime, model,
  modelParameters, input, output, level, statusMessage, metadata. GENERATION is a call, AGENT an agent, TOOL a
  tool call; a SPAN that came over OpenTelemetry is what its `metadata.attributes` say. The rest is no event.
- `usageDetails` (older: `usage`): whether `input` includes what was cached is not stated. It does where input
  and output make up `total`; where only all parts do, prompt_tokens is their sum. Both are noted, and
  otherwise `input` is taken as it is. Details of SPANs and AGENTs are sums of what is below and not added.
- `costDetails.total` is the cost of a call. `modelParameters` join the request where it has none of its own.
- `scores` with a number are rewards of the trace, or of the observation that they name.
- `input` and `output` may be JSON inside a string, once or twice.
- Neither sub-agents nor compactions are marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tracestore.importers import otel_attributes, span_files
from tracestore.importers.chat_shapes import Exchange, Spoken, as_text, exchange, parsed
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import guarded
from tracestore.importers.items import Item, nanoseconds, taken
from tracestore.importers.notes import Notes
from tracestore.importers.otel_attributes import whole_number
from tracestore.importers.spans import Kind, Score, Span, size
from tracestore.importers.usage import counted
from tracestore.wire.call import Usage

_TYPES = frozenset(
    {
        "SPAN",
        "GENERATION",
        "EVENT",
        "AGENT",
        "TOOL",
        "CHAIN",
        "RETRIEVER",
        "EVALUATOR",
        "EMBEDDING",
        "GUARDRAIL",
    }
)
_KINDS: dict[str, Kind] = {"GENERATION": "call", "AGENT": "agent", "TOOL": "tool"}
_INPUT_PARTS = {
    "cached_tokens": (
        "input_cached_tokens",
        "input_cache_read",
        "cache_read_input_tokens",
        "prompt_details.cache_read",
        "input_cached",
    ),
    "cache_write_tokens": (
        "cache_creation_input_tokens",
        "input_cache_creation",
        "prompt_details.cache_write",
    ),
}
_OUTPUT_PARTS = (
    "output_reasoning_tokens",
    "output_reasoning",
    "completion_details.reasoning",
    "reasoning_tokens",
)


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls, tool calls and rewards of the traces, one at a time."""
    yield from span_files.read(sources, format="langfuse", notes=notes, found=_found, to_spans=_spans)


def _found(value: Any, at: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    for one in span_files.pages(value, ("data",)):
        if _is_observation(one):
            notes.rows["langfuse/observation"] += 1
            yield one["traceId"], one
        elif _is_trace(one):
            yield from _of_trace(one, one.get("observations"), at, notes)
        elif isinstance(one, dict) and _is_trace(one.get("trace")):
            others = {name: inner for name, inner in one.items() if name not in ("trace", "observations")}
            yield from _of_trace(one["trace"] | others, one.get("observations"), at, notes)
        else:
            notes.rows["langfuse/other record"] += 1
            notes.leftover("langfuse: record that is no trace or observation", one, at=at)


def _of_trace(trace: dict[str, Any], observations: Any, at: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    notes.rows["langfuse/trace"] += 1
    listed = observations if isinstance(observations, list) else []
    odd = [
        one
        for one in listed
        if not _is_observation({"traceId": trace["id"]} | one if isinstance(one, dict) else one)
    ]
    kept = {name: one for name, one in trace.items() if name != "observations" or not listed}
    yield trace["id"], kept | ({"observations": odd} if odd else {})
    for one in listed:
        if isinstance(one, dict) and one not in odd:
            yield from _found({"traceId": trace["id"]} | one, at, notes)


def _is_observation(value: Any) -> bool:
    if not isinstance(value, dict) or str(value.get("type")) not in _TYPES:
        return False
    return all(isinstance(value.get(name), str) for name in ("id", "traceId"))


def _is_trace(value: Any) -> bool:
    marks = ("observations", "sessionId", "htmlPath", "projectId", "scores", "latency", "bookmarked")
    return (
        isinstance(value, dict) and isinstance(value.get("id"), str) and any(name in value for name in marks)
    )


# --- Records -> spans -----------------------------------------------------------------------------------


def _spans(trace_id: str, kept: list[tuple[Any, str]], notes: Notes) -> Iterator[Span]:
    scores: dict[str | None, dict[str | None, Score]] = {}
    traces = []
    # Of a score that is told again the fullest record holds.
    for value, at in sorted(kept, key=lambda one: -size(one[0])):
        if not _is_observation(value):
            trace = dict(value)
            traces.append((trace, at, _scores(trace, trace_id)))
            for name, score in traces[-1][2]:
                scores.setdefault(name, {}).setdefault(score.id, score)
    there = {value["id"] for value, _ in kept if _is_observation(value)}
    for trace, at, found in traces:
        of_trace = tuple(replace(score, is_of_trace=True) for name, score in found if name not in there)
        yield _trace(trace_id, trace, at, of_trace)
    for value, at in kept:
        if _is_observation(value):
            for span in guarded(_observation(dict(value), at, notes), at=at, notes=notes):
                yield replace(span, scores=(*span.scores, *scores.get(span.span_id, {}).values()))


def _trace(trace_id: str, value: dict[str, Any], at: str, scores: tuple[Score, ...]) -> Span:
    rest = {name: one for name, one in value.items() if one not in (None, [], {}) and name != "id"}
    return Span(
        trace_id=trace_id,
        span_id=f"trace:{trace_id}",
        kind="other",
        size=size(value),
        place=at,
        name=taken(rest, "name", str),
        scores=scores,
        rest=rest,
    )


def _observation(value: dict[str, Any], at: str, notes: Notes) -> Iterator[Span]:
    total = size(value)
    kind = _kind(value)
    scores = tuple(score for _, score in _scores(value, value["id"]))
    known: dict[str, Any] = {
        "trace_id": value.pop("traceId"),
        "span_id": value.pop("id"),
        "parent_id": taken(value, "parentObservationId", str) or None,
        "name": taken(value, "name", str),
        "model": taken(value, "model", str) or taken(value, "providedModelName", str),
        "place": at,
        "kind": kind,
        "size": total,
        "scores": scores,
    }
    times = {"started_at": "startTime", "ended_at": "endTime", "first_token_at": "completionStartTime"}
    for field, name in times.items():
        known[field] = nanoseconds(value.get(name))
        if known[field] is not None:
            del value[name]
    failed = value.get("level") == "ERROR"
    known |= {"is_ok": False if failed else None, "error": taken(value, "statusMessage", str) or None}
    given, got = _value(value.pop("input", None)), _value(value.pop("output", None))
    if kind == "tool":
        name = known["name"]
        known["tool"] = Spoken(_tool_call_id(value, got), name, None if given is None else as_text(given))
        known["result"] = got
    elif kind == "other":
        value |= {name: one for name, one in (("input", given), ("output", got)) if one is not None}
    else:
        known["exchange"] = exchange(given, got)
    if kind == "call":
        known["usage"] = _usage(value, notes)
        known["exchange"] = _with_parameters(known["exchange"], value)
    if kind in ("call", "other") and known["name"] is not None and kind == "call":
        value["name"] = known["name"]
    rest = {name: one for name, one in value.items() if one not in (None, [], {})}
    yield Span(**known, rest=rest)


def _kind(value: dict[str, Any]) -> Kind:
    stated = _KINDS.get(value["type"], "other")
    metadata = value.get("metadata")
    attributes = metadata.get("attributes") if isinstance(metadata, dict) else None
    if stated != "other" or value["type"] != "SPAN" or not isinstance(attributes, dict):
        return stated
    return otel_attributes.kind_of(attributes)


def _value(value: Any) -> Any:
    """An input or output, which may be JSON inside a string."""
    found = parsed(value)
    if isinstance(found, str) and found[:1] == found[-1:] == '"' and len(found) > 1:
        inner = otel_attributes.parsed_any(found)
        found = parsed(inner) if isinstance(inner, str) else found
    return found


def _tool_call_id(value: dict[str, Any], got: Any) -> str | None:
    if isinstance(got, dict) and isinstance(got.get("tool_call_id"), str):
        return str(got["tool_call_id"])
    metadata = value.get("metadata") if isinstance(value.get("metadata"), dict) else {}
    attributes = metadata.get("attributes") if isinstance(metadata, dict) else None
    for where in (metadata, attributes):
        for name in ("tool_call_id", "toolCallId", "gen_ai.tool.call.id", "ai.toolCall.id"):
            if isinstance(where, dict) and isinstance(where.get(name), str):
                return str(where[name])
    return None


def _with_parameters(said: Exchange, value: dict[str, Any]) -> Exchange:
    parameters = value.get("modelParameters")
    if not isinstance(parameters, dict) or said.request is None or said.request.keys() & parameters.keys():
        return said
    del value["modelParameters"]
    return replace(said, request=said.request | parameters)


def _usage(value: dict[str, Any], notes: Notes) -> Usage | None:
    details = value.get("usageDetails") or value.get("usage")
    numbers = {
        name: number
        for name, one in (details.items() if isinstance(details, dict) else ())
        if (number := whole_number(one)) is not None
    }
    found: dict[str, Any] = {}
    given = next(
        (numbers[name] for name in ("input", "promptTokens", "prompt_tokens") if name in numbers), None
    )
    got = next(
        (numbers[name] for name in ("output", "completionTokens", "completion_tokens") if name in numbers),
        None,
    )
    parts = {
        field: next((numbers[one] for one in names if one in numbers), None)
        for field, names in _INPUT_PARTS.items()
    }
    reasoning = next((numbers[name] for name in _OUTPUT_PARTS if name in numbers), None)
    apart = sum(number or 0 for number in parts.values())
    total = numbers.get("total", numbers.get("totalTokens"))
    if given is not None and got is not None and total is not None and apart + (reasoning or 0) > 0:
        if given + got == total:
            notes.infer("cached tokens are part of the input", evidence="input and output make up the total")
        elif given + got + apart + (reasoning or 0) == total:
            notes.infer("cached tokens are beside the input", evidence="all parts make up the total")
            given, got = given + apart, got + (reasoning or 0)
        elif given + got + apart == total:
            notes.infer("cached tokens are beside the input", evidence="all parts make up the total")
            given += apart
    found |= {"prompt_tokens": given, "completion_tokens": got, "reasoning_tokens": reasoning} | parts
    costs = value.get("costDetails")
    cost = costs.get("total") if isinstance(costs, dict) else value.get("calculatedTotalCost")
    if isinstance(cost, (int, float)) and not isinstance(cost, bool):
        found["cost_usd"] = float(cost)
    return counted(**found)


def _scores(value: dict[str, Any], owner: str) -> list[tuple[str | None, Score]]:
    """(observation or None, score) for each score with a number; the others stay.

    Args:
        owner: what names a score without an id, beside its place: the trace or observation it stands in.
    """
    found: list[tuple[str | None, Score]] = []
    others = []
    for place, one in enumerate(taken(value, "scores", list) or ()):
        rest = dict(one) if isinstance(one, dict) else {}
        number = taken(rest, "value", float)
        name = taken(rest, "name", str)
        if number is None or name is None:
            others.append(one)
            continue
        moment = nanoseconds(rest.get("timestamp"))
        if moment is not None:
            del rest["timestamp"]
        score = Score(
            name,
            float(number),
            id=taken(rest, "id", str) or f"{owner}/score/{place}",
            scorer=taken(rest, "source", str),
            at=moment,
            rest={key: part for key, part in rest.items() if part is not None},
        )
        observation = one.get("observationId")
        found.append((observation if isinstance(observation, str) else None, score))
    if others:
        value["scores"] = others
    return found


def _recognises(head: Head) -> bool:
    first = next(span_files.pages(head.first, ("data",)), None)
    if not isinstance(first, dict):
        return False
    if isinstance(first.get("trace"), dict) and isinstance(first.get("observations"), list):
        return True
    listed = first.get("observations")
    is_trace = (
        isinstance(first.get("id"), str)
        and isinstance(listed, list)
        and ("sessionId" in first or "htmlPath" in first)
    )
    return is_trace or (_is_observation(first) and "startTime" in first)


FORMAT = Format("langfuse", "Langfuse traces and observations", _recognises, read)
