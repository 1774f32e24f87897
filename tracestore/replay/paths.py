"""Contexts and branches of recordings -> where two of them part: message, byte and token.

A path is what a call saw, or that and one answer to it, which is a branch up to there:

    c1:   s u a t            the context of c1
    c1/0: s u a t b          the branch that ends with its first answer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracestore.graph.branches import Branch, branches
from tracestore.graph.context import ContextMessage, answer_in_context, context
from tracestore.graph.match import match_hash
from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.runs import TokenArray
from tracestore.graph.tokens import completion_ids, prompt_ids
from tracestore.replay.differences import Difference, first_difference, shared


@dataclass(frozen=True)
class Path:
    """The messages of a context or a branch, in order."""

    messages: tuple[ContextMessage, ...]
    values: tuple[bytes, ...]
    """What each of them says, to compare (`graph.match.match_hash`)."""
    ids: TokenArray | None
    """int32 [T]; None where any of them were not recorded."""


@dataclass(frozen=True)
class Parting:
    """Where two paths stop being equal."""

    messages: int
    """That both begin with: the position of the first one that differs."""
    tokens: int | None
    """That both begin with; None where the ids of either are not known."""
    difference: Difference | None
    """In the message at `messages`; None where a path ends before it."""
    is_equal: bool
    """Whether both have the same messages, and where both have ids, these too."""


def context_path(graph: Graph, call_id: str) -> Path:
    """What a call saw.

    Raises:
        KeyError: no such call.
    """
    return _path(graph, context(graph, call_id), prompt_ids(graph, call_id))


def branch_path(graph: Graph, end: CompletionKey) -> Path:
    """What a call saw, and one answer to it.

    Raises:
        KeyError: no such call or completion.
    """
    read, sampled = prompt_ids(graph, end[0]), completion_ids(graph, end)
    ids = None if read is None or sampled is None else np.concatenate([read, sampled])
    return _path(graph, (*context(graph, end[0]), *answer_in_context(graph, end)), ids)


def parting(one: Path, other: Path) -> Parting:
    """Where two paths part."""
    messages = shared(one.values, other.values)
    difference = None
    if messages < len(one.messages) and messages < len(other.messages):
        values = (side.messages[messages].raw.value() for side in (one, other))
        difference = first_difference(*values)
    tokens = _shared_tokens(one.ids, other.ids)
    whole = {len(one.values), len(other.values), messages}
    same_ids = (
        tokens is None or one.ids is None or other.ids is None or len(one.ids) == len(other.ids) == tokens
    )
    return Parting(messages, tokens, difference, is_equal=len(whole) == 1 and same_ids)


@dataclass(frozen=True)
class Fork:
    """A fork beside its origin: the branches that have most in common, and what came after they parted."""

    origin_end: CompletionKey | None
    fork_end: CompletionKey | None
    """The answer with which the branch ends."""
    parting: Parting
    at_origin: ContextMessage | None
    at_fork: ContextMessage | None
    """The first message that differs; None where the branch has ended before it."""
    sampled_origin: int | None
    sampled_fork: int | None
    """Tokens that were sampled on the branch after it; None where the ids of an answer are not known."""


def forked(origin: Graph, fork: Graph) -> Fork | None:
    """Where a fork leaves its origin; None where one of them has no branch.

    Keys of nodes are hashes of paths, so the messages that a branch shares with any of the other episode are
    those whose keys are there too. Of several branches that share equally many messages and tokens, the one
    through the call that the fork names comes first, then the first by the id of its end.
    """
    mine = max(branches(fork), key=lambda one: _common(one, origin), default=None)
    if mine is None:
        return None
    start = _common(mine, origin)
    node = mine.nodes[start - 1] if start else None
    named = None if fork.episode is None else fork.episode.forked_from_call_id
    path = _of_branch(fork, mine)
    theirs = [
        (one, _of_branch(origin, one))
        for one in branches(origin)
        if node is None or node in one.nodes[:start]
    ]
    if not theirs:
        return None

    def likeness(pair: tuple[Branch, Path]) -> tuple[int, bool]:
        return _shared_tokens(pair[1].ids, path.ids) or 0, any(key[0] == named for key in pair[0].completions)

    branch, beside = max(theirs, key=likeness)
    found = parting(beside, path)
    at = found.messages
    return Fork(
        origin_end=branch.end,
        fork_end=mine.end,
        parting=found,
        at_origin=beside.messages[at] if at < len(beside.messages) else None,
        at_fork=path.messages[at] if at < len(path.messages) else None,
        sampled_origin=_sampled_from(origin, branch, at),
        sampled_fork=_sampled_from(fork, mine, at),
    )


def _common(branch: Branch, origin: Graph) -> int:
    """How many messages a branch begins with that the other episode has too, one after the other."""
    count = 0
    for node in branch.nodes:
        if node not in origin.nodes:
            break
        count += 1
    return count


def _of_branch(graph: Graph, branch: Branch) -> Path:
    return context_path(graph, branch.end_call_id) if branch.end is None else branch_path(graph, branch.end)


def _sampled_from(graph: Graph, branch: Branch, position: int) -> int | None:
    """Tokens of the answers of a branch that end at a position or after it."""
    after = [
        completion_ids(graph, key)
        for key in branch.completions
        if graph.nodes[graph.completion_node[key]].depth >= position
    ]
    known = [ids for ids in after if ids is not None]
    return sum(map(len, known)) if len(known) == len(after) else None


def _path(graph: Graph, messages: Sequence[ContextMessage], ids: TokenArray | None) -> Path:
    known = [None if one.node is None else graph.nodes[one.node].match_hash for one in messages]
    values = [
        match_hash(one.raw) if value is None else value for one, value in zip(messages, known, strict=True)
    ]
    return Path(tuple(messages), tuple(values), ids)


def _shared_tokens(one: TokenArray | None, other: TokenArray | None) -> int | None:
    if one is None or other is None:
        return None
    count = min(len(one), len(other))
    different = np.flatnonzero(one[:count] != other[:count])
    return int(different[0]) if len(different) else count
