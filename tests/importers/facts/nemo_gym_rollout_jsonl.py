"""Facts of NeMo-Gym rollout files, from what is imported of them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from tests.fixtures import NEMO_GYM
from tests.importers.facts._unordered import in_order, sorted_facts
from tests.importers.reading import Imported

NOT_OURS = {
    "top_keys": "how fields of a line are called: those that have no place stand in the episode's meta",
}
_UNATTEMPTED = f"{NEMO_GYM}resources_servers/genrm_compare/data/example_rollouts.jsonl"
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = sorted_facts(
    "nemo_gym_rollout_jsonl", "rewards", "token_items", "task_index", "rollout_index"
) | {
    (_UNATTEMPTED, key): ([], "tasks without a response are no episodes")
    for key in ("rewards", "task_index", "rollout_index")
}


def facts(imported: Imported) -> dict[str, Any]:
    calls, rows = imported.of("call"), imported.notes.rows
    metas = [json.loads(episode.meta)["nemo_gym"] for episode in imported.of("episode")]
    rewards = [reward.value for reward in imported.of("reward") if reward.name == "reward"]
    return {
        "rollouts": rows["nemo-gym/rollout"] + rows["nemo-gym/task"],
        "bad_lines": imported.notes.refused,
        "rewards": in_order(rewards),
        "output_item_types": dict(Counter(item.get("type", "message") for item in _output(imported))),
        "function_calls": len(imported.of("tool_call")),
        "token_items": in_order([_tokens(call) for call in calls if call.prompt_token_ids is not None]),
        "empty_token_items": sum(b'"generation_token_ids":[]' in (call.meta or b"") for call in calls),
        "usage_sum": _usage([meta["response"].get("usage") for meta in metas]),
        "images": sum(call.request.count(b'"type":"input_image"') for call in calls),
        "task_index": in_order([meta.get("_ng_task_index") for meta in metas]),
        "rollout_index": in_order([meta.get("_ng_rollout_index") for meta in metas]),
    }


def _output(imported: Imported) -> list[Any]:
    """Every item after a prompt: answers, what later calls read, what none read."""
    items: list[Any] = []
    for call in imported.of("call"):
        items += json.loads(call.completions[0].message)
        items += json.loads(call.request)["input"] if call.ordinal else []
    for episode in imported.of("episode"):
        items += json.loads(episode.meta)["nemo_gym"]["response"].get("output_after_the_last_call", [])
    return items


def _tokens(call: Any) -> dict[str, int]:
    answer = call.completions[0]
    return {
        "prompt": len(call.prompt_token_ids),
        "generation": len(answer.token_ids),
        "logprobs": len(answer.logprobs),
    }


def _usage(given: list[Any]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for usage in given:
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            if usage is not None:
                total[name] += usage[name]
    return dict(total)
