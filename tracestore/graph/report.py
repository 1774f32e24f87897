"""Graph -> what is shown of an episode and of a call. Token arrays and requests stay with their call.

Every list is flat and names parents by id: an episode of any depth is a document of bounded depth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel

from tracestore.graph.context import context
from tracestore.graph.invariants import orphans
from tracestore.graph.messages import preview
from tracestore.graph.model import CompletionKey, Graph, Link
from tracestore.wire.agent import Agent
from tracestore.wire.base import PhasedEvent, Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import CompletionFields
from tracestore.wire.strict import fields

_OF_A_CALL = ("request", "prompt_token_ids", "prompt_token_ids_delta", "completions")
"""What only `GET /v1/calls/{id}` shows."""
_OF_AN_EVENT = ("v", "kind", "phase")
"""What belongs to the post, not to the thing."""


def episode_tree(graph: Graph, episode_id: str) -> dict[str, Any]:
    """One episode: agents in depth-first order, each with its calls in order, and everything around them."""
    calls, tools, selections = _calls_by_agent(graph), _tool_calls(graph), _selections(graph)
    return {
        "id": episode_id,
        "episode": shown(graph.episode),
        "group": shown(graph.group),
        "agents": [
            {
                **_agent(graph, agent_id),
                "calls": [_call(graph, call, tools[call.id]) for call in calls[agent_id]],
            }
            for agent_id in _depth_first(graph)
        ],
        "context_edits": _all(graph.context_edits.values()),
        "candidate_sets": [
            {**_fields(found), "selections": selections[found.id]} for found in graph.candidate_sets.values()
        ],
        "rewards": _all(graph.rewards.values()),
        "gaps": _all(graph.gaps.values()),
        "snapshots": _all(graph.snapshots.values()),
        "blobs": _all(graph.blobs.values()),
        "consumptions": _all(graph.consumptions.values()),
        "orphans": [{"kind": kind, "id": id_} for kind, id_ in orphans(graph)],
        "unplaced": _unplaced(graph),
    }


def shown(thing: BaseModel | None) -> dict[str, Any] | None:
    """The fields of an event that say something about the thing; None for what has not come."""
    return None if thing is None else _fields(thing)


def call_of(graph: Graph, call_id: str, *, link: Link, is_pending: bool) -> dict[str, Any]:
    """Everything of one call: request, completions with ids and logprobs, link, tool calls.

    Args:
        graph: of the call, its completions and tool calls at least.
        link, is_pending: which take more than these to tell.
    """
    return {
        **_fields(graph.calls[call_id]),
        **_link_shown(link, is_pending=is_pending),
        "completions": [
            {"index": key[1], **_completion_fields(graph.completions[key])}
            for key in graph.completions_of(call_id)
        ],
        "tool_calls": _tool_calls(graph)[call_id],
    }


def context_of(graph: Graph, call_id: str) -> dict[str, Any]:
    """The messages a call saw, in order, each byte for byte, with the completion that authored it.

    `messages` is null while the call's parent has not come.
    """
    messages = None
    if call_id not in graph.pending:
        messages = [(message.raw, message.author) for message in context(graph, call_id)]
    return context_shown(call_id, link=graph.links[call_id], messages=messages)


def context_shown(
    call_id: str, *, link: Link, messages: Iterable[tuple[Raw, CompletionKey | None]] | None
) -> dict[str, Any]:
    """A context, each message with its author; None: the call's parent has not come."""
    return {
        "call_id": call_id,
        **_link_shown(link, is_pending=messages is None),
        "messages": None
        if messages is None
        else [{"author": _author(author), "message": message} for message, author in messages],
    }


def _fields(thing: BaseModel) -> dict[str, Any]:
    shown_fields = {name: value for name, value in fields(thing).items() if name not in _OF_AN_EVENT}
    if isinstance(thing, PhasedEvent):
        shown_fields["is_complete"] = thing.phase == "whole"
    return shown_fields


def _all(things: Iterable[BaseModel]) -> list[dict[str, Any]]:
    return [_fields(thing) for thing in things]


def _depth_first(graph: Graph) -> Iterator[str]:
    """Agents, parents before children, by id among siblings; those only named by a call come last."""
    children: dict[str | None, list[str]] = {}
    for agent in graph.agents.values():
        parent = agent.parent_agent_id if agent.parent_agent_id in graph.agents else None
        children.setdefault(parent, []).append(agent.id)
    waiting = children.get(None, [])[::-1]
    while waiting:
        agent_id = waiting.pop()
        yield agent_id
        waiting += children.get(agent_id, [])[::-1]
    yield from sorted({call.agent_id for call in graph.calls.values()} - graph.agents.keys())


def _calls_by_agent(graph: Graph) -> dict[str, list[Call]]:
    """Calls in order; those of unknown ordinal come last, since clocks do not order."""
    by_agent: dict[str, list[Call]] = defaultdict(list)
    for call in sorted(
        graph.calls.values(), key=lambda call: (call.ordinal is None, call.ordinal or 0, call.id)
    ):
        by_agent[call.agent_id].append(call)
    return by_agent


def _agent(graph: Graph, agent_id: str) -> dict[str, Any]:
    agent = graph.agents.get(agent_id)
    names = [name for name in Agent.model_fields if name not in _OF_AN_EVENT]
    known = dict.fromkeys([*names, "is_complete"]) if agent is None else _fields(agent)
    return {**known, "id": agent_id, "is_recorded": agent is not None}


def _call(graph: Graph, call: Call, tools: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{name: value for name, value in _fields(call).items() if name not in _OF_A_CALL},
        **_place(graph, call.id),
        "completions": [_completion(graph, key) for key in graph.completions_of(call.id)],
        "tool_calls": tools,
    }


def _completion(graph: Graph, key: CompletionKey) -> dict[str, Any]:
    completion = graph.completions[key]
    return {
        "index": key[1],
        "finish_reason": completion.finish_reason,
        "partial": completion.partial,
        "num_token_ids": None if completion.token_ids is None else len(completion.token_ids),
        "preview": None if completion.message is None else preview(completion.message),
    }


def _unplaced(graph: Graph) -> dict[str, Any]:
    """What belongs to a call or a candidate set that has not come."""
    return {
        "completions": [
            {"call_id": key[0], **_completion(graph, key)}
            for key in graph.completions
            if key[0] not in graph.calls
        ],
        "tool_calls": _all(tool for tool in graph.tool_calls.values() if tool.call_id not in graph.calls),
        "candidate_selections": _all(
            selection
            for selection in graph.candidate_selections.values()
            if selection.candidate_set_id not in graph.candidate_sets
        ),
    }


def _place(graph: Graph, call_id: str) -> dict[str, Any]:
    return _link_shown(graph.links[call_id], is_pending=call_id in graph.pending)


def _link_shown(link: Link, *, is_pending: bool) -> dict[str, Any]:
    return {
        "link": {"parent": _author(link.parent), "how": link.how, "exact": link.exact},
        "is_pending": is_pending,
    }


def _author(key: CompletionKey | None) -> dict[str, Any] | None:
    return None if key is None else {"call_id": key[0], "completion": key[1]}


def _completion_fields(completion: CompletionFields) -> dict[str, Any]:
    return {name: getattr(completion, name) for name in CompletionFields.model_fields}


def _tool_calls(graph: Graph) -> dict[str, list[dict[str, Any]]]:
    by_call: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for tool in graph.tool_calls.values():
        by_call[tool.call_id].append(_fields(tool))
    return by_call


def _selections(graph: Graph) -> dict[str, list[dict[str, Any]]]:
    by_set: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for selection in graph.candidate_selections.values():
        by_set[selection.candidate_set_id].append(_fields(selection))
    return by_set
