"""What all shapes of an Inspect log are asked."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.importers.reading import Imported

USAGE = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "cached_tokens": "input_tokens_cache_read",
    "reasoning_tokens": "reasoning_tokens",
}


def rows(imported: Imported, kind: str) -> int:
    """Records of one kind that were read."""
    return imported.notes.rows.get(f"inspect/{kind}", 0)


def num_events(imported: Imported) -> int:
    """Transcript events that were read, of whatever kind."""
    return sum(count for name, count in imported.notes.rows.items() if name.startswith("inspect/event "))


def status(imported: Imported) -> tuple[int | None, str | None]:
    """(version, status) of the log."""
    for name in imported.notes.rows:
        if name.startswith("inspect/log version "):
            version, _, said = name.removeprefix("inspect/log version ").partition(", ")
            return int(version), said
    return None, None


def task(imported: Imported) -> str | None:
    """The task that the episodes are of."""
    names = {episode.meta.value()["inspect"]["eval"]["task"] for episode in _ends(imported)}
    return names.pop() if len(names) == 1 else None


def epochs(imported: Imported) -> list[int]:
    return sorted({episode.meta.value()["inspect"]["epoch"] for episode in _ends(imported)})


def _ends(imported: Imported) -> list[Any]:
    return [episode for episode in imported.of("episode") if episode.meta is not None]


def model_usage(imported: Imported) -> dict[str, dict[str, int]]:
    """Tokens of the calls by model; the total is of prompt and completion."""
    found: dict[str, dict[str, int]] = {}
    for call in imported.of("call"):
        if call.usage is None:
            continue
        counts = found.setdefault(call.model, defaultdict(int))
        for ours, theirs in USAGE.items():
            if getattr(call.usage, ours) is not None:
                counts[theirs] += getattr(call.usage, ours)
        counts["total_tokens"] += call.usage.prompt_tokens + call.usage.completion_tokens
    return {model: dict(counts) for model, counts in found.items()}
