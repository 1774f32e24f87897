"""Pass@k: every sampled token of an episode gets what the episode adds to the best of k in its group.

A_i = s_i of `tracestore.shards.pkpo` over the graded episodes of a group, k from `Context.pass_k`.

Source: Walder & Karkhanis, Pass@K Policy Optimization (arXiv 2505.15201), without a baseline.

Worked: r = [1, 0, 0, 0], k = 2 -> A = [.5, .1667, .1667, .1667].

Known traps: the weights are never centred, so that a group of equal rewards is no exception: all right gives
k/n each, and subtracting what depends on the attempt itself would be biased. They hold the 1/n of the mean
over the group already. A group with fewer than k graded episodes has no subset of k: no advantage, which is
not 0, counted as `groups_smaller_than_k`.
"""

from __future__ import annotations

from functools import partial

from tracestore.errors import TracestoreError
from tracestore.shards.pkpo import pass_at_k_weights
from tracestore.shards.row import Row
from tracestore.train.credit.base import (
    Advantages,
    Context,
    episode_rewards,
    finite,
    on_every_completion,
    peer_groups,
)


class MissingPassK(TracestoreError):
    """The rule pkpo needs to know of how many attempts the best one counts."""

    exit_code = 2


def credit(row: Row, context: Context) -> Advantages:
    """A = s_i, see the module. Raises MissingPassK, NonFiniteCredit."""
    k = context.pass_k
    if k is None:
        raise MissingPassK(rule="pkpo", hint="--pass-k 4 counts the best of four attempts")
    groups = peer_groups(row)
    given: dict[int, float] = {}
    notes = {
        "excluded_episodes": len(row.episodes) - sum(map(len, groups)),
        "ungraded_episodes": 0,
        "groups_smaller_than_k": 0,
    }
    for group in groups:
        rewards = episode_rewards(row, group)
        notes["ungraded_episodes"] += len(group) - len(rewards)
        if len(rewards) < k:
            notes["groups_smaller_than_k"] += 1
            continue
        weights = finite(
            partial(pass_at_k_weights, k=k),
            list(rewards.values()),
            group_id=row.group_id,
            hint="scale the group's rewards down",
        )
        given.update(zip(rewards, weights, strict=True))
    return on_every_completion(row, given, rule="pkpo", notes=notes)
