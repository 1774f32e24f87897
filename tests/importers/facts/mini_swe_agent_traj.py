"""Counted facts of mini-swe-agent trajectories."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    prefix = "mini-swe-agent/message "
    rows = imported.notes.rows.items()
    roles = {name.removeprefix(prefix): count for name, count in rows if name.startswith(prefix)}
    (end,) = [episode for episode in imported.of("episode") if episode.phase == "end"]
    meta = end.meta.value()["mini-swe-agent"] if end.meta is not None else {}
    return {
        "messages": sum(roles.values()),
        "roles": roles,
        "model_calls": len(imported.of("call")),
        "exit_status": end.stop_reason,
        "model_stats": meta.get("info", {}).get("model_stats"),
        "top": "object" if "trajectory_format" in meta else "list",
    }
