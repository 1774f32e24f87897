"""RAO: every agent of a tree gets its own task's score and its children's, against the other trees' roots.

    R(X) = s(X) + lambda * mean over the children c of X of s(c)        (no child: s(X))
    A(X in tree g) = w_d * (R(X) - b_g)          b_g = mean over the other trees of the group of R(their root)
    w_d = alpha / N_d        alpha = (trajectories of the batch) / (depths in the batch)

s is the own score (`facts`): the root's is the episode's reward, a child's base score enters, never its R.
N_d are the trajectories (agents of a tree) at depth d in the whole batch: what `counted` says of the batch's
rows, in `Context.batch_counts`. The weights add up to the number of trajectories, and no depth outweighs
another.

Source: RAO (arXiv 2605.06639, Gandhi et al.), equations 3 and 4 [V]. Defaults: lambda .4 as for Oolong; the
paper takes 0 where the policy delegates by itself. `depth_weights=no` leaves w_d out.

Worked: root 1, children 0 and 1, lambda .4: R = 1 + .4 * (0 + 1) / 2 = 1.2. Roots [1.2, 0, 1, 0]: b = [(0 + 1
+ 0)/3, 2.2/3, 1.2/3, 2.2/3] = [.3333, .7333, .4, .7333]; A of the roots [.8667, -.7333, .6, -.7333]; in tree
1 the failing child 0 - .3333 = -.3333, the succeeding one .6667. N_0 = 2, N_1 = 8: alpha 10 / 2 = 5, w =
[2.5, .625], 2 * 2.5 + 8 * .625 = 10.

Known traps: the baseline of a child is that of its root, not its siblings'. Weights are by trajectory over
the batch; platoon 0.4.0 weighs action tokens of a micro-batch, which makes a gradient depend on packing. A
tree with an agent that broke (`infra_error`, `cancelled`, `interrupted`) is left out whole, also of the
baselines. The only tree of a group has no others: A = 0 on all of it, counted as `singleton_groups`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import Field

from tracestore.errors import TracestoreError
from tracestore.shards.row import Row
from tracestore.train.credit.base import (
    Advantages,
    Context,
    NonFiniteCredit,
    graded_groups,
    mean,
    note_spread,
    on_samples,
)
from tracestore.train.credit.facts import BROKEN, children, depths, needed_score, own_scores, roots, tree
from tracestore.train.credit.options import Options


class MissingCounts(TracestoreError):
    """A rule that weighs depths needs to know how many trajectories the whole batch has at each."""


class Rao(Options):
    """Options of rao."""

    lambda_: float = Field(0.4, ge=0, alias="lambda")
    """Weight of the children's mean score."""
    depth_weights: bool = True


def credit(row: Row, context: Context, options: Rao) -> Advantages:
    """A = w_d * (R - b), see the module.

    Raises:
        MissingCounts: depths weigh and nobody counted the batch, or not this row.
        MissingFact: an agent of a tree has no own score.
        NonFiniteCredit: an advantage is no finite number.
    """
    groups, notes = _trees(row)
    at, known, below = depths(row), own_scores(row), children(row)
    given: dict[int, float] = {}
    for trees in groups:
        score = {agent: needed_score(row, agent, known, rule="rao") for agents in trees for agent in agents}
        reward = {
            agent: score[agent] + options.lambda_ * _mean_of([score[one] for one in below.get(agent, ())])
            for agent in score
        }
        of_root = [reward[agents[0]] for agents in trees]
        note_spread(of_root, notes)
        for place, agents in enumerate(trees):
            others = of_root[:place] + of_root[place + 1 :]
            for agent in agents:
                value = reward[agent] - mean(others) if others else 0.0
                given[agent] = value * (_weight(context, at[agent]) if options.depth_weights else 1.0)
    if not all(map(math.isfinite, given.values())):
        raise NonFiniteCredit(rule="rao", group_id=row.group_id, hint="scale the scores down")
    return on_samples(row, lambda sample: given.get(sample.agent), rule="rao", notes=notes)


def counts(row: Row) -> Mapping[int, int]:
    """Depth -> trajectories of this row that get an advantage; of a part of a group, those in the part.

    Raises:
        MissingFact: see `tracestore.train.credit.facts.roots`.
    """
    here = {sample.agent for sample in row.samples}
    at = depths(row)
    groups, _ = _trees(row)
    return Counter(at[agent] for trees in groups for agents in trees for agent in agents if agent in here)


def _trees(row: Row) -> tuple[list[list[list[int]]], Counter[str]]:
    """Peer groups of trees, each a graded episode's agents with the root first; broken trees left out."""
    groups, notes = graded_groups(row)
    root, below = roots(row), children(row)
    found: list[list[list[int]]] = []
    for rewards in groups:
        trees = [tree(root[episode], below) for episode in rewards if episode in root]
        whole = [
            agents for agents in trees if not any(row.agents[agent].status in BROKEN for agent in agents)
        ]
        notes["broken_trees"] += len(trees) - len(whole)
        if whole:
            found.append(whole)
    return found, notes


def _mean_of(scores: Sequence[float]) -> float:
    return mean(scores) if scores else 0.0


def _weight(context: Context, depth: int) -> float:
    if context.batch_counts is None or not context.batch_counts.get(depth):
        raise MissingCounts(
            rule="rao",
            depth=depth,
            hint="count the batch with tracestore.train.credit.counted, or say depth_weights=no",
        )
    depths_there = [number for number in context.batch_counts.values() if number]
    return sum(depths_there) / len(depths_there) / context.batch_counts[depth]
