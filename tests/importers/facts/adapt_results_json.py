"""Facts of ADaPT results, from what is imported of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.importers.reading import Imported

_WEBSHOP = "recursive/archiki__adapt/ADaPT_maxd3_webshop_gpt-3.5-turbo.json"
NOT_OURS = {"other_keys": "names of fields that the counter did not know; ours stand in meta"}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {
    (_WEBSHOP, "episodes"): (
        100,
        "results with an action_history are episodes too; the counter knew plans only",
    ),
    (_WEBSHOP, "reward_counts"): ({}, ""),
}


def facts(imported: Imported) -> dict[str, Any]:
    agents = imported.of("agent")
    metas = [json.loads(agent.meta)["adapt"] for agent in agents if agent.meta is not None]
    tried = [agent for agent in agents if agent.status is not None]
    rewards = Counter(str(int(one.value)) for one in imported.of("reward") if one.name == "reward")
    outcomes = Counter({"ok": "True", "failed": "False"}[agent.status] for agent in tried)
    depths = Counter(str(agent.depth + 1) for agent in tried)
    depths.update(str(meta["plan_depth"]) for meta in metas)
    return {
        "entries": sum(imported.notes.rows.values()),
        "episodes": len(imported.of("episode")),
        "reward_counts": dict(rewards),
        "plan_lines": len(tried) + len(metas),
        "decompositions": len(metas),
        "decomposition_logic": dict(Counter(meta["logic"] for meta in metas)),
        "executor_outcomes": dict(outcomes),
        "lines_per_depth": dict(depths),
    }
