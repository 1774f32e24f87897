"""Counted facts of Google ADK sessions."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    prefix = "adk/event "
    rows = imported.notes.rows.items()
    authors = {name.removeprefix(prefix): count for name, count in rows if name.startswith(prefix)}
    uses = imported.of("tool_call")
    return {
        "events": sum(authors.values()),
        "authors": authors,
        "function_calls": len(uses),
        "function_responses": sum(use.result is not None for use in uses),
    }
