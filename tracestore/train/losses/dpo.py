"""Of two candidates, the one that was selected is to become likelier than the other: DPO.

    m = beta * ( sum_chosen (logprob - reference) - sum_rejected (logprob - reference) )
    loss of a pair = -(1 - ls) log sigmoid(m) - ls log sigmoid(-m)

Sums are over the sampled tokens from the first one that differs: what both have in common cancels. The loss
of a step is the mean over its pairs. Logprobs are at temperature 1.

Source: DPO, Rafailov et al. (arXiv 2305.18290); sums from the first token that differs: MCTS-DPO (arXiv
2405.00451); label smoothing: cDPO, Mitchell 2023.

Worked: beta .5, log-ratios of the chosen suffix .3 + .1, of the rejected -.2 -> m = .5 * (.4 + .2) = .3;
loss -log sigmoid(.3) = .5544; with ls .1, .9 * .5544 + .1 * .8544 = .5844. Gradient to each chosen logprob:
.5 * (sigmoid(.3) - 1) = -.2128, to each rejected one +.2128.

Known traps: a set of one selected and three rejected members is three pairs, and the selected one's tokens
are in each of them. A pair can be cut over micro-batches, so its margin is taken in a forward pass of its
own before the first backward pass."""

# N targets, T tokens of a row

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from tracestore.shards.pairs import Pair, pairs
from tracestore.train.losses.base import CoupledLoss, Objective, Scored, TokenLoss


def dpo(scored: Scored, objective: Objective) -> CoupledLoss:
    """See the module. A token's loss is its part of its pairs', each spread evenly over the pair's tokens."""
    grown, targets = scored.forest, scored.targets
    place_T = torch.full((grown.num_tokens,), -1, dtype=torch.int64)
    place_T[targets.token_N] = torch.arange(len(targets))
    log_ratio_N = scored.logprob_N - torch.as_tensor(targets.more["reference"])
    loss_N = torch.zeros_like(log_ratio_N)
    margins = []
    for pair in pairs(grown.row, Counter()):
        chosen, rejected = (place_T[side] for side in suffixes(pair))
        margin = log_ratio_N[chosen].sum() - log_ratio_N[rejected].sum()
        margins.append(float(margin.detach()))
        loss = pair_loss(objective.beta * margin, objective.label_smoothing)
        both = torch.cat([chosen, rejected])
        loss_N = loss_N.index_add(0, both, (loss / len(both)).expand(len(both)))
    token = TokenLoss(loss_N=loss_N, ratio_N=torch.exp(log_ratio_N.detach()), is_clipped_N=None)
    return CoupledLoss(token, tuple(margins))


def pair_loss(margin: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    """The loss of a margin that beta has been multiplied into."""
    return -(1.0 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)


def suffixes(pair: Pair) -> tuple[np.ndarray, np.ndarray]:
    """int64 each, on the row's token axis: the trained tokens of the chosen and of the rejected suffix."""
    chosen, rejected = (
        side.sample.token_index[pair.shared : side.length][side.mask[pair.shared :]]
        for side in (pair.chosen, pair.rejected)
    )
    return chosen, rejected
