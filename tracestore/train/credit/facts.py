"""What a row says beside its episodes' rewards: who is below whom, own scores, and what the harness declared.

A judgement that no column holds is a reward on the agent, call or completion it is about, by a name of
`FACTS`. Such a reward is read by the rules that ask for the fact and is part of nobody's score.
docs/credit.md lists which rule reads what. Nothing here guesses: what is not recorded is None, or a
`MissingFact` where it is needed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tracestore.shards.row import RewardEntry, Row
from tracestore.train.credit.base import MissingFact, episode_rewards

USED = "used"
"""On an agent: how much its parent used of what it returned, 0 to 1; else the agent's `finding_used` says."""
IN_SCOPE = "in_scope"
"""On an agent: 1 if it kept to what it was asked, 0 if not (FoldGRPO's judge)."""
FACTS = frozenset({USED, IN_SCOPE})

BROKEN = frozenset({"infra_error", "cancelled", "interrupted"})
"""Statuses of an agent that say nothing of the policy."""


def agent_of(row: Row, completion: int) -> int:
    """The agent that a completion is of."""
    return row.calls[row.completions[completion].call].agent


def depths(row: Row) -> list[int]:
    """Depth of each agent: as declared, else one more than its parent's, 0 without one."""
    known: dict[int, int] = {}

    def depth(agent: int, above: frozenset[int]) -> int:
        if agent not in known:
            entry = row.agents[agent]
            if entry.depth is not None:
                known[agent] = entry.depth
            elif entry.parent is None or entry.parent in above:
                known[agent] = 0
            else:
                known[agent] = depth(entry.parent, above | {agent}) + 1
        return known[agent]

    return [depth(agent, frozenset({agent})) for agent in range(len(row.agents))]


def roots(row: Row) -> dict[int, int]:
    """Episode -> the agent that has its task: the only one at depth 0 with a call and not untrainable.

    Episodes of which none has a call are left out.

    Raises:
        MissingFact: several agents of an episode could be it.
    """
    calling = {call.agent for call in row.calls}
    at = depths(row)
    found: dict[int, int] = {}
    for agent, entry in enumerate(row.agents):
        if agent not in calling or at[agent] != 0 or entry.trainable is False:
            continue
        if entry.episode in found:
            raise MissingFact(
                fact="the root agent",
                episode_id=row.episodes[entry.episode].episode_id,
                agents=[row.agents[found[entry.episode]].agent_id, entry.agent_id],
                hint="declare the parent of all but one, or trainable: false",
            )
        found[entry.episode] = agent
    return found


def children(row: Row, agent: int) -> list[int]:
    """Agents directly below one that may train, in the row's order; a judge declared untrainable is none."""
    return [
        index
        for index, entry in enumerate(row.agents)
        if entry.parent == agent and index != agent and entry.trainable is not False
    ]


def tree(row: Row, root: int) -> list[int]:
    """An agent and all below it that may train, each once."""
    found = [root]
    for agent in found:  # grows while it is read
        found.extend(child for child in children(row, agent) if child not in found)
    return found


def own_score(row: Row, agent: int) -> float | None:
    """How well an agent did its own task; None: nobody said.

    Of a root that is its episode's composed reward. Of any other agent the sum of the rewards on it (value
    times weight, those that state a fact left out), and without one the `score` it was posted with.

    Raises:
        NonFiniteCredit: an episode's composed reward is no finite number.
    """
    entry = row.agents[agent]
    if entry.parent is None:
        return episode_rewards(row, [entry.episode]).get(entry.episode)
    values = [
        reward.value * (1.0 if reward.weight is None else reward.weight)
        for reward in row.rewards
        if reward.target == "agent" and reward.agent == agent and reward.name not in FACTS
    ]
    return math.fsum(values) if values else entry.score


def needed_score(row: Row, agent: int, *, rule: str) -> float:
    """The own score of an agent. Raises MissingFact without one."""
    score = own_score(row, agent)
    if score is None:
        raise MissingFact(
            rule=rule,
            fact="own score",
            agent_id=row.agents[agent].agent_id,
            hint="post `score` with the agent, or a reward whose target is the agent",
        )
    return score


def used(row: Row, agent: int, *, rule: str) -> float:
    """How much of an agent's finding its parent used. Raises MissingFact where nobody said."""
    stated = _last(row, USED, (r for r in row.rewards if r.target == "agent" and r.agent == agent))
    if stated is not None:
        return stated
    found = row.agents[agent].finding_used
    if found is None:
        raise MissingFact(
            rule=rule,
            fact="used finding",
            agent_id=row.agents[agent].agent_id,
            hint=f"post `finding_used` with the agent, or a reward named {USED!r} on it",
        )
    return float(found)


def in_scope(row: Row, agent: int, *, rule: str) -> bool:
    """Whether an agent kept to its scope. Raises MissingFact where no judge said."""
    stated = _last(row, IN_SCOPE, (r for r in row.rewards if r.target == "agent" and r.agent == agent))
    if stated is None:
        raise MissingFact(
            rule=rule,
            fact="scope verdict",
            agent_id=row.agents[agent].agent_id,
            hint=f"post a reward named {IN_SCOPE!r} on the agent, 1 or 0",
        )
    return stated > 0


def _last(row: Row, name: str, rewards: Iterable[RewardEntry]) -> float | None:
    """Value of the last of some rewards, by their ids, that has a name."""
    values = [reward.value for reward in rewards if reward.name == name]
    return values[-1] if values else None


def spawns(row: Row) -> set[int]:
    """Completions that created an agent."""
    only = {call: index for index, call in enumerate(c.call for c in row.completions)}
    found: set[int] = set()
    for agent in row.agents:
        if agent.spawned_by_completion is not None:
            found.add(agent.spawned_by_completion)
        elif agent.spawned_by_call is not None and agent.spawned_by_call in only:
            found.add(only[agent.spawned_by_call])
    return found
