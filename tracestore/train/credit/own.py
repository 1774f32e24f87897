"""Own score: every agent is compared with its peers on the task it was given, not on the episode's.

    A(X) = s(X) - mean over the group's agents at X's depth of s

s is the own score of `tracestore.train.credit.facts`: a root's is its episode's reward, another agent's what
the harness scored it with. So a subagent that did its part well is paid for it where the episode failed.

Source: our definition [D]; prime-rl's hierarchical GRPO compares roles in the same way. Peers are by depth,
since a depth is always known and a role is not. No options.

Worked: roots 1 and 0, subagents .9 and .1 under the first, .2 under the second: roots [.5, -.5], mean of the
subagents (.9 + .1 + .2) / 3 = .4 -> [.5, -.3, -.2].

Known traps: one agent alone at its depth has A = 0, counted as `singleton_groups`; equal scores give exactly
0. Agents that broke (`infra_error`, `cancelled`, `interrupted`) are left out, also of the mean, and counted.
An agent without a score in a graded episode is an error that names it; in an ungraded one it has no
advantage. A score of depth 1 says nothing of whether the root used it: see `used`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tracestore.shards.row import Row
from tracestore.train.credit.base import (
    Advantages,
    Context,
    finite,
    graded_groups,
    note_spread,
    on_samples,
)
from tracestore.train.credit.facts import BROKEN, depths, needed_score, own_scores
from tracestore.train.credit.options import Options
from tracestore.train.credit.shared import minus_mean


def credit(row: Row, context: Context, options: Options) -> Advantages:
    """A = s - mean of the agents at the same depth, see the module.

    Raises:
        MissingFact: an agent of a graded episode has no own score.
        NonFiniteCredit: a score or an advantage is no finite number.
    """
    groups, notes = graded_groups(row)
    given: dict[int, float] = {}
    for rewards in groups:
        by_depth: dict[int, dict[int, float]] = {}
        at = depths(row)
        for agent, score in _scores(row, rewards, notes).items():
            by_depth.setdefault(at[agent], {})[agent] = score
        for scores in by_depth.values():
            values = list(scores.values())
            shares = [0.0] * len(values)
            if note_spread(values, notes):
                shares = finite(minus_mean, values, group_id=row.group_id, hint="scale the scores down")
            given.update(zip(scores, shares, strict=True))
    return on_samples(row, lambda sample: given.get(sample.agent), rule="own", notes=notes)


def _scores(row: Row, episodes: Iterable[int], notes: Counter[str]) -> dict[int, float]:
    """Own scores of the agents that sampled something and may train, in graded episodes."""
    graded = set(episodes)
    calling = {call.agent for call in row.calls}
    known = own_scores(row)
    scores: dict[int, float] = {}
    for agent, entry in enumerate(row.agents):
        if entry.episode not in graded or agent not in calling or entry.trainable is False:
            continue
        if entry.status in BROKEN and agent not in known:
            notes["broken_agents"] += 1
            continue
        scores[agent] = needed_score(row, agent, known, rule="own")
    return scores
