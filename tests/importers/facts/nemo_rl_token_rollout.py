"""Facts of NeMo-RL rollouts, from what is imported of them."""

from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import Imported

NOT_OURS: dict[str, str] = {}
DIFFERENT: dict[tuple[str, str], tuple[Any, str]] = {}


def facts(imported: Imported) -> dict[str, Any]:
    episodes = sorted(imported.of("episode"), key=lambda episode: json.loads(episode.task)["id"])
    return {
        "inputs": sum(episode.task is not None for episode in episodes),
        "outputs": imported.notes.rows["nemo-rl/rollout"],
        "each": [
            {
                "message_log": _log(imported, episode.id),
                **dict.fromkeys(("length", "loss_multiplier")),
                "reward": next((reward.value for reward in imported.of("reward")), None),
            }
            for episode in episodes
        ],
    }


def _log(imported: Imported, episode_id: str) -> list[dict[str, Any]]:
    calls = [call for call in imported.of("call") if call.episode_id == episode_id]
    log = []
    for call in sorted(calls, key=lambda call: call.ordinal):
        ids = 0 if call.prompt_token_ids is None else len(call.prompt_token_ids)
        read = json.loads(call.request)["messages"]
        log += [{"role": one["role"], "token_ids": ids, "logprobs": 0} for one in read]
        answer = call.completions[0]
        log.append(
            {
                "role": json.loads(answer.message)["role"],
                "token_ids": len(answer.token_ids or ""),
                "logprobs": len(answer.logprobs or ""),
            }
        )
    return log
