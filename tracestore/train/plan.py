"""The groups of a step -> micro-batches, planned before the first forward pass of the step.

Credit is given on whole groups before anything is cut here. A micro-batch holds at most `micro_batch_tokens`
distinct tokens. A tree that fits stays whole; a larger one is cut into groups of neighbouring branches, each
with the prefix it needs computed again, and every target in exactly one of them. The denominator, all targets
of the step, is settled before the first backward pass: no packing or micro-batch size changes a gradient.

Ranks that train together all make the whole plan. Parts of trees go to ranks by cost, the dearest first, each
to the rank that has least to do; where one tree is more than a rank's share it is cut finer while that makes
the slowest rank faster. The weights of a layer are gathered by all ranks at once, so each has as many forward
passes as the others: those with fewer micro-batches get empty ones.
"""

# N targets, S segments of a row

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tracestore.errors import TracestoreError
from tracestore.train.forest import Forest, Targets, Unit, unit


class SampleTooLong(TracestoreError):
    """One sample alone has more tokens than a micro-batch may hold."""


MicroBatch: TypeAlias = tuple[Unit, ...]
"""What one forward pass computes; empty: a pass that adds nothing, made because other ranks make one."""


@dataclass(frozen=True)
class Step:
    """The work of one optimizer step; no micro-batches where there is nothing to train."""

    by_rank: tuple[tuple[MicroBatch, ...], ...]
    """The micro-batches of each rank, equally many."""
    denominator: int
    """What its losses are divided by: trained tokens of all ranks, zero-advantage ones too, unless it is set
    otherwise."""
    num_tokens: int
    """Tokens computed on all ranks; a prefix that a cut repeats counts each time."""

    @property
    def micro_batches(self) -> tuple[MicroBatch, ...]:
        """Those of all ranks that hold something."""
        return tuple(batch for batches in self.by_rank for batch in batches if batch)


@dataclass(frozen=True)
class Cost:
    """What a unit costs, in tokens that go through the layers' weights.

    cost = tokens + pair * (query, key) pairs on the tree + logit * targets

    The weights cost each token alike; attention costs a token as much as stands before it on its path; the
    output layer is computed where a target follows. Forward and backward pass keep these proportions.

    Example: pair .01; 3 tokens and two branches of 2 -> 7 + .01 * (6 + 2 * (3 * 2 + 3)) = 7.24
    """

    pair: float = 0.0
    """Of one query and one key against one token through the weights."""
    logit: float = 0.0
    """Of the logits of one position."""

    def __call__(self, one: Unit) -> float:
        before_U = one.forest.position_T[one.forest.row.segments.start[one.segment_U]]
        pairs = float((one.length_U * (before_U + (one.length_U + 1) / 2)).sum())
        return one.num_tokens + self.pair * pairs + self.logit * len(one.targets)


def _one_pass(units: Sequence[Unit]) -> list[MicroBatch]:
    return [tuple(units)]


@dataclass(frozen=True)
class Placing:
    """The ranks that share a step."""

    ranks: int = 1
    cost: Cost = Cost()
    passes: Callable[[Sequence[Unit]], list[MicroBatch]] = _one_pass
    """The forward passes that a micro-batch takes; every rank must be able to tell those of the others."""


HERE = Placing()
"""One process does it all."""
_EVEN = 1.05
"""A slowest rank that has this much more to do than its share is no reason to cut finer."""


def planned(
    work: Iterable[tuple[Forest, Targets]], *, micro_batch_tokens: int, placing: Placing = HERE
) -> Step:
    """The step that trains these targets. Forests without targets take no part.

    Raises:
        SampleTooLong: a path longer than a micro-batch.
    """
    work = list(work)

    def cut(max_tokens: int) -> list[Unit]:
        return [one for forest, targets in work for one in units(forest, targets, max_tokens=max_tokens)]

    if placing.ranks == 1:
        return step(cut(micro_batch_tokens), micro_batch_tokens=micro_batch_tokens)
    return _step(
        [
            [batch for one in packed(share, micro_batch_tokens) for batch in placing.passes(one)]
            for share in _shares(cut, micro_batch_tokens, placing)
        ]
    )


def step(units: Iterable[Unit], *, micro_batch_tokens: int) -> Step:
    """Units of one step in one process, cut to fit a micro-batch.

    Raises:
        SampleTooLong: a path longer than a micro-batch.
    """
    return _step([packed(units, micro_batch_tokens)])


def packed(units: Iterable[Unit], micro_batch_tokens: int) -> list[MicroBatch]:
    """Micro-batches of units, each unit cut to fit, each part put into the first one with room for it."""
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
    return [tuple(batch) for batch in batches]


def in_passes_of(step: Step, placing: Placing) -> Step:
    """The same units on the same ranks, in the forward passes that another model of these ranks takes."""
    by_rank = [
        [one for units in batches if units for one in placing.passes(units)] for batches in step.by_rank
    ]
    return replace(_step(by_rank), denominator=step.denominator)


def _step(by_rank: Sequence[Sequence[MicroBatch]]) -> Step:
    most = max(map(len, by_rank))
    parts = [one for batches in by_rank for batch in batches for one in batch]
    return Step(
        by_rank=tuple((*batches, *[()] * (most - len(batches))) for batches in by_rank),
        denominator=sum(len(one.targets) for one in parts),
        num_tokens=sum(one.num_tokens for one in parts),
    )


def _shares(cut: Callable[[int], list[Unit]], max_tokens: int, placing: Placing) -> list[list[Unit]]:
    """The units of each rank, cut to half as many tokens, and half again, while one has too much to do."""
    best = spread(cut(max_tokens), placing)
    slowest = _slowest(best, placing.cost)
    even = sum(placing.cost(one) for share in best for one in share) / placing.ranks
    while slowest > _EVEN * even and max_tokens > 1:
        max_tokens //= 2
        try:
            found = spread(cut(max_tokens), placing)
        except SampleTooLong:  # one path is the least that a unit can be
            break
        if _slowest(found, placing.cost) < slowest:
            best, slowest = found, _slowest(found, placing.cost)
    return best


def spread(units: Sequence[Unit], placing: Placing) -> list[list[Unit]]:
    """Units over ranks: the dearest first, each to the rank with the least cost so far; in order on each.

    Source: Graham, Bounds on multiprocessing timing anomalies (1969): at most 4/3 of the best there is.
    """
    costs = [placing.cost(one) for one in units]
    loads = [(0.0, rank) for rank in range(placing.ranks)]
    taken: list[list[int]] = [[] for _ in range(placing.ranks)]
    for index in sorted(range(len(units)), key=lambda i: -costs[i]):
        load, rank = heapq.heappop(loads)
        taken[rank].append(index)
        heapq.heappush(loads, (load + costs[index], rank))
    return [[units[index] for index in sorted(share)] for share in taken]


def _slowest(shares: Sequence[Sequence[Unit]], cost: Cost) -> float:
    return max(sum(map(cost, share)) for share in shares)


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
