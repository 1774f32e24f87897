"""Requests -> the tools that they define, in whatever dialect: name, description, schema of the input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracestore.graph.messages import request_tools
from tracestore.wire.base import Raw

_SCHEMAS = ("input_schema", "parameters", "inputSchema", "parametersJsonSchema")
"""Anthropic, OpenAI, MCP, Gemini."""


@dataclass(frozen=True)
class ToolDefinition:
    """What a model was told of a tool."""

    name: str
    description: str | None = None
    input_schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    """JSON Schema of its arguments; any object where nothing was said of them."""


def tool_definitions(requests: Iterable[Raw | None], *, also: Iterable[str] = ()) -> list[ToolDefinition]:
    """The tools of some requests, each as it was first defined, in that order.

    Args:
        also: names of tools that ran; those that no request defines come last.
    """
    found: dict[str, ToolDefinition] = {}
    seen: set[bytes] = set()
    for request in requests:
        tools = request_tools(request)
        if tools is not None and tools not in seen:
            seen.add(tools)
            for one in _definitions(tools.value()):
                found.setdefault(one.name, one)
    for name in also:
        found.setdefault(name, ToolDefinition(name))
    return list(found.values())


def _definitions(tools: Any) -> Iterator[ToolDefinition]:
    for one in tools if isinstance(tools, list) else ():
        if not isinstance(one, dict):
            continue
        nested = one.get("functionDeclarations", one.get("function_declarations"))
        if isinstance(nested, list):  # Gemini
            yield from _definitions(nested)
            continue
        body = one.get("function")
        body = body if isinstance(body, dict) else one
        name, description = body.get("name"), body.get("description")
        if isinstance(name, str) and name:
            yield ToolDefinition(
                name, description if isinstance(description, str) else None, _schema([body, one])
            )


def _schema(bodies: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for body in bodies:
        for name in _SCHEMAS:
            schema = body.get(name)
            if isinstance(schema, dict):
                return {"type": "object", **schema}
    return {"type": "object"}
