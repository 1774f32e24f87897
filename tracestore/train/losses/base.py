"""What every loss is told and says."""

# N targets

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from tracestore.errors import TracestoreError
from tracestore.train.forest import Forest, Pack, Targets

Estimator = Literal["k1", "k3"]


class UnknownLoss(TracestoreError):
    """No loss has this name."""

    exit_code = 2


class MissingReference(TracestoreError):
    """A loss compares with a reference model, and there is none."""

    exit_code = 2


class UnsuitableLoss(TracestoreError):
    """This loss does not go with the other settings, or with this export."""

    exit_code = 2


@dataclass(frozen=True)
class Clip:
    """How far the importance ratio may move a token: `1 - eps_low` to `1 + eps_high`."""

    eps_low: float = 0.2
    eps_high: float = 0.28


SEQUENCE_CLIP = Clip(eps_low=3e-4, eps_high=4e-4)
"""What GSPO's paper clips the ratio of a sequence to: a mean over tokens moves far less than one token."""


@dataclass(frozen=True)
class Objective:
    """What a step minimises: a loss, and terms that are added for each of its targets."""

    loss: str = "clipped"
    """Name of a loss of `tracestore.train.losses.LOSSES`."""
    clip: Clip | None = None
    """None: `SEQUENCE_CLIP` for gspo, `Clip()` for the others."""
    kl_weight: float = 0.0
    """Weight of the KL divergence from the reference model; 0: no such term."""
    kl: Estimator = "k3"
    """How the divergence is estimated, see `tracestore.train.losses.terms`."""
    entropy_weight: float = 0.0
    """Weight of the entropy of the policy where it sampled a target, which is raised; 0: no such term."""
    beta: float = 0.1
    """dpo: how much a margin of log-ratios counts."""
    label_smoothing: float = 0.0
    """dpo: how often the preference is thought to be the wrong way round, 0 to .5."""

    @property
    def bounds(self) -> Clip:
        """The clip that holds."""
        if self.clip is not None:
            return self.clip
        return SEQUENCE_CLIP if self.loss == "gspo" else Clip()

    @property
    def needs_reference(self) -> bool:
        return self.loss == "dpo" or self.kl_weight != 0.0


@dataclass(frozen=True)
class TokenLoss:
    """What a loss says of each target."""

    loss_N: torch.Tensor
    """[N], to be weighed by `Pack.share_N`, summed over the step and divided by its denominator."""
    ratio_N: torch.Tensor | None
    """[N], pi / pi_old, detached; None for a loss without it."""
    is_clipped_N: torch.Tensor | None
    """bool [N], tokens whose gradient the clip has cut, at least for one sign of advantage."""


@dataclass(frozen=True)
class Scored:
    """A forest and what the model says of all its targets of the step, for a loss that couples them."""

    forest: Forest
    targets: Targets
    logprob_N: torch.Tensor
    """float64 [N]."""


@dataclass(frozen=True)
class CoupledLoss:
    """What a loss over whole samples says."""

    token: TokenLoss
    """float64, over the targets of a `Scored`. Its gradient by a logprob is of the sum of the losses, each
    weighed by its target's share."""
    margins: tuple[float, ...] = ()
    """dpo: of each pair, the log-ratio of the chosen suffix less that of the rejected one."""


def linear(logprob_N: torch.Tensor, pack: Pack, objective: Objective) -> TokenLoss:
    """A coupled loss around the logprobs at which it was taken: loss = value + slope (logprob - [logprob]).

    Its value and its gradient are those of the coupled loss, whichever passes the targets are in.
    """
    more, dtype = pack.more, logprob_N.dtype
    moved_N = logprob_N - logprob_N.detach()
    return TokenLoss(
        loss_N=more["value"].to(dtype) + more["slope"].to(dtype) * moved_N,
        ratio_N=more.get("ratio"),
        is_clipped_N=more["is_clipped"].bool() if "is_clipped" in more else None,
    )


def ratio(logprob_N: torch.Tensor, pack: Pack) -> torch.Tensor:
    """[N], pi / pi_old."""
    # Recorded logprobs may be float64; rounded to float32 before the difference, -20 would move by 1e-6.
    log_ratio_N = (logprob_N.double() - pack.old_logprob_N).to(logprob_N.dtype)
    return torch.exp(log_ratio_N)


def clipped_gain(
    ratio_N: torch.Tensor, plus_N: torch.Tensor, minus_N: torch.Tensor, clip: Clip
) -> tuple[torch.Tensor, torch.Tensor]:
    """[N], A+ min(r, 1 + eps_high) + A- max(r, 1 - eps_low); and bool [N], where the clip cut it."""
    low, high = 1.0 - clip.eps_low, 1.0 + clip.eps_high
    gain_N = plus_N * ratio_N.clamp(max=high) + minus_N * ratio_N.clamp(min=low)
    over_N = ((plus_N > 0) & (ratio_N > high)) | ((minus_N < 0) & (ratio_N < low))
    return gain_N, over_N.detach()
