"""Used finding: an agent gets the episode's advantage as far as what it returned was used.

    A(X) = A_episode * product of u over X and the agents above it, the root left out

A_episode = r - mean(r) as in `shared`; u is 1 where the parent used the finding, 0 where it ignored it, or
what a reward named `used` says in between. So a subagent whose finding was ignored is neither praised nor
blamed.

Source: our derivation [D]. With one level of subagents the product is u itself; further down a finding counts
for the episode as far as every finding above it does. No options.

Worked: A = .5, two subagents with u = (1, 0): parent .5, subagents .5 * 1 = .5 and .5 * 0 = 0. A child with u
= 1 below the second: .5 * 0 * 1 = 0.

Known traps: 0 is an advantage (the tokens count in the denominator), and not known is an error, never 0.
"""

from __future__ import annotations

from tracestore.shards.row import Row, Sample
from tracestore.train.credit.base import Advantages, Context, on_samples, scalars
from tracestore.train.credit.facts import USED, stated, used
from tracestore.train.credit.options import Options
from tracestore.train.credit.shared import minus_mean


def credit(row: Row, context: Context, options: Options) -> Advantages:
    """A * u, see the module.

    Raises:
        MissingFact: nobody said whether the finding of a subagent in a graded episode was used.
        NonFiniteCredit: a composed reward or an advantage is no finite number.
    """
    given, notes = scalars(row, minus_mean)
    said = stated(row, USED)
    shares: dict[int, float] = {}

    def share(agent: int) -> float:
        if agent not in shares:
            parent = row.agents[agent].parent
            shares[agent] = 1.0  # an agent that is its own ancestor ends here
            if parent is not None:
                shares[agent] = used(row, agent, said, rule="used") * share(parent)
        return shares[agent]

    def of(sample: Sample) -> float | None:
        advantage = given.get(sample.episode)
        if advantage is None or row.agents[sample.agent].trainable is False:
            return advantage
        return advantage * share(sample.agent)

    return on_samples(row, of, rule="used", notes=notes)
