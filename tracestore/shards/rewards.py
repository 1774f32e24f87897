"""The rewards of a row as the terms of an episode's composed reward."""

from __future__ import annotations

from collections.abc import Iterable

from tracestore.shards.row import Row
from tracestore.wire.reward import counted


def reward_terms(row: Row, episodes: Iterable[int]) -> dict[int, list[float]]:
    """Value times weight (unknown: 1) of each episode's own rewards, in order; none for an ungraded one.

    Their sum is the composed reward. Rewards of a finer target (agent, call, completion, candidate, token)
    are no terms of it, nor are those of weight 0.
    """
    terms: dict[int, list[float]] = {episode: [] for episode in episodes}
    for reward in row.rewards:
        if reward.target == "episode" and reward.episode in terms:
            term = counted(reward.value, reward.weight)
            terms[reward.episode] += [] if term is None else [term]
    return terms
