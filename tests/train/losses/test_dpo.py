from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.train.rows import candidates, row
from tracestore.shards.pairs import pairs
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.train.forest import Targets, forest
from tracestore.train.losses.base import Objective, Scored
from tracestore.train.losses.dpo import dpo, suffixes


def pair(chosen: list[int], rejected: list[int]) -> Row:
    return row(
        [(-1, [1, 2], -1), (0, chosen, 0), (0, rejected, 1)],
        [(0, [0, 1], [0]), (0, [0, 2], [1])],
        candidate_sets=[candidates("pairs", [0.9, 0.1])],
    )


def scored(made: Row, tokens: list[int], log_ratios: list[float]) -> Scored:
    reference_N = np.linspace(-2.0, -1.0, len(tokens))
    logprob_N = torch.tensor(reference_N + log_ratios, requires_grad=True)
    zero_N = np.zeros(len(tokens))
    targets = Targets(np.array(tokens), zero_N, zero_N, zero_N, {"reference": reference_N})
    return Scored(forest(made), targets, logprob_N)


@pytest.mark.parametrize(
    ("smoothing", "loss", "slope"),
    [
        # m = .5 * (.3 + .1 + .2) = .3; -log sigmoid(.3) = .55436;  .5 * (sigmoid(.3) - 1) = -.21278
        (0.0, 0.554355, -0.212779),
        # .9 * .554355 + .1 * .854355 = .584355;  .5 * (sigmoid(.3) - 1 + .1) = -.162779
        (0.1, 0.584355, -0.162779),
    ],
)
def test_a_margin_of_log_ratios_from_the_first_token_that_differs(
    smoothing: float, loss: float, slope: float
) -> None:
    # Both begin with 3: it is no part of the margin, and no target.
    made = pair([3, 4, 5], [3, 6])
    given = scored(made, [3, 4, 6], [0.3, 0.1, -0.2])
    found = dpo(given, Objective(loss="dpo", beta=0.5, label_smoothing=smoothing))
    assert found.margins == pytest.approx((0.6,))
    assert float(found.token.loss_N.sum().detach()) == pytest.approx(loss, abs=1e-6)
    found.token.loss_N.sum().backward()
    assert given.logprob_N.grad is not None
    assert given.logprob_N.grad.tolist() == pytest.approx([slope, slope, -slope], abs=1e-6)


def test_a_selected_member_is_in_a_pair_with_every_other() -> None:
    made = row(
        [(-1, [1], -1), (0, [2], 0), (0, [3], 1), (0, [4], 2)],
        [(0, [0, 1], [0]), (0, [0, 2], [1]), (0, [0, 3], [2])],
        candidate_sets=[candidates("pairs", [0.9, 0.1, 0.2])],
    )
    given = scored(made, [1, 2, 3], [0.0, 0.0, 0.0])
    found = dpo(given, Objective(loss="dpo", beta=1.0))
    assert found.margins == (0.0, 0.0)
    found.token.loss_N.sum().backward()
    assert given.logprob_N.grad is not None
    # sigmoid(0) - 1 = -.5 in each pair
    assert given.logprob_N.grad.tolist() == pytest.approx([-1.0, 0.5, 0.5])


def test_members_of_which_one_begins_the_other_share_a_token_less() -> None:
    [found] = pairs(pair([3, 4], [3, 4, 5]), Counter())
    assert [part.tolist() for part in suffixes(found)] == [[3], [5, 6]]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (pair([3, 4], [3, 4]), "pairs_of_equal_tokens"),
        (
            replace(pair([3, 4], [3, 5]), candidate_sets=(candidates("pairs", [1, 0], selected=None),)),
            "sets_without_a_choice",
        ),
        (
            replace(pair([3, 4], [3, 5]), reason=np.full(6, Reason.STALE, dtype=np.uint8)),
            "pairs_that_do_not_train",
        ),
        (
            replace(pair([3, 4], [3, 5]), samples=pair([3, 4], [3, 5]).samples[:1]),
            "pairs_of_no_single_sample",
        ),
    ],
)
def test_what_is_no_pair_is_counted(made: Row, why: str) -> None:
    left_out: Counter[str] = Counter()
    assert list(pairs(made, left_out)) == []
    assert left_out == {why: 1}


def test_the_sets_of_another_part_are_not_counted_twice() -> None:
    made = replace(pair([3, 4], [3, 5]), num_parts=2, samples=())
    left_out: Counter[str] = Counter()
    assert list(pairs(made, left_out)) == []
    assert not left_out
