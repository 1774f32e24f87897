"""Critical steps of agents, from a row's header: a run's length in calls when subagents run side by side.

    steps(X) = calls of X + sum over the stages of X of max over the subagents started in it of steps

A stage is what the harness declared, else the call that spawned. A subagent is taken to be waited for before
the next stage, so a harness says by one `stage` of two spawns that they overlap; the stage closes when the
last of them returns. A nested subagent costs its own critical steps. Same numbers as the view
`critical_steps`.

Source: Kimi K2.5, Agent Swarm (PARL, arXiv 2602.02276) for stages [V]; nesting and overlap are ours [D].

Worked: three calls, subagents of 3, 10 and 4 calls spawned by the first: 3 + 10 = 13 (one after the other:
20)."""

from __future__ import annotations

from collections import Counter

from tracestore.shards.row import Row


def critical_steps(row: Row) -> list[int]:
    """Of each agent of a row, in model calls. An agent that is its own ancestor is entered once."""
    calls = Counter(call.agent for call in row.calls)
    below: dict[int, list[int]] = {}
    for index, agent in enumerate(row.agents):
        if agent.parent is not None:
            below.setdefault(agent.parent, []).append(index)

    def steps(agent: int, above: frozenset[int]) -> int:
        longest: dict[tuple[str, int], int] = {}
        for child in below.get(agent, ()):
            if child in above:
                continue
            entry, stage = row.agents[child], ("stage", 0)
            if entry.stage is not None:
                stage = ("stage", entry.stage)
            elif entry.spawned_by_call is not None:
                stage = ("call", entry.spawned_by_call)
            longest[stage] = max(longest.get(stage, 0), steps(child, above | {child}))
        return calls[agent] + sum(longest.values())

    return [steps(agent, frozenset({agent})) for agent in range(len(row.agents))]


def episode_steps(row: Row) -> dict[int, int]:
    """Of each episode with a call: the longest of its agents without a parent."""
    of = critical_steps(row)
    calling = {call.episode for call in row.calls}
    found: dict[int, int] = {}
    for agent, entry in enumerate(row.agents):
        if entry.parent is None and entry.episode in calling:
            found[entry.episode] = max(found.get(entry.episode, 0), of[agent])
    return found
