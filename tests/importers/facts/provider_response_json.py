from __future__ import annotations

from collections import Counter
from typing import Any

from tests.importers.facts import _exchanges as x
from tests.importers.reading import Imported


def facts(imported: Imported) -> dict[str, Any]:
    calls = imported.of("call")
    if imported.notes.rows["http-recording/model call"]:
        return {"items": len(calls), "kinds": {"dict": len(calls)}}
    (call,) = calls
    (message,) = x.messages(call)
    return {
        "model": call.model,
        "items": dict(Counter(block["type"] for block in message["content"])),
        "stop": call.completions[0].finish_reason,
        "usage": x.stated_usage(call),
        "context_management": "context_management" in x.http(call).get("response", {}),
    }


NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}
