from __future__ import annotations

import pytest
import torch

from tracestore.train.losses.value import value_loss


@pytest.mark.parametrize(
    ("clip", "loss", "slope"),
    [
        (None, 0.125, -0.5),  # .5 * (.5 - 1)^2
        (0.2, 0.32, 0.0),  # .5 * max(.25, (0 + .2 - 1)^2 = .64): it has moved far enough
        (0.6, 0.125, -0.5),
    ],
)
def test_a_value_is_drawn_to_its_return_as_far_as_the_clip_lets_it(
    clip: float | None, loss: float, slope: float
) -> None:
    value_N = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    zero_N, one_N = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    found_N = value_loss(value_N, zero_N, one_N, clip=clip)
    assert found_N.tolist() == pytest.approx([loss])
    found_N.sum().backward()
    assert value_N.grad is not None
    assert value_N.grad.tolist() == pytest.approx([slope])
