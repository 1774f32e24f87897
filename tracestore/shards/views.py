"""Two ways to look at a row: as a forest that holds each token once, or as flat samples.

Law: the flattened ids of a sample are the recorded prompt ids ++ completion ids of its last completion.
Every trained token is owned by exactly one sample, the first that trains and whose chain holds its
completion. Ownership says who trains a token and `weights` how much it counts; neither decides credit.

    T tokens of the row, S segments, N tokens of one sample, M samples
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tracestore.errors import TracestoreError
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row, Sample, Segments

Ownership = Literal["train_once", "tree_mean"]
"""How much a token counts that several samples share: once, or as much as in the mean of these samples."""


class BrokenForest(TracestoreError):
    """The segments of a row are no depth-first forest."""


@dataclass(frozen=True, slots=True, eq=False)
class ForestView:
    """The row as a forest of segments, for a trainer that computes each token once."""

    segments: Segments
    segment_position: np.ndarray
    """int64 [S], tokens before the segment on its path."""
    position: np.ndarray
    """int32 [T], position of each token: tokens before it on its path."""
    segment_of: np.ndarray
    """int32 [T], the segment each token lies in."""
    owner: np.ndarray
    """int32 [S], the sample that owns the segment's trained tokens; -1 where nothing was sampled."""


@dataclass(frozen=True, slots=True, eq=False)
class FlatSample:
    """One sample as a plain row of tokens."""

    sample: Sample
    token_ids: np.ndarray
    """int32 [N]."""
    reason: np.ndarray
    """uint8 [N]."""
    mask: np.ndarray
    """bool [N], True where the token is trained and owned by this sample."""
    logprobs: np.ndarray | None
    """[N], 0 where `has_logprob` is False; None: the row has none."""
    has_logprob: np.ndarray
    """bool [N]."""
    completion: np.ndarray
    """int32 [N], index into `Row.completions`; -1 where not sampled."""
    token_index: np.ndarray
    """int64 [N], place of the token on the row's token axis."""

    @property
    def position(self) -> np.ndarray:
        """int32 [N]: a sample starts at a root, so position is the index."""
        return np.arange(len(self.token_ids), dtype=np.int32)


def check_forest(row: Row) -> None:
    """Raises BrokenForest unless segments tile the tokens depth-first, parents before children.

    Depth-first: the segments between a segment and its next sibling are all its descendants, so a segment's
    parent is the segment before it or one of that segment's ancestors.
    """
    segments, num_tokens = row.segments, len(row.token_ids)
    ends = segments.start + segments.length
    tiled = len(segments) == 0 or (
        segments.start[0] == 0 and ends[-1] == num_tokens and np.array_equal(segments.start[1:], ends[:-1])
    )
    if not tiled or (len(segments) == 0 and num_tokens) or bool((segments.length < 1).any()):
        raise BrokenForest(group_id=row.group_id, problem="segments do not tile the tokens")
    stack: list[int] = []
    for index, parent in enumerate(segments.parent.tolist()):
        while stack and stack[-1] != parent:
            stack.pop()
        if parent >= 0 and not stack:
            raise BrokenForest(group_id=row.group_id, segment=index, parent=parent, problem="not depth-first")
        stack.append(index)


def forest_view(row: Row) -> ForestView:
    """Positions and owners of a row. Raises BrokenForest when its segments are out of order."""
    check_forest(row)
    segments = row.segments
    starts = segment_positions(segments)
    segment_of = np.repeat(np.arange(len(segments), dtype=np.int32), segments.length)
    within = np.arange(len(row.token_ids), dtype=np.int64) - segments.start[segment_of]
    return ForestView(
        segments=segments,
        segment_position=starts,
        position=(starts[segment_of] + within).astype(np.int32),
        segment_of=segment_of,
        owner=owners(row),
    )


def segment_positions(segments: Segments) -> np.ndarray:
    """int64 [S]: the tokens before each segment on its path."""
    position = [0] * len(segments)
    lengths = segments.length.tolist()
    for index, parent in enumerate(segments.parent.tolist()):
        if parent >= 0:
            position[index] = position[parent] + lengths[parent]
    return np.asarray(position, dtype=np.int64)


def survivors(row: Row) -> np.ndarray:
    """bool [M]: the samples that train."""
    return np.asarray([sample.reason == Reason.TRAINED for sample in row.samples], dtype=bool)


def owners(row: Row, *, survives: np.ndarray | None = None) -> np.ndarray:
    """int32 [S]: the first sample that trains and holds the segment's completion in its chain; -1: none does.

    Args:
        survives: bool [M], where a loader has filtered further; None: `survivors`.
    """
    survives_M = survivors(row) if survives is None else survives
    first: dict[int, int] = {}
    for index in np.flatnonzero(survives_M).tolist():
        for completion in row.samples[index].completions:
            first.setdefault(completion, index)
    return np.asarray([first.get(c, -1) for c in row.segments.completion.tolist()], dtype=np.int32)


def weights(row: Row, ownership: Ownership, *, survives: np.ndarray | None = None) -> np.ndarray:
    """float64 [T]: how much each trained token counts; 0 for one that does not train, or that no sample owns.

    `train_once`: 1. `tree_mean`: g / K, with g the samples that train and whose chain holds the token, and K
    the samples of its tree, which are those that share a completion, directly or through others. So a tree
    weighs as much as the mean of its samples, each on its own; a sample that shares nothing is a tree of one.

    Source: Tree Training (arXiv 2511.00413), token weight g_t / K.

    Example: two samples share 2 tokens and have one of their own each: [2/2, 2/2, 1/2, 1/2]; the mean of two
    samples of three tokens, (1 + 1 + 1) / 2 + (1 + 1 + 1) / 2 = 3 = the sum of these.
    """
    survives_M = survivors(row) if survives is None else survives
    owner_T = np.repeat(owners(row, survives=survives_M), row.segments.length)
    trains_T = (row.reason == Reason.TRAINED) & (owner_T >= 0)
    if ownership == "train_once":
        once: np.ndarray = trains_T.astype(np.float64)
        return once
    share = _shares(row, survives_M)
    share_S = np.asarray([share.get(c, 0.0) for c in row.segments.completion.tolist()], dtype=np.float64)
    return np.where(trains_T, np.repeat(share_S, row.segments.length), 0.0)


def _shares(row: Row, survives_M: np.ndarray) -> dict[int, float]:
    """Completion -> the samples through it over the samples of its tree."""
    through: dict[int, list[int]] = {}
    for index in np.flatnonzero(survives_M).tolist():
        for completion in row.samples[index].completions:
            through.setdefault(completion, []).append(index)
    tree = list(range(len(row.samples)))

    def root(index: int) -> int:
        while tree[index] != index:
            tree[index] = tree[tree[index]]
            index = tree[index]
        return index

    for first, *others in through.values():
        for other in others:
            tree[root(other)] = root(first)
    size = Counter(root(index) for index in np.flatnonzero(survives_M).tolist())
    return {completion: len(own) / size[root(own[0])] for completion, own in through.items()}


def flattened(row: Row, index: int, *, owner: np.ndarray | None = None) -> FlatSample:
    """Sample `index` of a row as a plain row of tokens.

    Args:
        owner: `owners(row)`, when the caller already has it.
    """
    sample = row.samples[index]
    path = np.asarray(sample.segments, dtype=np.int64)
    owner_S = owners(row) if owner is None else owner
    lengths = row.segments.length[path]
    # Token indices of the path: each segment's start, counted up inside it.
    offsets = np.repeat(row.segments.start[path] - (np.cumsum(lengths) - lengths), lengths)
    token_index = np.arange(int(lengths.sum()), dtype=np.int64) + offsets
    reason = row.reason[token_index]
    owned = np.repeat(owner_S[path] == index, lengths)
    return FlatSample(
        sample=sample,
        token_ids=row.token_ids[token_index],
        reason=reason,
        mask=(reason == Reason.TRAINED) & owned,
        logprobs=None if row.logprobs is None else row.logprobs[token_index],
        has_logprob=row.has_logprob[token_index],
        completion=np.repeat(row.segments.completion[path], lengths),
        token_index=token_index,
    )


def flat_samples(row: Row) -> Iterator[FlatSample]:
    """Every sample of a row, flattened, in order."""
    owner_S = owners(row)
    for index in range(len(row.samples)):
        yield flattened(row, index, owner=owner_S)
