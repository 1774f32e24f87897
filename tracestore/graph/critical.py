"""Graph -> stages -> critical steps: how long an episode is when its subagents run side by side.

main calls:   0       1        2    3          stages of main
subagents:    A----returned    |    |          (1; [A])      call 0, until A is back before call 1
                      B-----------returned     (2; [B, C])   calls 1 and 2, until B is back before
                      call 3 C----returned            (1; [])       call 3
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tracestore.errors import TracestoreError
from tracestore.graph.agents import calls_in_order
from tracestore.graph.context import context
from tracestore.graph.messages import result_ids
from tracestore.graph.model import Graph
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call


class OpenStage(TracestoreError):
    """A subagent never returned, so its stage has no length yet"""

    status: ClassVar[int] = 409


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of an agent's own calls, and the subagents that run meanwhile."""

    own_calls: int
    """Model calls of the agent itself."""
    subagents: tuple[int | None, ...] = ()
    """Critical steps of each subagent started in it; None: it has not returned."""


def critical_steps(stages: Sequence[Stage]) -> int:
    """Length of an episode when subagents run side by side, in model calls.

    A stage costs the orchestrator's own calls plus those of its longest subagent, so ten subagents
    running at once cost what the slowest one costs.

    Args:
        stages: in time order; a stage closes when every subagent it started has returned.

    Returns:
        Model calls (not tokens, not seconds). 0 for an episode without calls.

    Raises:
        OpenStage: a subagent never returned, so the stage has no length yet.

    Source: Kimi K2.5, Agent Swarm (PARL), arXiv 2602.02276, critical steps = sum over stages of
    (S_main + max_i S_sub,i).

    Example: the orchestrator makes 2 calls, its subagents 3 and 7 -> 2 + 7 = 9
    """
    total = 0
    for number, stage in enumerate(stages):
        lengths = [length for length in stage.subagents if length is not None]
        if len(lengths) < len(stage.subagents):
            raise OpenStage(stage=number, hint="post the end of every subagent, or count after the episode")
        total += stage.own_calls + max(lengths, default=0)
    return total


def stages(graph: Graph, agent_id: str) -> tuple[Stage, ...]:
    """The stages of one agent, in time order.

    A subagent runs from the call that spawned it until the first later call of its parent that shows the
    result of its tool call; one whose result is not to be found there was waited for by the next call.
    Subagents whose times overlap, or that the harness put into one stage, share a stage, which closes
    when the last of them returns. The length of a subagent is its own critical steps: nesting adds up.

    Subagents whose spawning call is not one of this agent's (a harness that spawns from outside, a call
    that has not come) run beside the first stage.
    """
    return _stages(graph, agent_id, frozenset())


def _stages(graph: Graph, agent_id: str, above: frozenset[str]) -> tuple[Stage, ...]:
    own = calls_in_order(graph, agent_id)
    place = {call.id: index for index, call in enumerate(own)}
    # An agent that is its own ancestor is a broken input that `invariants` reports; here it is not
    # entered twice.
    above = above | {agent_id}
    children = [a for a in graph.agents.values() if a.parent_agent_id == agent_id and a.id not in above]
    shown = _results_shown(graph, own) if any(child.spawned_by_tool_call_id for child in children) else {}
    spans = []
    for child in children:
        start = place.get(child.spawned_by_call_id or "", 0)
        later = (index for index in shown.get(child.spawned_by_tool_call_id or "", ()) if index > start)
        spans.append((start, next(later, start + 1), child))
    found: list[Stage] = []
    position = 0
    for start, end, together in _overlapping(spans):
        assert start >= position
        lengths = tuple(_length(graph, child, above) for child in together)
        found.append(Stage(min(end, len(own)) - position, lengths))
        position = min(end, len(own))
    if position < len(own):
        found.append(Stage(len(own) - position))
    return tuple(found)


def _results_shown(graph: Graph, own: Sequence[Call]) -> dict[str, list[int]]:
    """Tool call id -> indexes of the own calls in whose context a result of it is new."""
    shown: dict[str, list[int]] = defaultdict(list)
    seen: set[bytes | None] = {None}
    for index, call in enumerate(own):
        for message in context(graph, call.id):
            if message.node not in seen or call.id in graph.pending:
                seen.add(message.node)
                for tool_call_id in result_ids(message.raw):
                    shown[tool_call_id].append(index)
    return shown


def _overlapping(spans: list[tuple[int, int, Agent]]) -> list[tuple[int, int, list[Agent]]]:
    """Spans joined where they overlap or where the harness names one stage for them."""
    joined: list[tuple[int, int, list[Agent]]] = []
    for start, end, child in sorted(spans, key=lambda span: (span[0], span[1], span[2].id)):
        if joined:
            first, last, members = joined[-1]
            same = child.stage is not None and child.stage == members[-1].stage
            if start < last or same:
                joined[-1] = (first, max(last, end), [*members, child])
                continue
        joined.append((start, end, [child]))
    return joined


def _length(graph: Graph, child: Agent, above: frozenset[str]) -> int | None:
    """Critical steps of a subagent; None while it, or one below it, has not returned."""
    if child.phase == "start":
        return None
    try:
        return critical_steps(_stages(graph, child.id, above))
    except OpenStage:
        return None
