"""What a row says beside its episodes' rewards: who is below whom, own scores, and what the harness declared.

A judgement that no column holds is a reward on the agent, call or completion it is about, by a name of
`FACTS`. Such a reward is read by the rules that ask for the fact and is part of nobody's score.
docs/credit.md lists which rule reads what. Nothing here guesses: what is not recorded is None, or a
`MissingFact` where it is needed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tracestore.shards.row import Row
from tracestore.train.credit.base import MissingFact, episode_rewards
from tracestore.wire.reward import counted

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


def children(row: Row) -> dict[int, list[int]]:
    """Agent -> the agents directly below it that may train, in the row's order.

    A judge that was declared untrainable is none of them.
    """
    found: dict[int, list[int]] = {}
    for index, entry in enumerate(row.agents):
        if entry.parent is not None and entry.parent != index and entry.trainable is not False:
            found.setdefault(entry.parent, []).append(index)
    return found


def tree(root: int, below: Mapping[int, Sequence[int]]) -> list[int]:
    """An agent and all below it, each once. `below` is what `children` says."""
    found = {root: None}
    waiting = [root]
    for agent in waiting:  # grows while it is read
        new = [child for child in below.get(agent, ()) if child not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return list(found)


def own_scores(row: Row) -> dict[int, float]:
    """Agent -> how well it did its own task; one of which nobody said is missing.

    Of a root that is its episode's composed reward. Of any other agent the sum of the rewards on it that
    count and state no fact (value times weight), and without one the `score` it was posted with.

    Raises:
        NonFiniteCredit: the composed reward of an episode in the statistics is no finite number.
    """
    on_agents: dict[int, list[float]] = {}
    for reward in row.rewards:
        if reward.target == "agent" and reward.agent is not None and reward.name not in FACTS:
            term = counted(reward.value, reward.weight)
            on_agents.setdefault(reward.agent, []).extend([] if term is None else [term])
    of_episode = episode_rewards(row, [i for i, one in enumerate(row.episodes) if one.in_statistics])
    found: dict[int, float] = {}
    for agent, entry in enumerate(row.agents):
        score = entry.score
        if entry.parent is None:
            score = of_episode.get(entry.episode)
        elif on_agents.get(agent):
            score = math.fsum(on_agents[agent])
        if score is not None:
            found[agent] = score
    return found


def needed_score(row: Row, agent: int, scores: Mapping[int, float], *, rule: str) -> float:
    """The own score of an agent, out of `own_scores`. Raises MissingFact without one."""
    if agent not in scores:
        raise MissingFact(
            rule=rule,
            fact="own score",
            agent_id=row.agents[agent].agent_id,
            hint="post `score` with the agent, or a reward whose target is the agent",
        )
    return scores[agent]


def stated(row: Row, name: str) -> dict[int, float]:
    """Agent -> what a reward on it by the name of a fact says; of several the last one by their ids."""
    return {
        reward.agent: reward.value
        for reward in row.rewards
        if reward.target == "agent" and reward.name == name and reward.agent is not None
    }


def used(row: Row, agent: int, said: Mapping[int, float], *, rule: str) -> float:
    """How much of an agent's finding its parent used. Raises MissingFact where nobody said.

    Args:
        said: `stated(row, USED)`.
    """
    found = row.agents[agent].finding_used
    if agent in said:
        return said[agent]
    if found is None:
        raise MissingFact(
            rule=rule,
            fact="used finding",
            agent_id=row.agents[agent].agent_id,
            hint=f"post `finding_used` with the agent, or a reward named {USED!r} on it",
        )
    return float(found)


def in_scope(row: Row, agent: int, said: Mapping[int, float], *, rule: str) -> bool:
    """Whether an agent kept to its scope. Raises MissingFact where no judge said.

    Args:
        said: `stated(row, IN_SCOPE)`.
    """
    if agent not in said:
        raise MissingFact(
            rule=rule,
            fact="scope verdict",
            agent_id=row.agents[agent].agent_id,
            hint=f"post a reward named {IN_SCOPE!r} on the agent, 1 or 0",
        )
    return said[agent] > 0


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
