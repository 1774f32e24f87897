"""Advantages -> one line for each branch of a row, for people who compare rules before they train."""

# N trained tokens of a branch

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracestore.shards.reasons import label_of
from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Value, episode_rewards
from tracestore.train.credit.gae import tokens_of


@dataclass(frozen=True)
class Branch:
    """What a rule gives one sample. Means and extremes are over its trained tokens that have an advantage."""

    rule: str
    group_id: str | None
    episode_id: str
    agent_id: str
    sample_id: str
    cause: str
    """Why the sample begins."""
    completions: int
    reward: float | None
    """Composed reward of the episode, terms included; None: it is ungraded."""
    advantage_min: float | None
    """None: no trained token of it has an advantage, which is not 0."""
    advantage_mean: float | None
    advantage_max: float | None
    tokens: int
    """Trained tokens with an advantage; those that several samples share count in each."""
    notes: str | None
    """Why it has none: left out of the statistics, ungraded, no advantage by this rule, or a reason."""


def branches(row: Row, given: Advantages, *, rule: str) -> list[Branch]:
    """One `Branch` for each sample of a row, in its order.

    Args:
        row: as the rule read it, reward terms included.
        given: what the rule gave.
        rule: as it was spelled.

    Raises:
        NonFiniteCredit: a composed reward is no finite number.
    """
    rewards = episode_rewards(row, [i for i, one in enumerate(row.episodes) if one.in_statistics])
    tokens = tokens_of(row)
    is_trained_T = row.reason == 0
    found = []
    for index, sample in enumerate(row.samples):
        pairs = [
            (given.values[index, one], is_trained_T[tokens[one]])
            for one in sample.completions
            if (index, one) in given.values and one in tokens
        ]
        advantage_N = np.concatenate([np.zeros(0), *(_trained(value, mask) for value, mask in pairs)])
        has_some = len(advantage_N) > 0
        found.append(
            Branch(
                rule=rule,
                group_id=row.group_id,
                episode_id=row.episodes[sample.episode].episode_id,
                agent_id=row.agents[sample.agent].agent_id,
                sample_id=sample.sample_id,
                cause=sample.cause,
                completions=len(sample.completions),
                reward=rewards.get(sample.episode),
                advantage_min=float(advantage_N.min()) if has_some else None,
                advantage_mean=float(advantage_N.mean()) if has_some else None,
                advantage_max=float(advantage_N.max()) if has_some else None,
                tokens=len(advantage_N),
                notes=None if has_some and not sample.reason else _why(row, index, rewards, bool(pairs)),
            )
        )
    return found


def _trained(value: Value, is_trained_N: np.ndarray) -> np.ndarray:
    trained_N: np.ndarray = np.broadcast_to(np.asarray(value, dtype=np.float64), is_trained_N.shape)[
        is_trained_N
    ]
    return trained_N


def _why(row: Row, index: int, rewards: Mapping[int, float], has_values: bool) -> str:
    sample = row.samples[index]
    if sample.reason:
        return label_of(sample.reason)
    if has_values:
        return "no trained token"
    if not row.episodes[sample.episode].in_statistics:
        return "left out"
    return "no advantage by this rule" if sample.episode in rewards else "ungraded"
