"""Graph -> the messages that one call saw, byte for byte, each with the completion that wrote it.

A call that posted its whole context saw those bytes. A delta call saw its parent's context, the
completion that it continues as the server gave it, and its own messages after that.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracestore.graph.messages import Message, answer_messages, messages_of
from tracestore.graph.model import CompletionKey, Graph
from tracestore.wire.base import Raw


@dataclass(frozen=True, slots=True)
class ContextMessage:
    """One message of a call's context."""

    raw: Raw
    """As the call saw it."""
    node: bytes | None
    """Its place in the graph. None: the call is pending, and what came before is not known."""
    author: CompletionKey | None
    """The completion that sampled it, by the chain of links. None: observed (or its author is
    ambiguous)."""


def context(graph: Graph, call_id: str) -> tuple[ContextMessage, ...]:
    """What a call saw, in order.

    A pending call gives its own messages alone, without nodes.

    Raises:
        KeyError: no such call.
    """
    if call_id in graph.pending:
        call = graph.calls[call_id]
        return tuple(ContextMessage(raw, None, None) for raw, _ in messages_of(call.request, call.dialect))
    messages = _messages(graph, call_id)
    path = graph.path(graph.prompt_node[call_id])
    authors = authors_on_path(graph, call_id)
    return tuple(
        ContextMessage(message.raw, node.key, authors.get(node.depth))
        for message, node in zip(messages, path, strict=True)
    )


def answer_in_context(graph: Graph, key: CompletionKey) -> tuple[ContextMessage, ...]:
    """A completion as the messages that stand after its call's context; () for one without a message.

    Raises:
        KeyError: no such completion.
    """
    call = graph.calls.get(key[0])
    messages = answer_messages(
        graph.completions[key].message, "openai_chat" if call is None else call.dialect
    )
    node = graph.completion_node.get(key)
    if node is None:
        return tuple(ContextMessage(message.raw, None, key) for message in messages)
    path = graph.path(node)[-len(messages) :]
    return tuple(ContextMessage(m.raw, n.key, key) for m, n in zip(messages, path, strict=True))


def authors_on_path(graph: Graph, call_id: str) -> dict[int, CompletionKey]:
    """Position in the call's context -> the completion that sampled the message there.

    Ancestors along the links whose text drifted stand at no position; those behind them still may.
    """
    path = graph.path(graph.prompt_node.get(call_id))
    authors: dict[int, CompletionKey] = {}
    seen = {call_id}
    parent = graph.links[call_id].parent
    while parent is not None and parent[0] not in seen:
        seen.add(parent[0])
        node = graph.completion_node.get(parent)
        if node is not None:
            last = graph.nodes[node].depth
            if last < len(path) and path[last].key == node:
                before = graph.prompt_node[parent[0]]
                first = 0 if before is None else graph.nodes[before].depth + 1
                authors.update((position, parent) for position in range(first, last + 1))
        # Of a call only a completion may have come: what it continues is not known yet.
        link = graph.links.get(parent[0])
        parent = None if link is None else link.parent
    return authors


def _messages(graph: Graph, call_id: str) -> list[Message]:
    """The messages of a call that is not pending."""
    chain = []
    call = graph.calls[call_id]
    while call.context == "delta":
        parent = graph.links[call.id].parent
        assert parent is not None, "a delta call without a parent is pending"
        chain.append((call, parent))
        call = graph.calls[parent[0]]
    messages = list(messages_of(call.request, call.dialect))
    for child, parent in reversed(chain):
        messages += answer_messages(graph.completions[parent].message, graph.calls[parent[0]].dialect)
        messages += messages_of(child.request, child.dialect)
    return messages
