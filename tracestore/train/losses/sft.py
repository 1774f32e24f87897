"""Cross entropy on the trained tokens of an export of objective `sft`."""

# N targets

from __future__ import annotations

import torch

from tracestore.train.forest import Pack
from tracestore.train.losses.base import Objective, TokenLoss


def cross_entropy(logprob_N: torch.Tensor, pack: Pack, objective: Objective) -> TokenLoss:
    """loss = -w logprob, with w the token's weight: 1, or g / K under `tree_mean`.

    There is no ratio, no reward and no recorded logprob in it, so text that a template rendered trains too.
    Logprobs are at temperature 1, whatever the tokens were sampled at.

    Example: p = .25 and .5, w = 1, per token -> (log 4 + log 2) / 2 = 1.0397
    """
    return TokenLoss(loss_N=-pack.plus_N.to(logprob_N.dtype) * logprob_N, ratio_N=None, is_clipped_N=None)
