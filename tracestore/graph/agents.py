"""Graph -> its agents as a tree: who spawned whom, from which call, completion and tool call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tracestore.graph.cycles import cycles
from tracestore.graph.model import Graph
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call


@dataclass(frozen=True, slots=True)
class Spawn:
    """The place from which an agent was started."""

    call_id: str
    completion: int | None
    tool_call_id: str | None
    """The model's own id of the tool call."""


@dataclass(frozen=True, slots=True)
class AgentNode:
    """One agent in the tree."""

    agent_id: str
    agent: Agent | None
    """None: only its calls or its children have come."""
    parent_id: str | None
    """As named, whether or not it has come."""
    depth: int
    """0 for a root; counted along the tree, not the stated one."""
    spawn: Spawn | None
    children: tuple[str, ...]
    """In order of the spawning call, then id."""
    is_orphan: bool
    """It names a parent that has not come, or that goes round in a circle with it: it is shown as a
    root."""


def agent_tree(graph: Graph) -> dict[str, AgentNode]:
    """Every agent, parents before children (depth first), roots and siblings in order.

    Agents that are only named, by a call or as a parent, are in it too: nothing that was posted is dropped.
    """
    stated = {agent_id: agent.parent_agent_id for agent_id, agent in graph.agents.items()}
    in_circle = {agent_id for ring in cycles(stated) for agent_id in ring}
    known = graph.agents.keys() | {call.agent_id for call in graph.calls.values()}
    parent_of = {
        agent_id: None if agent_id in in_circle or stated.get(agent_id) not in known else stated[agent_id]
        for agent_id in known
    }
    children: dict[str | None, list[str]] = defaultdict(list)
    for agent_id in sorted(known, key=lambda one: _spawn_order(graph, one)):
        children[parent_of[agent_id]].append(agent_id)
    tree: dict[str, AgentNode] = {}
    stack = [(agent_id, 0) for agent_id in reversed(children[None])]
    while stack:
        agent_id, depth = stack.pop()
        agent = graph.agents.get(agent_id)
        tree[agent_id] = AgentNode(
            agent_id=agent_id,
            agent=agent,
            parent_id=stated.get(agent_id),
            depth=depth,
            spawn=spawn_of(agent),
            children=tuple(children[agent_id]),
            is_orphan=stated.get(agent_id) is not None and parent_of[agent_id] is None,
        )
        stack += [(child, depth + 1) for child in reversed(children[agent_id])]
    return tree


def spawn_of(agent: Agent | None) -> Spawn | None:
    """Where an agent says it was spawned; None for a root, and where it does not say."""
    if agent is None or agent.spawned_by_call_id is None:
        return None
    return Spawn(agent.spawned_by_call_id, agent.spawned_by_completion, agent.spawned_by_tool_call_id)


def calls_in_order(graph: Graph, agent_id: str) -> tuple[Call, ...]:
    """The calls of an agent: by ordinal; those without one after them, by their place in the chain of
    links."""
    calls = [call for call in graph.calls.values() if call.agent_id == agent_id]
    return tuple(sorted(calls, key=lambda call: _call_order(graph, call)))


def _call_order(graph: Graph, call: Call) -> tuple[bool, int, str]:
    if call.ordinal is not None:
        return False, call.ordinal, call.id
    return True, _links_above(graph, call.id), call.id


def _links_above(graph: Graph, call_id: str) -> int:
    seen = {call_id}
    parent = graph.links[call_id].parent
    while parent is not None and parent[0] not in seen:
        seen.add(parent[0])
        # Of a call only a completion may have come.
        link = graph.links.get(parent[0])
        parent = None if link is None else link.parent
    return len(seen) - 1


def _spawn_order(graph: Graph, agent_id: str) -> tuple[bool, int, str]:
    agent = graph.agents.get(agent_id)
    spawner = graph.calls.get(agent.spawned_by_call_id or "") if agent is not None else None
    return (*(_call_order(graph, spawner)[:2] if spawner is not None else (True, 0)), agent_id)
