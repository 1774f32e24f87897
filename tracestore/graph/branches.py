"""Graph -> branches: what was lived through from the first message to each end.

    c0 -> c1 -> c2         one branch
    c0 -> c1, c0 -> c2     two, which share the messages up to c0's answer
    a compaction           two: the context before it ends with its last answer, a new one begins after it

Equal siblings are branches of their own although their nodes are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracestore.graph.context import authors_on_path
from tracestore.graph.model import CompletionKey, Graph


@dataclass(frozen=True, slots=True)
class Branch:
    """A path from a root to an end."""

    nodes: tuple[bytes, ...]
    """Node keys, root first."""
    completions: tuple[CompletionKey, ...]
    """The completions that wrote messages of it, first to last."""
    agent_ids: tuple[str, ...]
    """The agents of these completions and of the end, in order of appearance."""
    end_call_id: str
    end: CompletionKey | None
    """The completion it ends with; None for a call that no message came back from."""


def branches(graph: Graph) -> tuple[Branch, ...]:
    """Every branch, in order of its end.

    An end is a completion that no call continues word for word, or a call without one. Pending calls are
    on no branch: where they begin is not known.
    """
    continued = {link.parent for link in graph.links.values() if link.exact}
    ends: list[tuple[str, CompletionKey | None]] = []
    for call_id in graph.calls.keys() - graph.pending:
        answers = [key for key in graph.completions_of(call_id) if key in graph.completion_node]
        ends += [(call_id, key) for key in answers if key not in continued]
        if not answers:
            ends.append((call_id, None))
    return tuple(
        _branch(graph, call_id, end) for call_id, end in sorted(ends, key=lambda e: (e[0], e[1] or ()))
    )


def _branch(graph: Graph, call_id: str, end: CompletionKey | None) -> Branch:
    authors = authors_on_path(graph, call_id)
    completions = list(dict.fromkeys(author for _, author in sorted(authors.items())))
    if end is not None:
        completions.append(end)
    agents = [graph.calls[key[0]].agent_id for key in completions]
    return Branch(
        nodes=tuple(
            n.key
            for n in graph.path(graph.prompt_node[call_id] if end is None else graph.completion_node[end])
        ),
        completions=tuple(completions),
        agent_ids=tuple(dict.fromkeys([*agents, graph.calls[call_id].agent_id])),
        end_call_id=call_id,
        end=end,
    )
