"""A graph written in another format and imported again, compared fact by fact."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.importers.reading import read_data
from tracestore.graph import tokens
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.model import Graph
from tracestore.wire.canonical import canonical
from tracestore.wire.completion import CompletionBody
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent
from tracestore_exporters.writing import Report, encoded

Write = Callable[[Graph, Report], Any]

_CONTEXT = ("request", "context", "parent_call_id", "parent_completion", "completions")
_TOKENS = ("prompt_token_ids", "prompt_token_ids_delta")
_KINDS = (
    *("agents", "tool_calls", "rewards", "candidate_sets", "candidate_selections", "context_edits"),
    *("gaps", "snapshots", "blobs", "consumptions"),
)


def assert_round_trip(graph: Graph, write: Write) -> Report:
    """What is written and read again has the same calls, contexts, answers, tokens, agents and the rest."""
    report = Report()
    imported = read_data(encoded(write(graph, report)))
    assert not imported.notes.refused, imported.notes.refused[:3]
    assert not imported.notes.not_understood
    again = build(imported.events)
    lost = report.lost["that an agent's event has not come"]
    before, after = facts(graph), facts(again)
    if lost:
        after["agents"] = {name: one for name, one in after["agents"].items() if name in before["agents"]}
    if graph.episode is None:
        after["episode"] = None
    for what, told in before.items():
        assert after[what] == told, what
    return report


def facts(graph: Graph) -> dict[str, Any]:
    """All that a graph says, by value: of JSON texts the canonical form, of arrays the bits."""
    found: dict[str, Any] = {
        "contexts": {
            call_id: [canonical(bytes(message.raw)) for message in context(graph, call_id)]
            for call_id in graph.calls
        },
        "tokens": {call_id: _listed(tokens.prompt_ids(graph, call_id)) for call_id in graph.calls},
        "links": {call_id: (link.parent, link.exact) for call_id, link in graph.links.items()},
        "calls": {call_id: _values(call, *_CONTEXT, *_TOKENS) for call_id, call in graph.calls.items()},
        "pending": graph.pending,
        "completions": {
            key: {
                name: canonical(bytes(one)) if isinstance(one, bytes) else one
                for name in CompletionBody.model_fields
                if (one := getattr(completion, name)) is not None
            }
            for key, completion in graph.completions.items()
            if key[0] in graph.calls
        },
        "group": None if graph.group is None else _values(graph.group),
        "episode": None if graph.episode is None else _values(graph.episode),
    }
    for kind in _KINDS:
        found[kind] = {name: _values(event) for name, event in getattr(graph, kind).items()}
    return found


def _values(event: AnyEvent, *without: str) -> Any:
    fields = json.loads(canonical(encode(event, arrays="base64")))
    dropped = {"phase", "revision", *without}
    return {name: one for name, one in fields.items() if name not in dropped and one is not None}


def _listed(ids: Any) -> list[int] | None:
    return None if ids is None else ids.tolist()
