from __future__ import annotations

from collections import Counter
from typing import Any

from tests.importers.reading import Imported
from tracestore.graph.context import answer_in_context, context


def facts(imported: Imported) -> dict[str, Any]:
    (graph,) = imported.graphs.values()
    last = max(graph.calls.values(), key=lambda call: call.ordinal or 0)
    spans = [*context(graph, last.id), *answer_in_context(graph, (last.id, 0))]
    messages = [span.raw.value() for span in spans]
    # What a tool gave back after the last answer stands with its tool call.
    read = sum(message["role"] == "tool" for message in messages)
    results = sum(tool_call.result is not None for tool_call in imported.of("tool_call"))
    roles = Counter(message["role"] for message in messages) + Counter({"tool": results - read})
    return {
        "messages": sum(roles.values()),
        "roles": dict(roles),
        "tool_calls": len(imported.of("tool_call")),
    }


NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
