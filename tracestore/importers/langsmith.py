"""LangSmith runs -> episodes.

- A run: id, trace_id, parent_run_id, dotted_order, run_type, name, inputs, outputs, error, status, extra,
  start_time, end_time, token counts. Runs stand one a line, in a list, in {"runs": [...]}, or inside their
  parents' `child_runs`. A trace is an episode.
- run_type `llm` is a call, `tool` a tool call. An agent is a `chain` run whose
  `extra.metadata.ls_agent_type` is set and not just inherited: metadata goes down to every run below, so it
  is the first run of its type, or one right below a tool with another `lc_agent_name`. Other chains make no
  event, nor does one whose parent is not there: whether its metadata is inherited is not known.
- `inputs` and `outputs` are what was traced: an OpenAI request and response, or LangChain messages
  (`chat_shapes`). `extra.invocation_params` (tools, temperature ...) join the request.
- Counts: of the run itself where it is a call; else from `usage_metadata` or the provider's usage in the
  outputs. Counts of chains are sums and not added.
- Times without a zone: the start is in `dotted_order` with one; the end stays in `meta`.
- The tool call of a tool run is the `tool_call_id` of the message it returned.
- A message that LangChain's summarization wrote (`additional_kwargs.lc_source: summarization`) marks a
  compaction before the call that reads it. `feedback_stats` are averages and no rewards: they stay in `meta`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeGuard

from tracestore.importers import span_files
from tracestore.importers.chat_shapes import Exchange, Spoken, as_text, exchange
from tracestore.importers.format import Format, Head, Sources
from tracestore.importers.guard import guarded, text_or_none
from tracestore.importers.items import Item, content_id, nanoseconds, taken
from tracestore.importers.notes import Notes
from tracestore.importers.otel_attributes import whole_number
from tracestore.importers.spans import Kind, Span, size
from tracestore.importers.usage import counted
from tracestore.wire.call import Usage

_ORDER = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)(\d{6})Z[^.]*$")


def read(sources: Sources, *, notes: Notes) -> Iterator[Item]:
    """Episodes, agents, calls and tool calls of the runs, one trace at a time."""
    yield from span_files.read(sources, format="langsmith", notes=notes, found=_found, to_spans=_spans)


def _found(value: Any, at: str, notes: Notes) -> Iterator[tuple[str, Any]]:
    for run in span_files.pages(value, ("runs",)):
        if not _is_run(run):
            notes.rows["langsmith/other record"] += 1
            notes.leftover("langsmith: record that is no run", run, at=at)
            continue
        below = run.get("child_runs")
        listed = [one for one in below if _is_run(one)] if isinstance(below, list) else []
        is_told = isinstance(below, list) and len(listed) == len(below)
        notes.rows[f"langsmith/{run['run_type']}"] += 1
        trace_id = text_or_none(run.get("trace_id")) or run["id"]
        yield trace_id, {name: one for name, one in run.items() if name != "child_runs" or not is_told}
        for one in listed:
            yield from _found({"trace_id": trace_id, "parent_run_id": run["id"]} | one, at, notes)


def _is_run(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("id", "run_type"))


def _spans(trace_id: str, kept: list[tuple[Any, str]], notes: Notes) -> Iterator[Span]:
    # Of a run that was written again the fullest holds.
    runs = {value["id"]: value for value, _ in sorted(kept, key=lambda one: size(one[0]))}
    seen: set[str] = set()
    for value, at in sorted(kept, key=lambda one: (str(one[0].get("dotted_order")), one[0]["id"])):
        for span in guarded(_span(trace_id, dict(value), runs, at), at=at, notes=notes):
            # Every later call reads the summary too: the first one is where the context was compacted.
            summaries = set(_summaries(span.exchange)) - seen
            seen |= summaries
            named = content_id("summary", min(summaries)) if summaries else None
            yield replace(span, is_compacted=True, compaction_id=named) if summaries else span


def _metadata(run: dict[str, Any] | None) -> dict[str, Any]:
    extra = run.get("extra") if run is not None else None
    metadata = extra.get("metadata") if isinstance(extra, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _kind(run: dict[str, Any], runs: dict[str, dict[str, Any]]) -> Kind:
    if run["run_type"] in ("llm", "chat_model"):
        return "call"
    if run["run_type"] == "tool":
        return "tool"
    own = _metadata(run)
    if run["run_type"] != "chain" or own.get("ls_agent_type") is None:
        return "other"
    parent_id = text_or_none(run.get("parent_run_id"))
    parent = runs.get(parent_id or "")
    if parent is None:
        return "agent" if parent_id is None else "other"
    above = _metadata(parent)
    if above.get("ls_agent_type") != own["ls_agent_type"]:
        return "agent"
    is_another = own.get("lc_agent_name") != above.get("lc_agent_name")
    return "agent" if parent.get("run_type") == "tool" and is_another else "other"


def _span(trace_id: str, run: dict[str, Any], runs: dict[str, dict[str, Any]], at: str) -> Iterator[Span]:
    kind = _kind(run, runs)
    total = size(run)
    run.pop("trace_id", None)
    known: dict[str, Any] = {
        "trace_id": trace_id,
        "span_id": run.pop("id"),
        "parent_id": taken(run, "parent_run_id", str),
        "kind": kind,
        "size": total,
        "place": at,
        "name": _metadata(run).get("lc_agent_name") if kind == "agent" else None,
        "started_at": _time(run, "start_time") or _ordered(run),
        "ended_at": _time(run, "end_time"),
        "first_token_at": _time(run, "first_token_time"),
        "error": taken(run, "error", str),
    }
    known["name"] = known["name"] if isinstance(known["name"], str) else run.get("name")
    known["is_ok"] = (
        False if known["error"] else {"success": True, "error": False}.get(str(run.get("status")))
    )
    inputs, outputs = run.pop("inputs", None), run.pop("outputs", None)
    if kind == "tool":
        known |= _tool(run, inputs, outputs)
    elif kind == "other":
        run |= {name: one for name, one in (("inputs", inputs), ("outputs", outputs)) if one is not None}
    else:
        said = exchange(inputs or None, outputs or None)
        known["exchange"] = _with_parameters(said, run) if kind == "call" else said
    if kind == "call":
        known["usage"] = _usage(run, outputs)
        known["model"] = _model(run, outputs)
    rest = {name: one for name, one in run.items() if one not in (None, [], {})}
    yield Span(**known, rest=rest)


def _time(run: dict[str, Any], name: str) -> int | None:
    moment = nanoseconds(run.get(name))
    if moment is not None:
        del run[name]
    return moment


def _ordered(run: dict[str, Any]) -> int | None:
    """The start as `dotted_order` has it, in UTC."""
    found = _ORDER.search(run["dotted_order"]) if isinstance(run.get("dotted_order"), str) else None
    if found is None:
        return None
    year, month, day, hour, minute, second, micro = found.groups()
    return nanoseconds(f"{year}-{month}-{day}T{hour}:{minute}:{second}.{micro}Z")


def _tool(run: dict[str, Any], inputs: Any, outputs: Any) -> dict[str, Any]:
    arguments = inputs["input"] if isinstance(inputs, dict) and inputs.keys() == {"input"} else inputs
    name = run.get("name")
    spoken = Spoken(
        _tool_call_id(outputs) or _tool_call_id(run.get("extra")),
        name if isinstance(name, str) else None,
        None if arguments is None else as_text(arguments),
    )
    return {"tool": spoken, "result": outputs or None}


def _tool_call_id(value: Any) -> str | None:
    """The id of the tool call in what a tool returned, near its top."""
    waiting, depth = [value], 0
    while waiting and depth < 4:
        inside: list[Any] = []
        for one in waiting:
            if isinstance(one, dict):
                if isinstance(one.get("tool_call_id"), str):
                    return str(one["tool_call_id"])
                inside += one.values()
        waiting, depth = inside, depth + 1
    return None


def _with_parameters(said: Exchange, run: dict[str, Any]) -> Exchange:
    extra = run.get("extra")
    parameters = extra.get("invocation_params") if isinstance(extra, dict) else None
    request = said.request
    if not isinstance(extra, dict) or not isinstance(parameters, dict) or request is None:
        return said
    new = {name: one for name, one in parameters.items() if name not in request}
    old = {name: one for name, one in parameters.items() if name not in new and request[name] != one}
    run["extra"] = {name: one for name, one in extra.items() if name != "invocation_params"}
    run["extra"] |= {"invocation_params": old} if old else {}
    return Exchange(request | new, said.dialect, said.answers, said.rest)


def _model(run: dict[str, Any], outputs: Any) -> str | None:
    told = (
        _metadata(run).get("ls_model_name"),
        outputs.get("model") if isinstance(outputs, dict) else None,
    )
    return next((one for one in told if isinstance(one, str)), None)


def _usage(run: dict[str, Any], outputs: Any) -> Usage | None:
    nested = next(_usages(outputs, 0), {})
    details = {
        "prompt_tokens": _either(run.get("prompt_tokens"), nested, "input_tokens", "prompt_tokens"),
        "completion_tokens": _either(
            run.get("completion_tokens"), nested, "output_tokens", "completion_tokens"
        ),
        "cached_tokens": _detail(nested, "cache_read", "cached_tokens"),
        "cache_write_tokens": _detail(nested, "cache_creation"),
        "reasoning_tokens": _detail(nested, "reasoning", "reasoning_tokens"),
    }
    found: dict[str, Any] = dict(details)
    cost = run.get("total_cost")
    try:
        if cost is not None and not isinstance(cost, bool):
            found["cost_usd"] = float(cost)
    except (TypeError, ValueError):
        pass  # stays in meta, as it stands
    return counted(**found)


def _usages(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    """Counts inside outputs, the nearest first."""
    if depth > 5 or not isinstance(value, (dict, list)):
        return
    if isinstance(value, dict):
        for name in ("usage_metadata", "token_usage", "usage"):
            if isinstance(value.get(name), dict):
                yield value[name]
    for one in value.values() if isinstance(value, dict) else value:
        yield from _usages(one, depth + 1)


def _either(stated: Any, nested: dict[str, Any], *names: str) -> int | None:
    told = (stated, *(nested.get(name) for name in names))
    return next((number for one in told if (number := whole_number(one)) is not None), None)


def _detail(nested: dict[str, Any], *names: str) -> int | None:
    groups = (
        "input_token_details",
        "output_token_details",
        "prompt_tokens_details",
        "completion_tokens_details",
    )
    for group in groups:
        inner = nested.get(group)
        if not isinstance(inner, dict):
            continue
        for name in names:
            number = whole_number(inner.get(name))
            if number is not None:
                return number
    return None


def _summaries(said: Exchange) -> Iterator[str]:
    """The summaries of a conversation that a call reads, each by its message's id or text."""
    for one in said.rest.get("messages", ()):
        marks = one.get("additional_kwargs") if isinstance(one, dict) else None
        if isinstance(marks, dict) and marks.get("lc_source") == "summarization":
            yield str(one.get("id") or marks)


def _recognises(head: Head) -> bool:
    first = next(span_files.pages(head.first, ("runs",)), None)
    marks = ("dotted_order", "parent_run_id", "trace_id", "child_runs")
    return _is_run(first) and any(name in first for name in marks)


FORMAT = Format("langsmith", "LangSmith runs", _recognises, read)
