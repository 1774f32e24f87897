"""The groups of a step -> micro-batches, planned before the first forward pass of the step.

Credit is given on whole groups before anything is cut here. A micro-batch holds at most `micro_batch_tokens`
distinct tokens. A tree that fits stays whole; a larger one is cut into groups of neighbouring branches, each
with the prefix it needs computed again, and every target in exactly one of them. The denominator, all targets
of the step, is settled before the first backward pass: no packing or micro-batch size changes a gradient.
"""

# N targets, S segments of a row

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tracestore.errors import TracestoreError
from tracestore.train.forest import Forest, Targets, Unit, unit


class SampleTooLong(TracestoreError):
    """One sample alone has more tokens than a micro-batch may hold."""


@dataclass(frozen=True)
class Step:
    """The work of one optimizer step; no micro-batches where there is nothing to train."""

    micro_batches: tuple[tuple[Unit, ...], ...]
    denominator: int
    """What its losses are divided by: trained tokens, zero-advantage ones too, unless it is set otherwise."""
    num_tokens: int
    """Tokens computed; a prefix that a cut repeats counts each time."""


def planned(work: Iterable[tuple[Forest, Targets]], *, micro_batch_tokens: int) -> Step:
    """The step that trains these targets. Forests without targets take no part.

    Raises:
        SampleTooLong: a path longer than a micro-batch.
    """
    found = (units(forest, targets, max_tokens=micro_batch_tokens) for forest, targets in work)
    return step(itertools.chain.from_iterable(found), micro_batch_tokens=micro_batch_tokens)


def step(units: Iterable[Unit], *, micro_batch_tokens: int) -> Step:
    """Units of one step, cut to fit a micro-batch, each part put into the first one with room for it.

    Raises:
        SampleTooLong: a path longer than a micro-batch.
    """
    batches: list[list[Unit]] = []
    room: list[int] = []
    for whole in units:
        for one in _cut(whole, micro_batch_tokens):
            size = one.num_tokens
            place = next((i for i, left in enumerate(room) if left >= size), None)
            if place is None:
                place = len(batches)
                batches.append([])
                room.append(micro_batch_tokens)
            batches[place].append(one)
            room[place] -= size
    return Step(
        micro_batches=tuple(map(tuple, batches)),
        denominator=sum(len(one.targets) for batch in batches for one in batch),
        num_tokens=sum(one.num_tokens for batch in batches for one in batch),
    )


def units(forest: Forest, targets: Targets, *, max_tokens: int) -> Iterator[Unit]:
    """A forest's targets as units of at most `max_tokens` tokens, whole trees where they fit."""
    root_S = _roots(forest)
    root_N = root_S[forest.segment_T[forest.previous_T[targets.token_N]]]
    for root in np.unique(root_N):
        yield from _cut(unit(forest, targets.where(root_N == root)), max_tokens)


def chains(whole: Unit) -> Iterator[Unit]:
    """The same targets as single paths from a root: what a model that computes no trees is given.

    Every target is in the first path that holds it, so the sums of a loss stay the same.
    """
    return _split(whole, (path for path, _ in _paths(whole)))


def _cut(tree: Unit, max_tokens: int) -> Iterator[Unit]:
    """The unit itself when it fits, else groups of its branches that do."""
    if tree.num_tokens <= max_tokens:
        yield tree
    else:
        yield from _split(tree, _branch_groups(tree, max_tokens))


def _split(whole: Unit, groups: Iterable[Iterable[int]]) -> Iterator[Unit]:
    """One unit per group of segments; a target goes to the first group that holds its predecessor."""
    forest, targets = whole.forest, whole.targets
    at_N = forest.segment_T[forest.previous_T[targets.token_N]]
    is_free_S = np.ones(len(forest.row.segments), dtype=bool)
    for group in groups:
        is_own_S = np.zeros(len(is_free_S), dtype=bool)
        is_own_S[list(group)] = True
        yield unit(forest, targets.where((is_own_S & is_free_S)[at_N]))
        is_free_S &= ~is_own_S


def _branch_groups(tree: Unit, max_tokens: int) -> Iterator[set[int]]:
    """Neighbouring branches together while they fit: in depth-first order neighbours share the most."""
    length_of = dict(zip(tree.segment_U.tolist(), tree.length_U.tolist(), strict=True))
    held: set[int] = set()
    size = 0
    for path, path_tokens in _paths(tree):
        if path_tokens > max_tokens:
            raise SampleTooLong(
                group_id=tree.forest.row.group_id,
                tokens=path_tokens,
                max_tokens=max_tokens,
                hint="raise the limit, or export with a smaller longest sample",
            )
        more = sum(length_of[segment] for segment in path if segment not in held)
        if size + more > max_tokens:
            yield held
            held, size, more = set(), 0, path_tokens
        held.update(path)
        size += more
    yield held


def _paths(whole: Unit) -> Iterator[tuple[list[int], int]]:
    """Root-to-leaf paths of a unit in depth-first order, each with its number of tokens."""
    parent_S = whole.forest.row.segments.parent
    length_of = dict(zip(whole.segment_U.tolist(), whole.length_U.tolist(), strict=True))
    inner = set(parent_S[whole.segment_U].tolist())
    for leaf in length_of:
        if leaf in inner:
            continue
        path = [leaf]
        while parent_S[path[-1]] >= 0:
            path.append(int(parent_S[path[-1]]))
        yield path[::-1], sum(length_of[segment] for segment in path)


def _roots(forest: Forest) -> np.ndarray:
    """int64 [S], the root above each segment."""
    root_S = np.arange(len(forest.row.segments))
    for segment, parent in enumerate(forest.row.segments.parent.tolist()):
        if parent >= 0:
            root_S[segment] = root_S[parent]
    return root_S
