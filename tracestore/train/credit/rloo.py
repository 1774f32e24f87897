"""Leave one out: every sampled token of an episode gets A = r - mean(r of the others in the group).

A_i = r_i - 1/(G-1) sum over j != i of r_j, which is G/(G-1) times the `shared` advantage; the baseline of an
episode does not depend on its own reward, so the gradient is unbiased.

Source: Ahmadian et al., Back to Basics (RLOO, arXiv 2402.14740); Kool et al. 2019.

Worked: r = [1, 0, 0, 1] -> A = [1 - 1/3, 0 - 2/3, 0 - 2/3, 1 - 1/3] = [0.6667, -0.6667, -0.6667, 0.6667].

Known traps: a singleton group has no others, so the baseline is undefined; it gets A = 0, counted as
`singleton_groups`. Equal rewards give exactly 0. Statistics are over graded episodes, never over samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, episode_advantages
from tracestore.train.credit.options import Options


def credit(row: Row, context: Context, options: Options) -> Advantages:
    """A = r - mean of the others' r, see the module."""
    return episode_advantages(row, rule="rloo", advantage=_minus_others)


def _minus_others(rewards: Sequence[float]) -> list[float]:
    others = len(rewards) - 1
    return [
        reward - math.fsum((*rewards[:index], *rewards[index + 1 :])) / others
        for index, reward in enumerate(rewards)
    ]
