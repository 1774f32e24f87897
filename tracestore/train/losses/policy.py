"""Losses of policy gradients with a ratio for each token: clipped, and not.

Both carry the positive and the negative advantages of a shared token apart, see `TokenCredit`.
"""

# N targets

from __future__ import annotations

import torch

from tracestore.train.forest import Pack
from tracestore.train.losses.base import Objective, TokenLoss, clipped_gain, ratio


def clipped(logprob_N: torch.Tensor, pack: Pack, objective: Objective) -> TokenLoss:
    """Clipped policy loss, with the positive and the negative advantages of a shared token kept apart.

    loss = -( A+ min(r, 1 + eps_high) + A- max(r, 1 - eps_low) ),  r = exp(logprob - old_logprob)

    For one sample this is -min(r A, clip(r) A). For a token that several samples share it is the mean of
    their losses, which a clip on the mean advantage is not: +1 and -1 cancel there, but not under the clip.

    Source: PPO, Schulman et al. (arXiv 1707.06347); asymmetric clip: DAPO (arXiv 2503.14476).

    Example: A+ = .5, A- = -.5, r = 1.5, eps .2/.28 -> -(.5 * 1.28 - .5 * 1.5) = .11
    """
    ratio_N, dtype = ratio(logprob_N, pack), logprob_N.dtype
    gain_N, over_N = clipped_gain(ratio_N, pack.plus_N.to(dtype), pack.minus_N.to(dtype), objective.bounds)
    return TokenLoss(loss_N=-gain_N, ratio_N=ratio_N.detach(), is_clipped_N=over_N)


def reinforce(logprob_N: torch.Tensor, pack: Pack, objective: Objective) -> TokenLoss:
    """Policy gradient with the importance ratio and no clip: loss = -(A+ + A-) r.

    Its gradient is -A r grad logprob; where old and new policy agree, plain REINFORCE.

    Source: Williams 1992.

    Example: A+ = .5, A- = -.25, r = 1.5 -> -.25 * 1.5 = -.375
    """
    ratio_N = ratio(logprob_N, pack)
    return TokenLoss(
        loss_N=-(pack.plus_N + pack.minus_N).to(logprob_N.dtype) * ratio_N,
        ratio_N=ratio_N.detach(),
        is_clipped_N=torch.zeros_like(ratio_N, dtype=torch.bool),
    )
