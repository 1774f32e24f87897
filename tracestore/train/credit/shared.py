"""Group mean, no std: every sampled token of an episode gets A = r - mean(r of the group).

The mean is over graded episodes, never over samples: an episode cut into four samples by compactions weighs
as much as one in one piece. There is no division by the standard deviation, which would weigh a group by how
close its episodes are.

Source: Liu et al., Understanding R1-Zero-Like Training (Dr. GRPO, arXiv 2503.20783); the default of prime-rl.

Worked: r = [1, 0, 0, 1], mean 0.5 -> A = [0.5, -0.5, -0.5, 0.5], on the parent and on its subagents alike.
Rewards [1 (three samples), 0]: mean (1 + 0) / 2 = 0.5 -> 0.5 on all three samples, -0.5 on the other.

Known traps: a singleton group has A = 0 (counted as `singleton_groups`); equal rewards give exactly 0; an
episode without a reward has no advantage, which is not 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, episode_advantages


def credit(row: Row, context: Context) -> Advantages:
    """A = r - mean(r), see the module."""
    return episode_advantages(row, rule="shared", advantage=_minus_mean)


def _minus_mean(rewards: Sequence[float]) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
