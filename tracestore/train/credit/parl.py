"""PARL: the orchestrator alone is trained, on its result and, early on, on having delegated at all.

    r = r_perf + lambda_1 * r_parallel + lambda_2 * r_finish        A = r - mean(r of the group)
    lambda(step) = lambda * max(0, 1 - step / anneal_steps)         exactly 0 from anneal_steps on

r_finish is the share of the assigned subagents that finished (status ok; without one 0); r_parallel is how
far the orchestrator instantiated subagents, min(1, subagents / subagents wanted). Agents at depth 0 are
orchestrators; all others are observations and get no advantage.

Source: Kimi K2.5, Agent Swarm (PARL, arXiv 2602.02276) for the terms and that both anneal to 0 [V paper, no
code]. The schedule, the values of lambda and the form of r_parallel are not disclosed: the line above, .2, .1
and the minimum are ours [D], and `anneal_steps` has no default. Critical steps, which the paper limits, are a
reward term (`--reward-term critical_steps=-0.01`).

Worked: lambda .2 and .1, three subagents of which two finished, r_perf 1: step 0: 1 + .2 * 1 + .1 * 2/3 =
1.2667; from anneal_steps on exactly 1.

Known traps: a lambda that ends near 0 instead of at 0 keeps paying for empty subagents. A subagent whose
status nobody said is an error while r_finish counts, and is not asked for afterwards."""

from __future__ import annotations

import math

from pydantic import Field

from tracestore.shards.row import Row, Sample
from tracestore.train.credit.base import (
    Advantages,
    Context,
    MissingFact,
    finite,
    graded_groups,
    note_spread,
    on_samples,
)
from tracestore.train.credit.facts import depths
from tracestore.train.credit.options import Options
from tracestore.train.credit.shared import minus_mean


class Parl(Options):
    """Options of parl."""

    anneal_steps: int = Field(ge=1)
    """Optimizer steps until the auxiliary rewards are 0."""
    parallel: float = Field(0.2, ge=0)
    """lambda_1 at step 0."""
    finish: float = Field(0.1, ge=0)
    """lambda_2 at step 0."""
    subagents: int = Field(1, ge=1)
    """Subagents wanted: as many or more are worth r_parallel = 1."""


def credit(row: Row, context: Context, options: Parl) -> Advantages:
    """A = r - mean(r) on the orchestrator's chain, see the module.

    Raises:
        MissingFact: the status of a subagent is not known while it counts.
        NonFiniteCredit: a reward or an advantage is no finite number.
    """
    at = depths(row)
    groups, notes = graded_groups(row)
    given: dict[int, float] = {}
    for rewards in groups:
        values = [
            reward + auxiliary(row, episode, at, step=context.step, options=options)
            for episode, reward in rewards.items()
        ]
        shares = [0.0] * len(values)
        if note_spread(values, notes):
            shares = finite(minus_mean, values, group_id=row.group_id, hint="scale the group's rewards down")
        given.update(zip(rewards, shares, strict=True))

    def of(sample: Sample) -> float | None:
        return given.get(sample.episode) if at[sample.agent] == 0 else None

    return on_samples(row, of, rule="parl", notes=notes)


def auxiliary(row: Row, episode: int, at: list[int], *, step: int, options: Parl) -> float:
    """lambda_1 r_parallel + lambda_2 r_finish of an episode at a step; exactly 0 once both are annealed.

    Args:
        at: depth of each agent.
    """
    left = max(0.0, 1.0 - step / options.anneal_steps)
    # Frozen ones too: PARL never trains a subagent.
    assigned = [
        index
        for index, agent in enumerate(row.agents)
        if agent.episode == episode and agent.parent is not None and at[agent.parent] == 0 and at[index] > 0
    ]
    if left == 0.0 or not assigned:
        return 0.0
    parts = [left * options.parallel * min(1.0, len(assigned) / options.subagents)]
    if options.finish:
        parts.append(left * options.finish * sum(_finished(row, child) for child in assigned) / len(assigned))
    return math.fsum(parts)


def _finished(row: Row, agent: int) -> bool:
    status = row.agents[agent].status
    if status is None:
        raise MissingFact(
            rule="parl",
            fact="status of a subagent",
            agent_id=row.agents[agent].agent_id,
            hint="post the end of every agent with its status",
        )
    return status == "ok"
