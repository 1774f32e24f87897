from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shards.rows import tiny_row
from tracestore.shards import row as rows
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row, Segments
from tracestore.shards.views import (
    BrokenForest,
    check_forest,
    flat_samples,
    flattened,
    forest_view,
    owners,
    survivors,
    weights,
)


def test_positions_count_the_tokens_before_on_the_path() -> None:
    view = forest_view(tiny_row())
    #                            7  8  1  2  9  4 | 1  3
    assert view.position.tolist() == [0, 1, 2, 3, 4, 5, 2, 3]
    assert view.segment_position.tolist() == [0, 2, 4, 5, 2]
    assert view.segment_of.tolist() == [0, 0, 1, 1, 2, 3, 4, 4]


def test_a_flattened_sample_is_its_path_of_tokens() -> None:
    row = tiny_row()
    first, second = flat_samples(row)
    assert first.token_ids.tolist() == [7, 8, 1, 2, 9, 4]
    assert first.mask.tolist() == [False, False, True, True, False, True]
    assert first.completion.tolist() == [-1, -1, 0, 0, -1, 2]
    assert first.position.tolist() == [0, 1, 2, 3, 4, 5]
    assert first.token_index.tolist() == [0, 1, 2, 3, 4, 5]
    assert second.token_ids.tolist() == [7, 8, 1, 3]
    assert second.token_index.tolist() == [0, 1, 6, 7]
    assert second.logprobs is not None
    assert second.logprobs.tolist() == [0, 0, -0.5, -0.5]
    assert second.has_logprob.tolist() == [False, False, True, True]


def test_a_shared_sampled_segment_is_owned_by_its_first_sample_alone() -> None:
    # 0 sampled [1 2] by completion 0; two samples continue it.
    row = tiny_row()
    fork = tiny_row(
        segments=Segments(
            parent=np.asarray([-1, 0, 1, 1], np.int32),
            start=np.asarray([0, 2, 4, 6], np.int64),
            length=np.asarray([2, 2, 2, 2], np.int32),
            completion=np.asarray([-1, 0, 2, 1], np.int32),
        ),
        samples=(
            row.samples[0].__class__("a", 0, 0, (0, 1, 2), (0, 2), "root", 6, 4),
            row.samples[0].__class__("b", 0, 0, (0, 1, 3), (0, 1), "fork", 6, 2),
        ),
        reason=np.asarray([1, 1, 0, 0, 0, 0, 0, 0], np.uint8),
    )
    assert owners(fork).tolist() == [-1, 0, 0, 1]
    assert flattened(fork, 0).mask.tolist() == [False, False, True, True, True, True]
    assert flattened(fork, 1).mask.tolist() == [False, False, False, False, True, True]


def test_a_segment_on_the_path_that_is_not_in_the_chain_is_context() -> None:
    row = tiny_row()
    other = row.samples[0].__class__("c1:0", 0, 0, (0, 1, 2, 3), (2,), "subagent_root", 6, 1)
    assert owners(tiny_row(samples=(other,))).tolist() == [-1, -1, -1, 0, -1]
    flat = flattened(tiny_row(samples=(other,)), 0)
    assert flat.mask.tolist() == [False] * 5 + [True]


def segments(parent: list[int], length: list[int]) -> Segments:
    lengths = np.asarray(length, np.int32)
    start = np.cumsum(lengths) - lengths
    none = np.full(len(parent), -1, np.int32)
    return Segments(np.asarray(parent, np.int32), start.astype(np.int64), lengths, none)


def test_depth_first_forests_pass() -> None:
    check_forest(tiny_row(segments=segments([-1, 0, 1, 0, -1, 4], [1, 1, 1, 1, 3, 1])))


@pytest.mark.parametrize(
    ("parent", "length"),
    [
        ([-1, 0, 0, 1], [2, 2, 2, 2]),  # 1 was left for its sibling 2, and comes back
        ([-1, -1, 0], [2, 2, 4]),  # the first tree again after the second began
        ([-1, 2, 0], [2, 2, 4]),  # a parent after its child
        ([-1, 0], [2, 2]),  # four tokens in no segment
        ([-1, 0], [8, 0]),  # an empty segment
    ],
)
def test_segments_out_of_depth_first_order_are_an_error(parent: list[int], length: list[int]) -> None:
    with pytest.raises(BrokenForest):
        check_forest(tiny_row(segments=segments(parent, length)))


def test_a_sample_that_does_not_train_leaves_what_it_shares_to_the_next() -> None:
    # tiny_row's first sample is c1:0 over completions 0 and 2, its second c0:1 over completion 1.
    first, second = tiny_row().samples
    shared = replace(second, completions=(0, 1))
    row = tiny_row(samples=(replace(first, reason=int(Reason.TOO_LONG)), shared))
    assert owners(row).tolist() == [-1, 1, -1, -1, 1]
    assert survivors(row).tolist() == [False, True]
    # What a loader filters further counts the same way: completion 2 has no sample left.
    assert owners(row, survives=np.asarray([True, False])).tolist() == [-1, 0, -1, 0, -1]


def forked() -> Row:
    """Prompt, a sampled prefix of two tokens, two sampled tokens behind it, one of an agent of its own."""
    #   [7] - [1 2] - [3]        samples (prefix, 3), (prefix, 4) and (5)
    #               - [4]
    #       - [5]
    segments = Segments(
        parent=np.asarray([-1, 0, 1, 1, 0], np.int32),
        start=np.asarray([0, 1, 3, 4, 5], np.int64),
        length=np.asarray([1, 2, 1, 1, 1], np.int32),
        completion=np.asarray([-1, 0, 1, 2, 3], np.int32),
    )
    return tiny_row(
        token_ids=np.asarray([7, 1, 2, 3, 4, 5], np.int32),
        reason=np.asarray([1, 0, 0, 0, 0, 0], np.uint8),
        logprobs=None,
        has_logprob=np.zeros(6, dtype=bool),
        segments=segments,
        samples=(
            rows.Sample("a", 0, 0, (0, 1, 2), (0, 1), "root", 4, 3),
            rows.Sample("b", 0, 0, (0, 1, 3), (0, 2), "fork", 4, 1),
            rows.Sample("c", 0, 0, (0, 4), (3,), "subagent_root", 2, 1),
        ),
    )


def test_a_tree_weighs_as_much_as_the_mean_of_its_samples() -> None:
    row = forked()
    assert weights(row, "train_once").tolist() == [0, 1, 1, 1, 1, 1]
    # g / K of the tree of a and b: 2/2 for the prefix, 1/2 for each leaf. c shares nothing: 1/1.
    assert weights(row, "tree_mean").tolist() == [0, 1, 1, 0.5, 0.5, 1]
    # Without b: a is alone in its tree, and the token of b has no sample.
    without = weights(row, "tree_mean", survives=np.asarray([True, False, True]))
    assert without.tolist() == [0, 1, 1, 1, 0, 1]


@given(st.lists(st.floats(-2, 2), min_size=6, max_size=6))
def test_the_weighted_sum_is_the_sum_over_trees_of_the_mean_over_samples(values: list[float]) -> None:
    loss_T = np.asarray(values)
    row = forked()
    of_sample = [loss_T[flat.token_index[flat.completion >= 0]].sum() for flat in flat_samples(row)]
    expected = (of_sample[0] + of_sample[1]) / 2 + of_sample[2] / 1
    assert (weights(row, "tree_mean") * loss_T).sum() == pytest.approx(expected)
