"""Counted facts of SWE-agent trajectories."""

from __future__ import annotations

from typing import Any

from tests.importers.reading import Imported

NOT_OURS = {"edit_format": "the order in which the file names its parts"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    rows = imported.notes.rows
    ends = [episode for episode in imported.of("episode") if episode.phase == "end"]
    meta = ends[0].meta.value()["swe-agent"] if ends[0].meta is not None else {}
    info = meta.get("info", {})
    calls = imported.of("call")
    return {
        "trajectory_steps": rows["swe-agent/step"],
        "history_messages": sum(_by(imported, "history").values()),
        "history_roles": _by(imported, "history"),
        "demo_messages": rows["swe-agent/demonstration"],
        "history_tool_calls": sum(call.tool_call_id is not None for call in imported.of("tool_call")),
        "steps_with_state": sum(
            call.meta is not None and "state" in call.meta.value()["swe-agent"] for call in calls
        ),
        "step_query_messages": 0 if imported.of("gap") else sum(map(_num_messages, calls)),
        "exit_status": ends[0].stop_reason,
        "submission_chars": len(info.get("submission", "")),
        "model_stats": info.get("model_stats"),
        "message_types": {
            name.replace("None", "null"): num for name, num in _by(imported, "message").items()
        },
        "agents": sorted(agent.name for agent in imported.of("agent") if agent.name is not None),
    }


def _num_messages(call: Any) -> int:
    return len(call.request.value()["messages"])


def _by(imported: Imported, kind: str) -> dict[str, int]:
    prefix = f"swe-agent/{kind} "
    return {
        name.removeprefix(prefix): count
        for name, count in imported.notes.rows.items()
        if name.startswith(prefix)
    }
