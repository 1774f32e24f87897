"""A critic learns what it should have said: squared error, with a clip on how far it may move.

    loss = 1/2 (V - R)^2
    clipped: 1/2 max( (V - R)^2, (V_old + clip(V - V_old, -eps, eps) - R)^2 )

R is the return that the credit rule names, V_old what the critic said when credit was given.

Source: PPO, Schulman et al. (arXiv 1707.06347); the clip is that of its code (OpenAI baselines, ppo2).

Worked: R 1, V_old 0, V .5: 1/2 * .25 = .125, gradient .5 - 1 = -.5. With eps .2 the moved value is .2:
1/2 * max(.25, .64) = .32, and no gradient, since it has moved far enough.

Known traps: in a step of one epoch V is V_old, and the clip cuts nothing."""

# N targets

from __future__ import annotations

import torch


def value_loss(
    value_N: torch.Tensor, old_value_N: torch.Tensor, return_N: torch.Tensor, *, clip: float | None
) -> torch.Tensor:
    """[N], see the module."""
    error_N = (value_N - return_N).square()
    if clip is not None:
        moved_N = old_value_N + (value_N - old_value_N).clamp(-clip, clip)
        error_N = torch.maximum(error_N, (moved_N - return_N).square())
    return 0.5 * error_N
