from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.train.rows import episodes_of_one_call, row
from tracestore.train.forest import Targets, forest
from tracestore.train.losses.base import SEQUENCE_CLIP, Clip, Objective, Scored
from tracestore.train.losses.gspo import gspo


def scored(log_ratios: list[float], plus: list[float], minus: list[float]) -> Scored:
    """Two samples of two tokens each, at these log-ratios."""
    grown = forest(episodes_of_one_call([1, 0]))
    logprob_N = torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64, requires_grad=True)
    old_N = logprob_N.detach().numpy() - np.array(log_ratios)
    return Scored(grown, Targets(np.arange(2, 6), np.array(plus), np.array(minus), old_N), logprob_N)


def test_the_ratio_of_a_sample_is_the_mean_of_its_tokens_log_ratios() -> None:
    given = scored([0.2, 0.0, -0.1, -0.3], [1, 1, 0, 0], [0, 0, -1, -1])
    found = gspo(given, Objective(loss="gspo", clip=Clip(0.3, 0.28))).token
    # exp((.2 + 0) / 2) = 1.1052, exp((-.1 - .3) / 2) = .8187
    up, down = math.exp(0.1), math.exp(-0.2)
    assert found.ratio_N is not None
    assert found.ratio_N.tolist() == pytest.approx([up, up, down, down])
    assert found.loss_N.tolist() == pytest.approx([-up, -up, down, down])
    found.loss_N.sum().backward()
    assert given.logprob_N.grad is not None
    assert given.logprob_N.grad.tolist() == pytest.approx([-up, -up, down, down])


def test_a_clip_cuts_a_whole_sample() -> None:
    # A ratio by token would be cut at the first alone: e^.2 = 1.2214 is above 1.1, e^0 is not.
    given = scored([0.2, 0.0, 0.0, 0.0], [1, 1, 0, 0], [0, 0, 0, 0])
    found = gspo(given, Objective(loss="gspo", clip=Clip(0.1, 0.1))).token
    assert found.loss_N[:2].tolist() == pytest.approx([-1.1, -1.1])
    assert found.is_clipped_N is not None
    assert found.is_clipped_N.tolist() == [True, True, False, False]
    found.loss_N.sum().backward()
    assert given.logprob_N.grad is not None
    assert given.logprob_N.grad.tolist() == [0.0] * 4


def test_the_paper_clips_a_sequence_far_closer_than_a_token() -> None:
    assert Objective(loss="gspo").bounds == SEQUENCE_CLIP == Clip(3e-4, 4e-4)
    assert Objective(loss="clipped").bounds == Clip(0.2, 0.28)
    assert Objective(loss="gspo", clip=Clip(0.1, 0.2)).bounds == Clip(0.1, 0.2)


def test_a_prefix_that_two_samples_share_counts_in_its_owners_ratio_alone() -> None:
    made = row(
        [(-1, [1], -1), (0, [2], 0), (1, [3], 1), (1, [4], 2)],
        [(0, [0, 1, 2], [0, 1]), (0, [0, 1, 3], [0, 2])],
        rewards=[1],
    )
    logprob_N = torch.zeros(3, dtype=torch.float64)
    targets = Targets(np.array([1, 2, 3]), np.ones(3), np.zeros(3), -np.array([0.4, 0.2, 0.1]))
    found = gspo(Scored(forest(made), targets, logprob_N), Objective(loss="gspo", clip=Clip(1, 1))).token
    # sample 0 owns the shared token and its own: (.4 + .2) / 2; sample 1 owns .1 alone
    assert found.ratio_N is not None
    assert found.ratio_N.log().tolist() == pytest.approx([0.3, 0.3, 0.1])
