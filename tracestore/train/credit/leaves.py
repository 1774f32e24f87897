"""The leaves of a row's trees and what each is worth, for the rules that compare branches.

A leaf is a branch that was scored on its own: a sample of a root agent with a reward that counts on its last
completion, or on that completion's call where the call has no other. Where no sample of an episode has one,
the episode is one leaf with all its root agent's samples and its composed reward, however many samples it was
cut into.

The leaves of an episode and of its forks are one tree.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from tracestore.shards.row import Row
from tracestore.train.credit.base import MissingFact, NonFiniteCredit, episode_rewards
from tracestore.train.credit.facts import FACTS, depths
from tracestore.wire.reward import counted


@dataclass(frozen=True)
class Leaf:
    """A scored branch."""

    tree: str
    """The episode at whose root the tree stands."""
    samples: tuple[int, ...]
    value: float


def leaves(row: Row, *, rule: str) -> tuple[list[Leaf], Counter[str]]:
    """All leaves of a row, and what was left out, counted.

    Raises:
        MissingFact: some samples of an episode have a reward of their own and others have none.
        NonFiniteCredit: a value is no finite number.
    """
    notes: Counter[str] = Counter()
    at = depths(row)
    of_episode: dict[int, list[int]] = {}
    for index, sample in enumerate(row.samples):
        if at[sample.agent] == 0:
            of_episode.setdefault(sample.episode, []).append(index)
        else:
            notes["samples_below_the_root_agent"] += 1
    scored = _scores(row)
    found: list[Leaf] = []
    for episode, entry in enumerate(row.episodes):
        if not entry.in_statistics:
            notes["excluded_episodes"] += 1
            continue
        own = {
            index: scored.get(row.samples[index].completions[-1]) if row.samples[index].completions else None
            for index in of_episode.get(episode, ())
        }
        name = entry.forked_from_episode_id or entry.episode_id
        if any(value is not None for value in own.values()):
            found += [Leaf(name, (index,), _needed(row, index, value, rule)) for index, value in own.items()]
            continue
        reward = episode_rewards(row, [episode]).get(episode)
        if reward is None:
            notes["ungraded_episodes"] += 1
        else:
            found.append(Leaf(name, tuple(own), reward))
    if not all(math.isfinite(leaf.value) for leaf in found):
        raise NonFiniteCredit(rule=rule, group_id=row.group_id, hint="correct the rewards and export again")
    return found, notes


def _needed(row: Row, sample: int, value: float | None, rule: str) -> float:
    if value is None:
        raise MissingFact(
            rule=rule,
            fact="reward of a branch",
            sample_id=row.samples[sample].sample_id,
            hint="post a reward on the last completion of every branch of the episode, or on none",
        )
    return value


def _scores(row: Row) -> dict[int, float]:
    """Completion -> sum of the rewards on it, or on its call alone, that count and state no fact."""
    only: dict[int, int | None] = {}
    for index, entry in enumerate(row.completions):
        only[entry.call] = None if entry.call in only else index
    terms: dict[int, list[float]] = {}
    for reward in row.rewards:
        completion = None
        if reward.target == "completion":
            completion = reward.completion
        elif reward.target == "call" and reward.call is not None:
            completion = only.get(reward.call)
        term = counted(reward.value, reward.weight)
        if completion is not None and term is not None and reward.name not in FACTS:
            terms.setdefault(completion, []).append(term)
    return {completion: math.fsum(values) for completion, values in terms.items()}
