"""What should hold of a graph, by name. A violation is a fact about the recording, never a reason to drop
it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tracestore.graph import tokens
from tracestore.graph.agents import agent_tree
from tracestore.graph.cycles import cycles
from tracestore.graph.messages import tool_uses
from tracestore.graph.model import CompletionKey, Graph
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group
from tracestore.wire.tool_call import ToolCall


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that does not hold."""

    check: str
    """Name of the check, one of CHECKS."""
    kind: str
    """Kind of the event it is about."""
    id: str
    """Its id."""
    detail: str
    """What is wrong, with the values."""


Check = Callable[[Graph], Iterator[tuple[str, str, str]]]
"""Yields (kind, id, detail)."""


def check(graph: Graph) -> tuple[Violation, ...]:
    """Every violation, in order of check, kind, id and detail."""
    found = [Violation(name, *facts) for name, run in CHECKS.items() for facts in run(graph)]
    return tuple(sorted(found, key=lambda v: (v.check, v.kind, v.id, v.detail)))


def incomplete(graph: Graph) -> tuple[tuple[str, str], ...]:
    """(kind, id) of what started and has not ended, or ended without its start; a recording under way has
    some."""
    phased: list[Group | Episode | Agent | Call | ToolCall] = [
        *([graph.episode] if graph.episode is not None else []),
        *([graph.group] if graph.group is not None else []),
        *graph.agents.values(),
        *graph.calls.values(),
        *graph.tool_calls.values(),
    ]
    return tuple(sorted((event.kind, event.id) for event in phased if event.phase != "whole"))


def orphans(graph: Graph) -> tuple[tuple[str, str], ...]:
    """(kind, id) of the calls and agents whose named parent has not come; they are shown as roots."""
    calls = [
        ("call", c.id)
        for c in graph.calls.values()
        if c.parent_call_id and c.parent_call_id not in graph.calls
    ]
    agents = [("agent", node.agent_id) for node in agent_tree(graph).values() if node.is_orphan]
    return tuple(sorted([*calls, *agents]))


def _call_cycle(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Calls name each other as parents in a circle."""
    for ring in cycles({call.id: call.parent_call_id for call in graph.calls.values()}):
        for call_id in ring:
            yield "call", call_id, f"its parents go round: {' -> '.join((*ring, ring[0]))}"


def _agent_cycle(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Agents name each other as parents in a circle."""
    for ring in cycles({agent.id: agent.parent_agent_id for agent in graph.agents.values()}):
        for agent_id in ring:
            yield "agent", agent_id, f"its parents go round: {' -> '.join((*ring, ring[0]))}"


def _orphan_call(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A call names a parent that has not come."""
    for call in graph.calls.values():
        if call.parent_call_id is not None and call.parent_call_id not in graph.calls:
            yield "call", call.id, f"parent_call_id {call.parent_call_id!r} has not come"


def _orphan_agent(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """An agent names a parent, or a spawning call, that has not come."""
    known = graph.agents.keys() | {call.agent_id for call in graph.calls.values()}
    for agent in graph.agents.values():
        if agent.parent_agent_id is not None and agent.parent_agent_id not in known:
            yield "agent", agent.id, f"parent_agent_id {agent.parent_agent_id!r} has not come"
        if agent.spawned_by_call_id is not None and agent.spawned_by_call_id not in graph.calls:
            yield "agent", agent.id, f"spawned_by_call_id {agent.spawned_by_call_id!r} has not come"


def _orphan_completion(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A completion belongs to a call that has not come."""
    for call_id, index in graph.completions:
        if call_id not in graph.calls:
            yield "completion", f"{call_id}[{index}]", f"call {call_id!r} has not come"


def _unknown_agent(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A call is of an agent of which no event has come."""
    for call in graph.calls.values():
        if call.agent_id not in graph.agents:
            yield "call", call.id, f"no event of agent {call.agent_id!r} has come"


def _pending_call(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The context of a delta call is not known."""
    for call_id in graph.pending:
        call = graph.calls[call_id]
        stated = "" if call.parent_completion is None else f"[{call.parent_completion}]"
        parent = "a call that it does not name" if call.parent_call_id is None else call.parent_call_id
        yield "call", call_id, f"its context continues {parent}{stated}, which is not known"


def _parent_completion_unstated(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A call names a parent with several completions and not which one, and nothing else tells."""
    for call in graph.calls.values():
        if call.parent_call_id is not None and graph.links[call.id].how == "ambiguous":
            count = len(graph.completions_of(call.parent_call_id))
            yield (
                "call",
                call.id,
                f"parent {call.parent_call_id!r} has {count} completions: state parent_completion",
            )


def _ambiguous_parent(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A call names no parent and continues a message that several calls sampled."""
    for call in graph.calls.values():
        if call.parent_call_id is None and graph.links[call.id].how == "ambiguous":
            yield "call", call.id, "several completions fit its context: post parent_call_id"


def _text_drift(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A call names its parent, and its context holds another text than the parent's answer."""
    for call_id, link in graph.links.items():
        if link.how == "named" and link.parent in graph.completion_node and not link.exact:
            assert link.parent is not None
            yield "call", call_id, f"its context does not hold the answer {link.parent[0]}[{link.parent[1]}]"


def _ordinal_doubled(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Two calls of one agent have the same ordinal."""
    numbered = [call for call in graph.calls.values() if call.ordinal is not None]
    places = Counter((call.agent_id, call.ordinal) for call in numbered)
    for call in numbered:
        if places[call.agent_id, call.ordinal] > 1:
            yield "call", call.id, f"ordinal {call.ordinal} of agent {call.agent_id!r} is taken twice"


def _parent_later(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A call continues a call of its own agent that has a higher ordinal."""
    for call in graph.calls.values():
        parent = graph.calls.get(call.parent_call_id or "")
        if parent is None or parent.agent_id != call.agent_id or None in (parent.ordinal, call.ordinal):
            continue
        assert parent.ordinal is not None
        assert call.ordinal is not None
        if parent.ordinal > call.ordinal:
            yield "call", call.id, f"ordinal {call.ordinal}, its parent {parent.id!r} has {parent.ordinal}"


def _depth_differs(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """An agent states another depth than its place in the tree."""
    for node in agent_tree(graph).values():
        stated = node.agent.depth if node.agent is not None else None
        if stated is not None and not node.is_orphan and stated != node.depth:
            yield "agent", node.agent_id, f"depth {stated} is stated, its place in the tree is {node.depth}"


def _token_ids_incomplete(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The server gave fewer (or more) token ids than it says it sampled."""
    for call_id, call in graph.calls.items():
        if tokens.is_ids_incomplete(graph, call_id):
            answers = [graph.completions[key].token_ids for key in graph.completions_of(call_id)]
            counts = [None if ids is None else len(ids) for ids in answers]
            sampled = None if call.usage is None else call.usage.completion_tokens
            yield "call", call_id, f"completion_tokens {sampled}, token ids {counts}"


def _prompt_ids_incomplete(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """The prompt has another number of token ids than its usage says."""
    for call_id, call in graph.calls.items():
        if call.usage is None or call.usage.prompt_tokens is None:
            continue
        ids = tokens.prompt_ids(graph, call_id)
        if ids is not None and len(ids) != call.usage.prompt_tokens:
            yield "call", call_id, f"prompt_tokens {call.usage.prompt_tokens}, token ids {len(ids)}"


def _version_past_end(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A run of a policy version begins behind the last token."""
    for (call_id, index), completion in graph.completions.items():
        if completion.versions is None or completion.token_ids is None:
            continue
        last, count = completion.versions[-1].start, len(completion.token_ids)
        if last >= max(count, 1):
            yield "completion", f"{call_id}[{index}]", f"a version begins at {last} of {count} tokens"


def _unknown_tool_use(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A tool call or a spawned agent names a tool use that is none of its completion's.

    A message without any was read by its harness (code between fences, actions in words), whose names for
    what it found stand in the tool calls: an agent may name one of these.
    """
    executed = {(one.call_id, one.completion, one.tool_call_id) for one in graph.tool_calls.values()}
    for tool_call in graph.tool_calls.values():
        key, name = (tool_call.call_id, tool_call.completion), tool_call.tool_call_id
        uses = _uses(graph, key)
        if name is not None and uses and name not in uses:
            yield "tool_call", tool_call.id, f"no tool use {name!r} in {key[0]}[{key[1]}]"
    for agent in graph.agents.values():
        key = (agent.spawned_by_call_id or "", agent.spawned_by_completion or 0)
        name, uses = agent.spawned_by_tool_call_id, _uses(graph, key)
        if name is None or uses is None or name in uses or (not uses and (*key, name) in executed):
            continue
        yield "agent", agent.id, f"no tool use {name!r} in {key[0]}[{key[1]}]"


def _uses(graph: Graph, key: CompletionKey) -> frozenset[str | None] | None:
    """Ids of the tool uses in a completion's message; None where it has not come."""
    completion, call = graph.completions.get(key), graph.calls.get(key[0])
    if completion is None or call is None:
        return None
    return frozenset(use.id for use in tool_uses(completion.message, call.dialect))


def _bad_selection(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A selection names a set that has not come, or members that the set does not have."""
    for selection in graph.candidate_selections.values():
        candidates = graph.candidate_sets.get(selection.candidate_set_id)
        if candidates is None:
            yield "candidate_selection", selection.id, f"set {selection.candidate_set_id!r} has not come"
            continue
        named = {
            *selection.selected,
            *(selection.continued or ()),
            *(s.member for s in selection.scores or ()),
        }
        beyond = sorted(member for member in named if member >= len(candidates.members))
        if beyond:
            yield "candidate_selection", selection.id, f"members {beyond} of {len(candidates.members)}"


def _unknown_member(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A candidate is a completion or an agent that has not come."""
    for candidates in graph.candidate_sets.values():
        for index, member in enumerate(candidates.members):
            if member.agent_id is not None and member.agent_id not in graph.agents:
                yield (
                    "candidate_set",
                    candidates.id,
                    f"member {index}: agent {member.agent_id!r} has not come",
                )
            if member.call_id is not None and (member.call_id, member.completion) not in graph.completions:
                what = f"{member.call_id}[{member.completion}]"
                yield "candidate_set", candidates.id, f"member {index}: completion {what} has not come"


def _edit_refers_to_nothing(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A context edit names calls that have not come."""
    for edit in graph.context_edits.values():
        single = (edit.trigger_call_id, edit.author_call_id, edit.before_call_id, edit.after_call_id)
        named = {*single, *(edit.replaced_call_ids or ()), *(edit.kept_call_ids or ())} - {None}
        missing = sorted(call_id for call_id in named if call_id and call_id not in graph.calls)
        if missing:
            yield "context_edit", edit.id, f"calls {missing} have not come"


def _reward_target_missing(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """A reward is for something that has not come, or for tokens behind the last one."""
    for reward in graph.rewards.values():
        target = reward.target
        if target.agent_id is not None and target.agent_id not in graph.agents:
            yield "reward", reward.id, f"agent {target.agent_id!r} has not come"
        if target.call_id is not None and target.call_id not in graph.calls:
            yield "reward", reward.id, f"call {target.call_id!r} has not come"
        elif target.call_id is not None and target.completion is not None:
            yield from _reward_on_completion(
                graph, reward.id, (target.call_id, target.completion), target.token_start, target.token_length
            )
        if target.candidate_set_id is not None:
            candidates = graph.candidate_sets.get(target.candidate_set_id)
            if candidates is None:
                yield "reward", reward.id, f"candidate set {target.candidate_set_id!r} has not come"
            elif target.member is not None and target.member >= len(candidates.members):
                yield "reward", reward.id, f"member {target.member} of {len(candidates.members)}"


def _reward_on_completion(
    graph: Graph, reward_id: str, key: CompletionKey, start: int | None, length: int | None
) -> Iterator[tuple[str, str, str]]:
    completion = graph.completions.get(key)
    if completion is None:
        yield "reward", reward_id, f"completion {key[0]}[{key[1]}] has not come"
        return
    end = None if start is None or length is None else start + length
    if end is not None and completion.token_ids is not None and end > len(completion.token_ids):
        yield "reward", reward_id, f"tokens {start} to {end} of {len(completion.token_ids)}"


CHECKS: dict[str, Check] = {
    "agent_cycle": _agent_cycle,
    "ambiguous_parent": _ambiguous_parent,
    "bad_selection": _bad_selection,
    "call_cycle": _call_cycle,
    "depth_differs": _depth_differs,
    "edit_refers_to_nothing": _edit_refers_to_nothing,
    "ordinal_doubled": _ordinal_doubled,
    "orphan_agent": _orphan_agent,
    "orphan_call": _orphan_call,
    "orphan_completion": _orphan_completion,
    "parent_completion_unstated": _parent_completion_unstated,
    "parent_later_than_child": _parent_later,
    "pending_call": _pending_call,
    "prompt_ids_incomplete": _prompt_ids_incomplete,
    "reward_target_missing": _reward_target_missing,
    "text_drift": _text_drift,
    "token_ids_incomplete": _token_ids_incomplete,
    "unknown_agent": _unknown_agent,
    "unknown_member": _unknown_member,
    "unknown_tool_use": _unknown_tool_use,
    "version_past_end": _version_past_end,
}
"""Name -> check; each function's docstring says what does not hold when it reports something."""
