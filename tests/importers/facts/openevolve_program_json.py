"""Facts of OpenEvolve files, from what is imported of them."""

from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {"keys": "how the fields of the file are called: those without a place stand in meta or are noted"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    episodes = imported.of("episode")
    told: dict[str, Any] = {}
    for episode in episodes:
        told |= json.loads(episode.meta)["openevolve"] if episode.meta is not None else {}
    told |= _noted(imported, "record of the best program") | _noted(imported, "evaluation")
    metrics = {one.name: one.value for one in imported.of("reward")} or told.get("metrics")
    best = imported.notes.not_understood.get("openevolve: best program of a checkpoint")
    names = ("parent_id", "generation", "iteration", "iteration_found", "current_iteration")
    return {name: told.get(name) for name in names} | {
        "id": episodes[0].id if episodes else None,
        "metrics": metrics,
        "best_program_id": best.examples[0].rpartition(": ")[2] if best else None,
    }


def _noted(imported: Imported, what: str) -> dict[str, Any]:
    """A short record that was noted, which the report shows whole."""
    found = imported.notes.not_understood.get(f"openevolve: {what}")
    if found is None:
        return {}
    value: dict[str, Any] = json.loads(found.examples[0].partition(": ")[2])
    return value
