"""Pass@k: every sampled token of an episode gets what the episode adds to the best of k in its group.

A_i = s_i of `tracestore.shards.pkpo` over the graded episodes of a group, k told as `pkpo:k=4`.

Source: Walder & Karkhanis, Pass@K Policy Optimization (arXiv 2505.15201), without a baseline.

Worked: r = [1, 0, 0, 0], k = 2 -> A = [.5, .1667, .1667, .1667].

Known traps: the weights are never centred, so that a group of equal rewards is no exception: all right gives
k/n each, and subtracting what depends on the attempt itself would be biased. They hold the 1/n of the mean
over the group already. A group with fewer than k graded episodes has no subset of k: no advantage, which is
not 0, counted as `groups_smaller_than_k`."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from tracestore.shards.pkpo import pass_at_k_weights
from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, finite, graded_groups, on_every_completion
from tracestore.train.credit.options import Options


class PassK(Options):
    """Options of pkpo."""

    k: int = Field(ge=1)
    """Of how many attempts the best one counts."""


def credit(row: Row, context: Context, options: PassK) -> Advantages:
    """A = s_i, see the module. Raises NonFiniteCredit."""
    groups, notes = graded_groups(row)
    given: dict[int, float] = {}
    for rewards in groups:
        if len(rewards) < options.k:
            notes["groups_smaller_than_k"] += 1
            continue
        weights = finite(
            partial(pass_at_k_weights, k=options.k),
            list(rewards.values()),
            group_id=row.group_id,
            hint="scale the group's rewards down",
        )
        given.update(zip(rewards, weights, strict=True))
    return on_every_completion(row, given, rule="pkpo", notes=notes)
