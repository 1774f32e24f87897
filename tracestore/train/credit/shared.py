"""One scalar for everything an episode sampled: the reward against its group, as a difference or in units of
std.

    shared      A_i = r_i - mean(r)
    shared-std  A_i = (r_i - mean(r)) / (std(r) + epsilon),   std with n - ddof below the sum of squares

Mean and std are over graded episodes, never over samples: an episode cut into four samples by compactions
weighs as much as one in one piece. Division by the std weighs a group by how close its episodes are; `shared`
has none.

Source: shared is Dr. GRPO (Liu et al., arXiv 2503.20783) and the default of prime-rl [V]. shared-std is GRPO
(Shao et al., arXiv 2402.03300), which leaves ddof open; 1 is what torch.std and so most trainers compute. By
other names, with what is told to these:
    memagent  shared. Yu et al., arXiv 2507.02259: r of the final conversation, no std, the same on every
              memory update [V in the table of our notes, numbers not re-checked].
    supo      shared-std, an episode that ran out of its budget masked. arXiv 2510.06727: the advantage of the
              rollout on all of its segments; its exact std form was not re-checked [A].
    resum     shared-std. arXiv 2509.13313: broadcast over the segments; that the external summariser does not
              train is said by the export, since no policy sampled it [A].

Defaults: ddof 1, epsilon 0 (TRL adds 1e-4, verl 1e-6), mask_exhausted no.

Worked: r = [1, 0, 0, 1], mean 0.5 -> shared [0.5, -0.5, -0.5, 0.5], on the parent and on its subagents alike.
Rewards [1 (three samples), 0]: mean (1 + 0) / 2 = 0.5 -> 0.5 on all three samples, -0.5 on the other. r = [1,
0, 0, 1]: sum of squares 4 * 0.25 = 1; ddof 0: std sqrt(1/4) = .5 -> [1, -1, -1, 1]; ddof 1: std sqrt(1/3) =
.5774 -> [.8660, -.8660, -.8660, .8660].

Known traps: a singleton group has A = 0 (counted as `singleton_groups`); equal rewards give exactly 0; an
episode without a reward has no advantage, which is not 0. A group of samples instead of episodes shifts the
mean: r = 1 in four segments beside three of r = 0 is 4/7 = .5714 instead of 1/4."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from tracestore.shards.row import Row, Sample
from tracestore.train.credit.base import Advantages, Context, episode_advantages, on_samples, scalars, std
from tracestore.train.credit.options import Options


class Std(Options):
    """Options of shared-std."""

    ddof: int = Field(1, ge=0, le=1)
    """What is taken from n below the sum of squares."""
    epsilon: float = Field(0.0, ge=0)
    """Added to the std."""
    mask_exhausted: bool = False
    """An episode that ran out of its budget stays in the statistics, and trains not."""


def credit(row: Row, context: Context, options: Options) -> Advantages:
    """A = r - mean(r), see the module."""
    return episode_advantages(row, rule="shared", advantage=minus_mean)


def credit_std(row: Row, context: Context, options: Std) -> Advantages:
    """A = (r - mean(r)) / std(r), see the module."""
    given, notes = scalars(row, lambda rewards: _in_std(rewards, options))

    def of(sample: Sample) -> float | None:
        is_masked = options.mask_exhausted and row.episodes[sample.episode].status == "budget_exhausted"
        return None if is_masked else given.get(sample.episode)

    return on_samples(row, of, rule="shared-std", notes=notes)


def minus_mean(rewards: Sequence[float]) -> list[float]:
    """r - mean(r) of each."""
    mean = math.fsum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def _in_std(rewards: Sequence[float], options: Std) -> list[float]:
    unit = std(rewards, ddof=options.ddof) + options.epsilon
    return [difference / unit for difference in minus_mean(rewards)]
