"""Facts of fast-rlm logs, from what is imported of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    agents, calls = imported.of("agent"), imported.of("call")
    children = Counter(agent.parent_agent_id for agent in agents if agent.parent_agent_id)
    rows = {name.partition("/")[2]: num for name, num in imported.notes.rows.items()}
    usage = imported.report["usage"]
    total = sum(json.loads(call.meta)["fast_rlm"][1]["usage"]["total_tokens"] for call in calls)
    without = imported.notes.warnings["a final result without the id of the run's parent"]
    return {
        "lines": sum(rows.values()),
        "event_types": rows,
        "runs": len(agents),
        "root_runs": sum(agent.role == "main" for agent in agents),
        "subagents": sum(agent.role == "subagent" for agent in agents),
        "depths": {str(depth): num for depth, num in Counter(agent.depth for agent in agents).items()},
        "max_depth": max(agent.depth for agent in agents),
        "max_children": max(children.values(), default=0),
        "model_calls": len(calls),
        "steps_with_error": sum(one.status == "failed" for one in imported.of("tool_call")),
        "runs_without_final_result": sum(agent.return_message is None for agent in agents),
        "final_rows_without_parent_run_id": without,
        "usage_sum": {
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "total_tokens": total,
            "cached_tokens": usage["cached_tokens"],
            "reasoning_tokens": usage["reasoning_tokens"],
            "cost": round(usage["cost_usd"], 8),
        },
        "max_concurrent_runs_by_log_span": _concurrent(agents),
    }


def _concurrent(agents: list[Any]) -> int:
    """Most runs whose spans, from first row to last, hold one moment."""
    spans: list[tuple[int, int]] = [(agent.started_at, agent.ended_at) for agent in agents]
    return max(sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans)
