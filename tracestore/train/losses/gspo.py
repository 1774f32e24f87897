"""A ratio for each sample in place of one for each token: GSPO.

    s_i = exp( mean over the tokens that sample i owns of (logprob - old_logprob) )
    loss_t = -( A+ min(s_it, 1 + eps_high) + A- max(s_it, 1 - eps_low) ),  s_it = [s_i] pi_t / [pi_t]

where [x] is x without a gradient, so that s_it has the value of s_i and the gradient s_i grad logprob_t.
Where all tokens of a sample have one advantage A, the mean of these losses is GSPO's -min(s A, clip(s) A),
in value, clip and gradient; where credit differs by token, it still does (the paper's GSPO-token).

Source: GSPO, Zheng et al. (arXiv 2507.18071), equations 7 and 13; clip 3e-4 / 4e-4 from its section 5.1.

Worked: two owned tokens, log-ratios .2 and 0 -> s = e^.1 = 1.1052. A = 1, eps_high .28: loss -1.1052 each,
and its gradient to each logprob is -1.1052, where a ratio by token has -e^.2 = -1.2214 and -1. With
eps_high .1 both tokens are cut: loss -1.1, gradient 0.

Known traps: the mean is over what a sample owns and trains: a prefix that an earlier sample owns counts in
that sample's ratio, not twice. Under `--denominator token` a long sample weighs more than a short one,
where the paper means over sequences (`--denominator sequence`). A sample can be cut over micro-batches, so
its ratio is taken in a forward pass of its own before the first backward pass."""

# N targets, M samples

from __future__ import annotations

import numpy as np
import torch

from tracestore.train.losses.base import CoupledLoss, Objective, Scored, TokenLoss, clipped_gain
from tracestore.train.losses.denominators import owners_of


def gspo(scored: Scored, objective: Objective) -> CoupledLoss:
    """See the module."""
    targets = scored.targets
    _, sample = np.unique(owners_of(scored.forest, targets), return_inverse=True)
    sample_N = torch.as_tensor(sample.reshape(-1))
    log_ratio_N = scored.logprob_N.detach() - torch.as_tensor(targets.old_logprob_N)
    tokens_M = torch.bincount(sample_N).to(torch.float64)
    mean_M = torch.zeros_like(tokens_M).index_add_(0, sample_N, log_ratio_N) / tokens_M
    ratio_N = torch.exp(mean_M[sample_N] + scored.logprob_N - scored.logprob_N.detach())
    gain_N, over_N = clipped_gain(
        ratio_N, torch.as_tensor(targets.plus_N), torch.as_tensor(targets.minus_N), objective.bounds
    )
    return CoupledLoss(TokenLoss(loss_N=-gain_N, ratio_N=ratio_N.detach(), is_clipped_N=over_N))
