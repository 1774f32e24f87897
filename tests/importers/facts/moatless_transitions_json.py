"""Facts of moatless transition files, from what is imported of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    (episode,) = imported.of("episode")
    shell = json.loads(episode.meta)["moatless"]
    calls = [call for call in imported.of("call") if call.purpose != "judge"]
    states = _states(calls, shell)
    parents = {one["id"]: one.get("previous_state_id") for one in states}
    children = Counter(parent for parent in parents.values() if parent is not None)
    current = shell["current_transition_id"]
    path = _path(current, parents)
    sets = {one.id.split("/")[-2]: len(one.members) for one in imported.of("candidate_set")}
    visits = {one["id"]: one["properties"].get("visits", []) for one in states}
    resolved = next(one.value for one in imported.of("reward") if one.name == "resolved")
    info = shell["info"]
    per_state = Counter(call.id.split("/")[-2] for call in calls)
    return {
        "transitions": imported.notes.rows["moatless/transition"],
        "ids": sorted(parents),
        "state_names": dict(Counter(one["name"] for one in states)),
        "fork_points": sets,
        "leaves": sorted(one for one in parents if one not in children),
        "current_transition_id": current,
        "current_in_file": current in parents,
        "path_to_current": path,
        "off_path_transitions": len(parents) - len(path),
        "actions": len(imported.of("tool_call")),
        "recorded_completions": len(calls),
        "completion_models": dict(Counter(call.model for call in calls)),
        "completion_usage_sum": {
            "completion_cost": round(sum(call.usage.cost_usd for call in calls), 8),
            "completion_tokens": sum(call.usage.completion_tokens for call in calls),
            "prompt_tokens": sum(call.usage.prompt_tokens for call in calls),
        },
        "retries_in_a_state": sum(num - 1 for num in per_state.values()),
        "roots": [one for one, parent in parents.items() if parent is None],
        "judge_completions": len(imported.of("call")) - len(calls),
        "value_function_results": sum(one.name == "value" for one in imported.of("reward")),
        "own_value": {
            str(one): visit["value"]
            for one, found in sorted(visits.items())
            for visit in found
            if visit["source_state_id"] == one
        },
        "visit_counts": {str(one): len(found) for one, found in sorted(visits.items())},
        "visit_sources_not_in_file": len(
            {visit["source_state_id"] for found in visits.values() for visit in found} - parents.keys()
        ),
        "info": {
            "instance_id": episode.task_id,
            "resolved": bool(resolved),
            **{name: info[name] for name in ("total_cost", "prompt_tokens", "completion_tokens", "duration")},
        },
    }


def _states(calls: list[Any], shell: dict[str, Any]) -> list[dict[str, Any]]:
    """The states, which stand in the meta of their first calls or of the episode."""
    metas = [json.loads(call.meta)["moatless"] for call in calls]
    found = [meta["state"] for meta in metas if "state" in meta] + list(shell["states"].values())
    return sorted(found, key=lambda state: state["id"])


def _path(current: int | None, parents: dict[int, Any]) -> list[int]:
    path: list[int] = []
    while current is not None:
        path.append(current)
        current = parents.get(current)
    return path[::-1]
