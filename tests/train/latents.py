"""Episodes of two frozen agents that hand latents on, computed here as a harness would."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import Any

import torch

from tests.train.models import tiny
from tracestore.shards.latents import LatentEpisode, Read, Step, Tensor
from tracestore.train.links import Frozen, RecursiveLink, decode, fresh_link, link_hash, reading, think

NAMES = ("planner", "solver")
TASK = {"question": "q", "answer": [7, 9, 11]}


def two_agents() -> dict[str, Frozen]:
    """By name: d = 8 and d = 16."""
    widths = {"planner": 8, "solver": 16}
    return {name: Frozen.of(tiny("llama", hidden_size=width, seed=width)) for name, width in widths.items()}


def two_links(seed: int = 0) -> dict[str, RecursiveLink]:
    return {"planner": fresh_link(8, 16, seed=seed), "solver": fresh_link(16, 8, seed=seed + 1)}


def by_hash(agents: dict[str, Frozen]) -> dict[str, Frozen]:
    return {agent.hash: agent for agent in agents.values()}


@torch.no_grad()
def played(
    name: str = "e",
    *,
    agents: dict[str, Frozen],
    links: dict[str, RecursiveLink],
    m: int = 4,
    n: int = 2,
    position: int = 3,
    **fields: Any,
) -> LatentEpisode:
    """`n` rounds of both agents; the second one decodes six tokens at the end."""
    steps: list[Step] = []
    carried, reads = None, None
    for place in range(2 * n):
        who = NAMES[place % 2]
        agent, prompt = agents[who], tuple(range(place, place + 5))
        read = reading(agent, prompt, reads, carried)
        step = Step(f"{name}/{place}", who, place // 2, agent.hash, prompt, reads, None, None, None)
        if place == 2 * n - 1:
            steps.append(replace(step, token_ids=tuple(decode(agent, read, max_tokens=6)[0])))
            break
        latent = think(agent, links[who].inner, read, steps=m)
        data = latent.numpy().tobytes()
        tensor = Tensor("float32", tuple(latent.shape), data)
        steps.append(replace(step, latent=tensor, latent_hash=sha256(data).hexdigest()))
        carried = links[who].outer(latent)
        reads = Read(place, position, link_hash(links[who]))
    return LatentEpisode(name, "g", fields.get("task", TASK), tuple(steps))
