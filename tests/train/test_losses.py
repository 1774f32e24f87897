from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.train.rows import episodes_of_one_call, random_row
from tracestore.train.forest import Pack, Targets, forest, pack, recorded_targets, unit
from tracestore.train.losses import (
    Clip,
    UnknownLoss,
    check_loss,
    clipped,
    logprobs_by_parts,
    reinforce,
    token_logprobs,
)

CLIP = Clip(eps_low=0.2, eps_high=0.28)


def packed(ratios: list[float], plus: list[float], minus: list[float]) -> tuple[torch.Tensor, Pack]:
    """Logprobs of two tokens and a pack whose recorded ones are off by `ratios`."""
    grown = forest(episodes_of_one_call([1]))
    logprob_N = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    old_N = logprob_N.detach().numpy() - np.log(ratios)
    targets = Targets(np.array([2, 3]), np.array(plus), np.array(minus), old_N)
    return logprob_N, pack([unit(grown, targets)])


def test_the_clip_stops_a_gain_above_and_a_loss_below() -> None:
    logprob_N, some = packed([1.5, 0.5], [2.0, 0.0], [0.0, -2.0])
    found = clipped(logprob_N, some, clip=CLIP)
    # -(2 * min(1.5, 1.28)) = -2.56,  -(-2 * max(0.5, 0.8)) = 1.6
    assert found.loss_N.tolist() == pytest.approx([-2.56, 1.6])
    assert found.is_clipped_N.tolist() == [True, True]
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    assert logprob_N.grad.tolist() == [0.0, 0.0]


def test_the_clip_lets_a_wrong_direction_through() -> None:
    logprob_N, some = packed([0.5, 1.5], [2.0, 0.0], [0.0, -2.0])
    found = clipped(logprob_N, some, clip=CLIP)
    # -(2 * .5) = -1,  -(-2 * 1.5) = 3
    assert found.loss_N.tolist() == pytest.approx([-1.0, 3.0])
    assert not found.is_clipped_N.any()


def test_advantages_of_both_signs_do_not_cancel_under_the_clip() -> None:
    logprob_N, some = packed([1.5, 1.0], [0.5, 0.5], [-0.5, -0.5])
    found = clipped(logprob_N, some, clip=CLIP)
    # -(.5 * 1.28 - .5 * 1.5) = .11;  at ratio 1 they cancel: -(.5 - .5) = 0
    assert found.loss_N.tolist() == pytest.approx([0.11, 0.0])
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    # only the negative part moves: d/dlogp of .5 * r = .5 * 1.5; at ratio 1: -.5 + .5
    assert logprob_N.grad.tolist() == pytest.approx([0.75, 0.0])


def test_reinforce_is_the_mean_advantage_times_the_ratio() -> None:
    logprob_N, some = packed([1.5, 1.0], [0.5, 0.25], [-0.25, -1.0])
    found = reinforce(logprob_N, some, clip=CLIP)
    # -(.5 - .25) * 1.5 = -.375,  -(.25 - 1) * 1 = .75
    assert found.loss_N.tolist() == pytest.approx([-0.375, 0.75])
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    assert logprob_N.grad.tolist() == pytest.approx([-0.375, 0.75])


def test_an_unknown_loss_names_those_there_are() -> None:
    with pytest.raises(UnknownLoss, match="clipped, reinforce"):
        check_loss("ppo")


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_token_logprobs_and_their_gradient_are_those_of_log_softmax(dtype: torch.dtype, limit: float) -> None:
    torch.manual_seed(0)
    made = episodes_of_one_call(
        [1.0] * 300, call={3: {"logprobs_are": "processed", "temperature": 0.5}}
    )  # more targets than one chunk, and siblings that share their predecessor
    grown = forest(made)
    some = pack([unit(grown, recorded_targets(grown))])
    logits = torch.randn(len(some.logit_P), 320, dtype=dtype).mul_(3).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    found = token_logprobs(logits, some.which_N, some.target_N, some.temperature_N)
    scaled = wide[some.which_N] / some.temperature_N[:, None]
    expected = torch.log_softmax(scaled, -1).gather(-1, some.target_N[:, None])[:, 0]
    grad = torch.randn(len(found), dtype=torch.float64)
    found.backward(grad.to(found.dtype))
    expected.backward(grad)
    assert logits.grad is not None
    assert wide.grad is not None
    assert (found.double() - expected).abs().max() <= limit
    assert (logits.grad.double() - wide.grad).norm() <= limit * wide.grad.norm()


def test_logprobs_by_parts_and_their_gradients_are_those_of_all_logits_at_once() -> None:
    torch.manual_seed(0)
    for seed in range(6):
        grown = forest(random_row(seed, vocab=50))
        some = pack([unit(grown, recorded_targets(grown))])
        head = torch.nn.Linear(8, 50, dtype=torch.float64)
        hidden = torch.randn(len(some.logit_P), 8, dtype=torch.float64, requires_grad=True)
        grad = torch.randn(some.num_targets, dtype=torch.float64)
        whole = token_logprobs(head(hidden), some.which_N, some.target_N, some.temperature_N)
        wanted = torch.autograd.grad(whole, [hidden, *head.parameters()], grad)
        for part in (1, 3, 1000):
            found = logprobs_by_parts(head, hidden, some, part=part)
            torch.testing.assert_close(found, whole)
            for a, b in zip(
                torch.autograd.grad(found, [hidden, *head.parameters()], grad), wanted, strict=True
            ):
                torch.testing.assert_close(a, b)


def test_logprobs_of_bfloat16_logits_are_summed_in_float32() -> None:
    grown = forest(episodes_of_one_call([1]))
    some = pack([unit(grown, recorded_targets(grown))])
    logits = torch.zeros(len(some.logit_P), 1000, dtype=torch.bfloat16)
    found = token_logprobs(logits, some.which_N, some.target_N, some.temperature_N)
    assert found.tolist() == pytest.approx([-math.log(1000)] * 2, abs=1e-5)


def test_a_recorded_float64_logprob_is_not_rounded_before_the_difference() -> None:
    grown = forest(episodes_of_one_call([1]))
    old = -20.0 - 1e-7  # not a float32 number
    targets = Targets(np.array([2, 3]), np.ones(2), np.zeros(2), np.array([old, old]))
    some = replace(pack([unit(grown, targets)]))
    ratio = clipped(torch.tensor([old, old], dtype=torch.float64), some, clip=CLIP).ratio_N
    assert ratio.tolist() == [1.0, 1.0]
