"""Which completion each call continues: as named, else the only one that stands at the deepest place.

A call that sends its whole context says with it what it continues: the deepest message of the context
that some call sampled. Where several did (equal siblings), nothing but the caller can say which, and the
call is marked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from tracestore.graph.cycles import cycles
from tracestore.graph.model import CompletionKey, Link

_NOTHING = Link(parent=None, how="none", exact=False)


class LinkedCall(Protocol):
    """What linking reads of a call: a `wire.Call`, or a row of the store."""

    @property
    def id(self) -> str: ...
    @property
    def agent_id(self) -> str: ...
    @property
    def ordinal(self) -> int | None: ...
    @property
    def context(self) -> Literal["whole", "delta"]: ...
    @property
    def parent_call_id(self) -> str | None: ...
    @property
    def parent_completion(self) -> int | None: ...


class LinkedNode(Protocol):
    """What linking reads of a node: one of the graph, or the store's shorter one."""

    @property
    def parent(self) -> bytes | None: ...
    @property
    def depth(self) -> int: ...


def resolve_links(
    *,
    calls: Mapping[str, LinkedCall],
    completions: Iterable[CompletionKey],
    nodes: Mapping[bytes, LinkedNode],
    prompt_node: Mapping[str, bytes | None],
    completion_node: Mapping[CompletionKey, bytes],
) -> dict[str, Link]:
    """The link of every call, in the order of `calls`.

    Args:
        prompt_node: of the calls whose context is known; a call that is missing here is pending.
    """
    answers: dict[str, list[CompletionKey]] = defaultdict(list)
    for key in sorted(completions):
        answers[key[0]].append(key)
    standing: dict[bytes, list[CompletionKey]] = defaultdict(list)
    for key, node in completion_node.items():
        standing[node].append(key)
    links = {}
    for call in calls.values():
        if call.parent_call_id is not None:
            known = answers[call.parent_call_id]
            prompt = prompt_node.get(call.id)
            links[call.id] = named_parent(call, known, completion_node, nodes, prompt)
        else:
            links[call.id] = matched_parent(call, calls, nodes, prompt_node.get(call.id), standing)
    return _without_circles(links)


def named_parent(
    call: LinkedCall,
    answers: Sequence[CompletionKey],
    completion_node: Mapping[CompletionKey, bytes],
    nodes: Mapping[bytes, LinkedNode],
    prompt: bytes | None,
) -> Link:
    """The link of a call that names its parent call.

    Args:
        answers: the completions of the parent call that have come, by index.
        prompt: the call's own last context message, where it is known.
    """
    on_path = {
        key for key in answers if key in completion_node and _is_on(completion_node[key], prompt, nodes)
    }
    if call.parent_completion is not None:
        stated = (call.parent_call_id or "", call.parent_completion)
        # A completion that has not come cannot be continued yet, like a parent that has not.
        return Link(stated, "named", stated in on_path) if stated in answers else _NOTHING
    if len(answers) <= 1:
        return Link(answers[0], "named", answers[0] in on_path) if answers else _NOTHING
    if on_path:
        # One answer can begin another where answers are lists of items: the longer one is what was
        # continued.
        deepest = max(nodes[completion_node[key]].depth for key in on_path)
        return Link(min(k for k in on_path if nodes[completion_node[k]].depth == deepest), "inferred", True)
    places = {completion_node.get(key) for key in answers}
    if call.context == "delta" and len(places) == 1 and None not in places:
        return Link(answers[0], "inferred", False)
    return Link(None, "ambiguous", False)


def _is_on(node: bytes, prompt: bytes | None, nodes: Mapping[bytes, LinkedNode]) -> bool:
    depth = nodes[node].depth
    while prompt is not None and nodes[prompt].depth > depth:
        prompt = nodes[prompt].parent
    return prompt == node


def matched_parent(
    call: LinkedCall,
    calls: Mapping[str, LinkedCall],
    nodes: Mapping[bytes, LinkedNode],
    prompt: bytes | None,
    standing: Mapping[bytes, Sequence[CompletionKey]],
) -> Link:
    """The link of a call that names no parent, from what stands on the path of its context.

    Args:
        calls: the call of each completion in `standing`, at least.
        standing: node -> the completions that stand at it.
    """
    is_ambiguous = False
    for node in _up(prompt, nodes):
        found = [key for key in standing.get(node, ()) if _may_precede(calls[key[0]], call)]
        own = [key for key in found if calls[key[0]].agent_id == call.agent_id]
        found = own or found
        if len(found) == 1:
            return Link(found[0], "ambiguous" if is_ambiguous else "matched", True)
        is_ambiguous = is_ambiguous or bool(found)
    return Link(None, "ambiguous", False) if is_ambiguous else _NOTHING


def _may_precede(earlier: LinkedCall, call: LinkedCall) -> bool:
    """False for a later call of the same agent, which may well come to the same context again."""
    if earlier.agent_id != call.agent_id or earlier.ordinal is None or call.ordinal is None:
        return True
    return earlier.ordinal <= call.ordinal


def _up(node: bytes | None, nodes: Mapping[bytes, LinkedNode]) -> Iterator[bytes]:
    while node is not None:
        yield node
        node = nodes[node].parent


def _without_circles(links: dict[str, Link]) -> dict[str, Link]:
    """The links without those that were found by matching and go round in a circle with named ones.

    Only a parent named against the contexts can close one: matched links lead to ever shorter contexts.
    """
    parent_of = {call_id: link.parent[0] for call_id, link in links.items() if link.parent}
    for ring in cycles(parent_of):
        for call_id in ring:
            if links[call_id].how in ("matched", "ambiguous"):
                links[call_id] = _NOTHING
    return links
