"""Graph -> how many tokens the messages of a context took, as far as recorded ids tell.

    prompt of c1 = prompt of c0 (s u) ++ the ids sampled (a) ++ the rest (t)
    stretches      s u together         a alone                 t alone

A template writes more than messages: what it puts around one counts with it. Nothing is tokenised here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.tokens import TokenArray, completion_ids, prompt_ids


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring messages of a context, and the tokens of all of them together."""

    first: int
    """Position of the first one."""
    end: int
    """Position after the last one; `first` where a template wrote tokens after the last message."""
    tokens: int | None
    """None: unknown."""
    is_sampled: bool = False
    """Whether they are one answer: its ids are its own, whatever was read before it."""


def stretches(graph: Graph, call_id: str) -> tuple[Stretch, ...]:
    """The context of a call in pieces as short as recorded ids can tell apart, in order.

    Where the call's prompt ids are known, the pieces add up to them. Where they are not, only answers of
    recorded ids have a length. () for a pending call.

    Raises:
        KeyError: no such call.
    """
    if call_id in graph.pending:
        return ()
    chain = _chain(graph, call_id)
    start = chain[0][0]
    ids = prompt_ids(graph, start)
    found = _whole(_num_messages(graph, start), ids)
    for child, parent in chain[1:]:
        assert parent is not None, "only the first call of a chain continues nothing"
        before, ids = ids, prompt_ids(graph, child)
        found = _continued(graph, found, child, parent, before=before, ids=ids)
    return tuple(found)


def _chain(graph: Graph, call_id: str) -> list[tuple[str, CompletionKey | None]]:
    """The calls that a call continues message for message, the first one first, each with its parent."""
    chain: list[tuple[str, CompletionKey | None]] = []
    seen: set[str] = set()
    while True:
        seen.add(call_id)
        link = graph.links[call_id]
        parent = link.parent
        is_known = parent is not None and parent[0] in graph.links and parent in graph.completion_node
        if parent is None or not link.exact or not is_known or parent[0] in seen:
            return [*chain, (call_id, None)][::-1]
        chain.append((call_id, parent))
        call_id = parent[0]


def _continued(
    graph: Graph,
    found: Sequence[Stretch],
    child: str,
    parent: CompletionKey,
    *,
    before: TokenArray | None,
    ids: TokenArray | None,
) -> list[Stretch]:
    """The pieces of a call, from those of the call that it continues."""
    sampled = completion_ids(graph, parent)
    start, end = _num_messages(graph, parent[0]), graph.nodes[graph.completion_node[parent]].depth + 1
    count = _num_messages(graph, child)
    answer = Stretch(start, end, None if sampled is None else len(sampled), is_sampled=True)
    if ids is None:
        read = [one if one.is_sampled else replace(one, tokens=None) for one in found]
        return [*read, answer, *([Stretch(end, count, None)] if count > end else [])]
    if before is None or sampled is None or not _begins_with(ids, before, sampled):
        # Read as other ids than before: what each message takes of them nobody says.
        return _whole(count, ids)
    rest = len(ids) - len(before) - len(sampled)
    return [*found, answer, *([Stretch(end, count, rest)] if rest or count > end else [])]


def _begins_with(ids: TokenArray, before: TokenArray, sampled: TokenArray) -> bool:
    start, end = len(before), len(before) + len(sampled)
    return np.array_equal(ids[:start], before) and np.array_equal(ids[start:end], sampled)


def _whole(count: int, ids: TokenArray | None) -> list[Stretch]:
    if ids is None:
        return [Stretch(0, count, None)] if count else []
    return [Stretch(0, count, len(ids))]


def _num_messages(graph: Graph, call_id: str) -> int:
    last = graph.prompt_node[call_id]
    return 0 if last is None else graph.nodes[last].depth + 1
