from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.train.rows import episodes_of_one_call
from tracestore.train.forest import Pack, Targets, forest, pack, unit
from tracestore.train.losses import LOSSES, check_loss
from tracestore.train.losses.base import Clip, Objective, UnknownLoss
from tracestore.train.losses.policy import clipped, reinforce

CLIP = Objective(clip=Clip(eps_low=0.2, eps_high=0.28))


def packed(ratios: list[float], plus: list[float], minus: list[float]) -> tuple[torch.Tensor, Pack]:
    """Logprobs of two tokens and a pack whose recorded ones are off by `ratios`."""
    grown = forest(episodes_of_one_call([1]))
    logprob_N = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    old_N = logprob_N.detach().numpy() - np.log(ratios)
    targets = Targets(np.array([2, 3]), np.array(plus), np.array(minus), old_N)
    return logprob_N, pack([unit(grown, targets)])


def test_the_clip_stops_a_gain_above_and_a_loss_below() -> None:
    logprob_N, some = packed([1.5, 0.5], [2.0, 0.0], [0.0, -2.0])
    found = clipped(logprob_N, some, CLIP)
    # -(2 * min(1.5, 1.28)) = -2.56,  -(-2 * max(0.5, 0.8)) = 1.6
    assert found.loss_N.tolist() == pytest.approx([-2.56, 1.6])
    assert found.is_clipped_N.tolist() == [True, True]
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    assert logprob_N.grad.tolist() == [0.0, 0.0]


def test_the_clip_lets_a_wrong_direction_through() -> None:
    logprob_N, some = packed([0.5, 1.5], [2.0, 0.0], [0.0, -2.0])
    found = clipped(logprob_N, some, CLIP)
    # -(2 * .5) = -1,  -(-2 * 1.5) = 3
    assert found.loss_N.tolist() == pytest.approx([-1.0, 3.0])
    assert not found.is_clipped_N.any()


def test_advantages_of_both_signs_do_not_cancel_under_the_clip() -> None:
    logprob_N, some = packed([1.5, 1.0], [0.5, 0.5], [-0.5, -0.5])
    found = clipped(logprob_N, some, CLIP)
    # -(.5 * 1.28 - .5 * 1.5) = .11;  at ratio 1 they cancel: -(.5 - .5) = 0
    assert found.loss_N.tolist() == pytest.approx([0.11, 0.0])
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    # only the negative part moves: d/dlogp of .5 * r = .5 * 1.5; at ratio 1: -.5 + .5
    assert logprob_N.grad.tolist() == pytest.approx([0.75, 0.0])


def test_reinforce_is_the_mean_advantage_times_the_ratio() -> None:
    logprob_N, some = packed([1.5, 1.0], [0.5, 0.25], [-0.25, -1.0])
    found = reinforce(logprob_N, some, CLIP)
    # -(.5 - .25) * 1.5 = -.375,  -(.25 - 1) * 1 = .75
    assert found.loss_N.tolist() == pytest.approx([-0.375, 0.75])
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    assert logprob_N.grad.tolist() == pytest.approx([-0.375, 0.75])


def test_an_unknown_loss_names_those_there_are() -> None:
    with pytest.raises(UnknownLoss, match=", ".join(LOSSES)):
        check_loss("ppo")


def test_a_recorded_float64_logprob_is_not_rounded_before_the_difference() -> None:
    grown = forest(episodes_of_one_call([1]))
    old = -20.0 - 1e-7  # not a float32 number
    targets = Targets(np.array([2, 3]), np.ones(2), np.zeros(2), np.array([old, old]))
    some = pack([unit(grown, targets)])
    ratio = clipped(torch.tensor([old, old], dtype=torch.float64), some, CLIP).ratio_N
    assert ratio.tolist() == [1.0, 1.0]
