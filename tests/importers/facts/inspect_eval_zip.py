"""Counted facts of Inspect logs in zips."""

from __future__ import annotations

from typing import Any

from tests.importers.facts import _inspect
from tests.importers.reading import Imported

_CONTAINER = "how the zip is packed, which no trace has"
NOT_OURS = {"entries": _CONTAINER, "zip_compress_types": _CONTAINER}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    return {
        "sample_files": len(imported.of("episode")),
        "status": _inspect.status(imported)[1],
        "task": _inspect.task(imported),
        "read_errors": imported.notes.refused,
        "messages": _inspect.rows(imported, "message"),
        "events": _inspect.num_events(imported),
        "model_events": len(imported.of("call")),
        "tool_events": _inspect.rows(imported, "event tool"),
        "tool_calls": len(imported.of("tool_call")),
        "attachments": _inspect.rows(imported, "attachment"),
        "model_usage": _inspect.model_usage(imported),
    }
