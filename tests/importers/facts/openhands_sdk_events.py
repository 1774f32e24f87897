"""Counted facts of OpenHands V1 conversations."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {
    "chars": "a transcript for people that the tool is expected to print: no record of the conversation"
}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    kinds = {name.removeprefix("openhands/"): count for name, count in imported.notes.rows.items()}
    ends = [one.meta.value()["openhands"] for one in imported.of("episode") if one.meta is not None]
    return {
        "lines": sum(kinds.values()),
        "kinds": kinds,
        "tool_names": dict(Counter(call.name for call in imported.of("tool_call"))),
        "keys": sorted(ends[0]["base_state"]) if ends else None,
    }
