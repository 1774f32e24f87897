"""Units in a forest -> chains: which calls one sample holds, and why each sample begins where it does.

A sample is a maximal chain of completions, each one's prompt continuing the ids of the one before. A fork
gives one chain per leaf. Why a chain begins is said in the harness's words where it declared an edit, and
worked out from messages, tools and images where it did not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracestore.graph.model import Graph
from tracestore_exporters.forest import Forest
from tracestore_exporters.units import Unit

_CHANGED: Mapping[str | None, str] = {"assistant": "rewrite", "tool": "tool_result_clearing"}
"""By the role of a message that has another in its place."""
_NOT_DONE = frozenset({"rejected", "cancelled", "failed"})


@dataclass(frozen=True, slots=True)
class Chain:
    """One sample to be: completions that continue each other, first to last."""

    units: tuple[Unit, ...]
    cause: str


def chains(units: Sequence[Unit], forest: Forest, graphs: Sequence[Graph]) -> list[Chain]:
    """Every leaf's chain, in forest order of the leaves. `units` are in unit order, with `extends` set."""
    continued = {id(unit.extends) for unit in units if unit.extends is not None}
    causes = _Causes(units, forest, graphs)
    found: list[Chain] = []
    begun: set[int] = set()
    for leaf in units:
        if id(leaf) in continued:
            continue
        path = [leaf]
        while path[-1].extends is not None:
            path.append(path[-1].extends)
        first = path[-1]
        # Only the first chain through a unit begins there; the others fork off it.
        cause = "fork" if id(first) in begun else causes.of(first)
        begun.add(id(first))
        found.append(Chain(units=tuple(reversed(path)), cause=cause))
    return found


class _Causes:
    """Why a unit continues nothing."""

    def __init__(self, units: Sequence[Unit], forest: Forest, graphs: Sequence[Graph]) -> None:
        self._forest = forest
        self._graphs = graphs
        self._edit_after = [_edits_by_first_call(graph) for graph in graphs]
        self._before: dict[tuple[int, str, int], Unit] = {}
        self._known: dict[tuple[int, str, int], str] = {}
        last: dict[tuple[int, str], Unit] = {}
        for unit in sorted(units, key=_in_agent):
            previous = last.get(unit.agent)
            if previous is not None and previous.call is not unit.call:
                self._before[unit.place] = previous
            elif previous is not None and (before := self._before.get(previous.place)):
                self._before[unit.place] = before
            last[unit.agent] = unit

    def of(self, unit: Unit) -> str:
        """The cause; that of the first try for another try at the same context."""
        tries = [unit]
        while (cause := self._own(tries[-1])) is None:
            tries.append(self._before[tries[-1].place])
        self._known.update({one.place: cause for one in tries})
        return cause

    def _own(self, unit: Unit) -> str | None:
        """The cause as far as the unit itself tells; None when it repeats the context of the one before."""
        key = unit.place
        if key in self._known:
            return self._known[key]
        edit = self._edit_after[unit.episode].get(unit.call.id)
        if edit is not None:
            return edit
        drift = self._forest.drifts.get(key)
        if drift is not None:
            return drift.what
        parent = self._forest.parent_of(unit)
        if parent is not None and parent.agent == unit.agent:
            return self._parted(unit, parent)
        before = self._before.get(key)
        if before is None:
            return self._origin(unit)
        if _same_context(before, unit):
            return None
        return self._changed(before, unit)

    def _parted(self, unit: Unit, parent: Unit) -> str:
        """The messages continue a call of this agent, the ids do not."""
        if parent.tools != unit.tools:
            return "tools_change"
        if unit.exact:
            return "template_drift"
        return self._changed(parent, unit)

    def _origin(self, unit: Unit) -> str:
        graph = self._graphs[unit.episode]
        agent = graph.agents.get(unit.call.agent_id)
        if agent is not None and (agent.parent_agent_id is not None or agent.spawned_by_call_id is not None):
            return "subagent_root"
        if graph.episode is not None and graph.episode.forked_from_episode_id is not None:
            return "fork"
        return "root"

    def _changed(self, before: Unit, unit: Unit) -> str:
        """What a harness did that says nothing of it, by the first message that differs: it rewrote an
        answer, or put something else in the place of a tool's result."""
        graph = self._graphs[unit.episode]
        old = graph.path(graph.completion_node.get(before.key, graph.prompt_node.get(before.call.id)))
        new = graph.path(graph.prompt_node.get(unit.call.id))
        pair = next(((a, b) for a, b in zip(old, new, strict=False) if a.key != b.key), None)
        roles = set() if pair is None else {node.role for node in pair}
        return _CHANGED.get(roles.pop(), "unknown") if len(roles) == 1 else "unknown"


def _same_context(before: Unit, unit: Unit) -> bool:
    """A retry or another try at the same prompt begins for the same reason as the first."""
    if before.prompt is None or unit.prompt is None or before.extends is not None:
        return False
    same = before.prompt.length == unit.prompt.length and before.prompt.begins_with(unit.prompt)
    return same and before.tools == unit.tools and before.inputs == unit.inputs


def _in_agent(unit: Unit) -> tuple[int, str, int, tuple[int, int, int, str, int]]:
    ordinal = 2**31 if unit.call.ordinal is None else unit.call.ordinal
    return (*unit.agent, ordinal, unit.order)


def _edits_by_first_call(graph: Graph) -> dict[str, str]:
    """Call id -> the edit whose new context it is the first to see.

    An edit that does not name that call, but the last one before it, is seen first by the agent's next call
    that did not write the replacement.
    """
    found: dict[str, str] = {}
    for edit in graph.context_edits.values():
        if edit.status in _NOT_DONE:
            continue
        after = edit.after_call_id
        if after is None and edit.before_call_id in graph.calls:
            before = graph.calls[edit.before_call_id]
            later = [
                (call.ordinal, call.id)
                for call in graph.calls.values()
                if call.agent_id == edit.agent_id
                and call.id != edit.author_call_id
                and call.ordinal is not None
                and before.ordinal is not None
                and call.ordinal > before.ordinal
            ]
            after = min(later)[1] if later else None
        if after is not None:
            found.setdefault(after, edit.edit)
    return found
