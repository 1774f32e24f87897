"""Graph -> networkx: what was recorded of an episode as nodes, how it relates as typed edges.

A node is named (kind, id): ("agent", "a"), ("call", "c0"), ("message", key in hex), ("context_edit", "x"),
("candidate_set", "s"). An edge's key is its kind; a second one of the kind between the same two, (kind, 1):

    made           agent -> call            next           message -> the one after it
    spawn          call or agent -> agent   read           message -> call that saw it and all before it
    continuation   call -> call             wrote          call -> last message of an answer
    edit_before, summary, replaced, copy    call -> context edit
    edit_after     context edit -> call     member         candidate set -> call or agent
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tracestore.analysis.extras import optional
from tracestore.graph.agents import agent_tree
from tracestore.graph.messages import Message, answer_messages, messages_of, preview
from tracestore.graph.model import Graph
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call

Name = tuple[str, str]
"""(kind, id)."""


class Edge(NamedTuple):
    """One typed relation."""

    start: Name
    end: Name
    kind: str
    facts: dict[str, Any]
    """What else is known of it; unknown is None."""


def networkx_of(graph: Graph) -> Any:
    """A `networkx.MultiDiGraph`, which is a DiGraph that keeps two relations of one pair apart.

    What is named and has not come is a node with `is_recorded` false.

    Raises:
        MissingPackage: networkx is not installed.
    """
    network = optional("networkx").MultiDiGraph(**_episode_facts(graph))
    for name, facts in nodes(graph):
        network.add_node(name, kind=name[0], is_recorded=True, **facts)
    for edge in edges(graph):
        for name in (edge.start, edge.end):
            if name not in network:
                network.add_node(name, kind=name[0], is_recorded=False)
        ends = edge.start, edge.end
        # Equal answers of a call are one message, and two members of a set may be of one call.
        is_first = not network.has_edge(*ends, edge.kind)
        key = edge.kind if is_first else (edge.kind, network.number_of_edges(*ends))
        network.add_edge(*ends, key=key, kind=edge.kind, **edge.facts)
    return network


def nodes(graph: Graph) -> Iterator[tuple[Name, dict[str, Any]]]:
    """Everything that was recorded, each once."""
    for agent in graph.agents.values():
        yield ("agent", agent.id), _agent_facts(agent)
    for call in graph.calls.values():
        yield ("call", call.id), _call_facts(graph, call)
    previews = _previews(graph)
    for key, node in graph.nodes.items():
        facts = {"role": node.role, "depth": node.depth, "preview": previews.get(key)}
        yield ("message", key.hex()), facts
    for edit in graph.context_edits.values():
        sizes = {"tokens_before": edit.tokens_before, "tokens_after": edit.tokens_after}
        yield (
            ("context_edit", edit.id),
            {"edit": edit.edit, "author": edit.author, "status": edit.status, **sizes},
        )
    for found in graph.candidate_sets.values():
        yield ("candidate_set", found.id), {"generator": found.generator}


def edges(graph: Graph) -> Iterator[Edge]:
    """Every relation of the episode's parts; those of the view `edges`, forks apart, and more."""
    yield from _of_agents(graph)
    yield from _of_calls(graph)
    yield from _of_messages(graph)
    yield from _of_edits(graph)
    yield from _of_candidates(graph)


def _of_agents(graph: Graph) -> Iterator[Edge]:
    for agent_id, node in agent_tree(graph).items():
        end = ("agent", agent_id)
        if node.spawn is not None:
            facts = {"completion": node.spawn.completion, "tool_call_id": node.spawn.tool_call_id}
            yield Edge(("call", node.spawn.call_id), end, "spawn", facts)
        elif node.parent_id is not None:
            yield Edge(("agent", node.parent_id), end, "spawn", {})


def _of_calls(graph: Graph) -> Iterator[Edge]:
    for call in graph.calls.values():
        end = ("call", call.id)
        yield Edge(("agent", call.agent_id), end, "made", {})
        link = graph.links[call.id]
        if link.parent is not None:
            facts = {"completion": link.parent[1], "how": link.how, "exact": link.exact}
            yield Edge(("call", link.parent[0]), end, "continuation", facts)


def _of_messages(graph: Graph) -> Iterator[Edge]:
    for key, node in graph.nodes.items():
        if node.parent is not None:
            yield Edge(("message", node.parent.hex()), ("message", key.hex()), "next", {})
    for call_id, last in graph.prompt_node.items():
        if last is not None:
            yield Edge(("message", last.hex()), ("call", call_id), "read", {})
    for (call_id, index), last in graph.completion_node.items():
        yield Edge(("call", call_id), ("message", last.hex()), "wrote", {"completion": index})


def _of_edits(graph: Graph) -> Iterator[Edge]:
    for edit in graph.context_edits.values():
        here = ("context_edit", edit.id)
        if edit.before_call_id is not None:
            yield Edge(("call", edit.before_call_id), here, "edit_before", {})
        if edit.author_call_id is not None:
            facts = {"completion": edit.author_completion}
            yield Edge(("call", edit.author_call_id), here, "summary", facts)
        for call_id in edit.replaced_call_ids or ():
            yield Edge(("call", call_id), here, "replaced", {})
        for call_id in edit.kept_call_ids or ():
            yield Edge(("call", call_id), here, "copy", {})
        if edit.after_call_id is not None:
            yield Edge(here, ("call", edit.after_call_id), "edit_after", {})


def _of_candidates(graph: Graph) -> Iterator[Edge]:
    chosen = chosen_members(graph)
    for found in graph.candidate_sets.values():
        kept = chosen.get(found.id)
        for index, member in enumerate(found.members):
            end = ("call", member.call_id) if member.call_id is not None else ("agent", member.agent_id or "")
            yield Edge(
                ("candidate_set", found.id),
                end,
                "member",
                {
                    "member": index,
                    "completion": None if member.call_id is None else member.completion,
                    "score": member.score,
                    "selected": None if kept is None else index in kept,
                },
            )


def chosen_members(graph: Graph) -> dict[str, set[int]]:
    """Candidate set -> the members that any selection chose; nothing for a set without a selection."""
    chosen: dict[str, set[int]] = {}
    for selection in graph.candidate_selections.values():
        chosen.setdefault(selection.candidate_set_id, set()).update(selection.selected)
    return chosen


def _episode_facts(graph: Graph) -> dict[str, Any]:
    episode = graph.episode
    if episode is None:
        return {}
    names = ("status", "group_id", "task_id", "split", "forked_from_episode_id", "forked_from_call_id")
    return {"episode_id": episode.id, **{name: getattr(episode, name) for name in names}}


def _agent_facts(agent: Agent) -> dict[str, Any]:
    names = ("role", "name", "depth", "stage", "model", "checkpoint", "trainable", "score", "status")
    return {name: getattr(agent, name) for name in (*names, "finding_used")}


def _call_facts(graph: Graph, call: Call) -> dict[str, Any]:
    answers = [graph.completions[key] for key in graph.completions_of(call.id)]
    counts = [None if answer.token_ids is None else len(answer.token_ids) for answer in answers]
    known = [count for count in counts if count is not None]
    return {
        "ordinal": call.ordinal,
        "purpose": call.purpose,
        "model": call.model,
        "policy_name": None if call.policy is None else call.policy.name,
        "policy_version": None if call.policy is None else call.policy.version,
        "status": call.status,
        "num_completions": len(answers),
        "sampled_tokens": sum(known) if known else None,
    }


def _previews(graph: Graph) -> dict[bytes, str]:
    """The beginning of each message, read once: where it was posted, not in every context."""
    found: dict[bytes, str] = {}
    for call_id, call in graph.calls.items():
        if call_id not in graph.pending:
            posted = messages_of(call.request, call.dialect)
            _add_previews(found, graph, posted, last=graph.prompt_node[call_id])
    for key, last in graph.completion_node.items():
        asked = graph.calls.get(key[0])
        dialect = "openai_chat" if asked is None else asked.dialect
        _add_previews(found, graph, answer_messages(graph.completions[key].message, dialect), last=last)
    return found


def _add_previews(
    found: dict[bytes, str], graph: Graph, messages: Sequence[Message], *, last: bytes | None
) -> None:
    """Those of messages of which the last one stands at a node, where there is none yet."""
    for message, node in zip(reversed(messages), graph.up(last), strict=False):
        if node.key not in found:
            found[node.key] = preview(message.raw)
