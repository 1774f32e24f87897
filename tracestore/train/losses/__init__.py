"""Logprobs of the targets -> the loss of each. One file a family; denominators are of the whole step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tracestore.train.forest import Pack
from tracestore.train.losses.base import CoupledLoss, Objective, Scored, TokenLoss, UnknownLoss, linear
from tracestore.train.losses.dpo import dpo
from tracestore.train.losses.gspo import gspo
from tracestore.train.losses.policy import clipped, reinforce
from tracestore.train.losses.sft import cross_entropy

TOKEN_LOSSES: Mapping[str, Callable[[torch.Tensor, Pack, Objective], TokenLoss]] = {
    "clipped": clipped,
    "reinforce": reinforce,
    "sft": cross_entropy,
}
"""Losses in which a token's gradient depends on that token alone."""
COUPLED_LOSSES: Mapping[str, Callable[[Scored, Objective], CoupledLoss]] = {"dpo": dpo, "gspo": gspo}
"""Losses in which it depends on others of its sample or its pair, which a cut may put into other passes."""
LOSSES = tuple(sorted((*TOKEN_LOSSES, *COUPLED_LOSSES)))
"""What `--loss NAME` can name."""
LOSS_OF_A_PASS = {**TOKEN_LOSSES, **dict.fromkeys(COUPLED_LOSSES, linear)}
"""What is computed of the targets of one forward pass."""
WITHOUT_CREDIT = ("dpo", "sft")
"""Losses that no reward takes part in."""


def check_loss(name: str) -> None:
    """Raises UnknownLoss, naming those there are, unless `name` is one."""
    if name not in LOSSES:
        raise UnknownLoss(loss=name, hint=f"losses: {', '.join(LOSSES)}")
