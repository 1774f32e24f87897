from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    placed = [one for call in imported.of("call") for one in _of_call(call)]
    placed += [one.meta.value() for kind in ("tool_call", "agent") for one in imported.of(kind) if one.meta]
    types = Counter(value["type"] for value in _objects(placed) if isinstance(value.get("type"), str))
    parents = [value["parent_tool_use_id"] for value in _objects(placed) if "parent_tool_use_id" in value]
    control = {
        name.partition("/")[2]: num
        for name, num in imported.notes.rows.items()
        if name.startswith("claude-agent-sdk/control")
    }
    return {
        "type_counts": dict(types + Counter(control)),
        "tool_use": len({tool_call.id for tool_call in imported.of("tool_call")}),
        "messages_with_parent_tool_use_id": sum(parent is not None for parent in parents),
    }


def _of_call(call: Any) -> Iterator[Any]:
    yield call.request.value()
    yield from (body.message.value() for body in call.completions or ())
    if call.meta is not None:
        yield call.meta.value()


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(one)


NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
