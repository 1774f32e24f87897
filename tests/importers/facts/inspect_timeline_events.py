"""Counted facts of Inspect transcripts that were written as test cases of its timelines."""

from __future__ import annotations

from typing import Any

from tests.importers.facts import _inspect
from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    (episode,) = imported.of("episode")
    meta = episode.meta.value()["inspect"]
    return {
        "description": meta["description"],
        "events": _inspect.num_events(imported),
        "event_types": {
            name.removeprefix("inspect/event "): count
            for name, count in imported.notes.rows.items()
            if name.startswith("inspect/event ")
        },
        "has_expected": "expected" in meta,
        "expected_keys": sorted(meta["expected"]),
    }
