"""Logprobs of the targets and the losses over them. Denominators are explicit and of the whole step."""

# P positions with logits, N targets, V vocabulary, D size of a hidden state

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tracestore.errors import TracestoreError
from tracestore.train.forest import Pack

_CHUNK = 256  # targets whose [N, V] distributions stand in memory at once


class UnknownLoss(TracestoreError):
    """No loss has this name."""

    exit_code = 2


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(logits / temperature) at the targets, without a [N, V] tensor in either pass."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_PV: torch.Tensor,
        which_N: torch.Tensor,
        target_N: torch.Tensor,
        temperature_N: torch.Tensor,
    ) -> torch.Tensor:
        wide = torch.float64 if logits_PV.dtype == torch.float64 else torch.float32
        logprob_N = torch.empty(len(target_N), dtype=wide, device=logits_PV.device)
        lse_N = torch.empty_like(logprob_N)
        for part in _parts(len(target_N)):
            scaled_NV = _scaled(logits_PV, which_N[part], temperature_N[part], wide)
            lse_N[part] = torch.logsumexp(scaled_NV, dim=-1)
            logprob_N[part] = scaled_NV.gather(-1, target_N[part, None])[:, 0] - lse_N[part]
        ctx.save_for_backward(logits_PV, which_N, target_N, temperature_N, lse_N)
        return logprob_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits_PV, which_N, target_N, temperature_N, lse_N = ctx.saved_tensors
        grad_PV = torch.zeros_like(logits_PV)
        for part in _parts(len(target_N)):
            grad = grad_N[part, None]
            scaled_NV = _scaled(logits_PV, which_N[part], temperature_N[part], lse_N.dtype)
            grad_NV = torch.exp_(scaled_NV.sub_(lse_N[part, None])).mul_(-grad)
            grad_NV.scatter_add_(-1, target_N[part, None], grad)
            grad_NV.div_(temperature_N[part, None].to(grad_NV.dtype))
            grad_PV.index_add_(0, which_N[part], grad_NV.to(grad_PV.dtype))
        return grad_PV, None, None, None


def _parts(length: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, length, _CHUNK)]


def _scaled(
    logits_PV: torch.Tensor, which_N: torch.Tensor, temperature_N: torch.Tensor, wide: torch.dtype
) -> torch.Tensor:
    return logits_PV[which_N].to(wide) / temperature_N[:, None].to(wide)


def token_logprobs(
    logits_PV: torch.Tensor, which_N: torch.Tensor, target_N: torch.Tensor, temperature_N: torch.Tensor
) -> torch.Tensor:
    """[N], log p(target | path before it) at the temperature the recorded logprob was taken at.

    float64 logits give float64, every narrower type is summed in float32. See `Pack` for the arguments.
    """
    logprob_N: torch.Tensor = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        logits_PV, which_N, target_N, temperature_N
    )
    return logprob_N


def logprobs_by_parts(
    head: Callable[[torch.Tensor], torch.Tensor], hidden_PD: torch.Tensor, pack: Pack, *, part: int
) -> torch.Tensor:
    """The same [N] from the last hidden states, with the logits of `part` positions in memory at once.

    The backward pass multiplies by the vocabulary again instead of keeping [P, V] logits.

    Args:
        head: hidden states [_, D] -> logits [_, V].
        hidden_PD: at `pack.logit_P`, in that order.
    """
    by_position_N = torch.argsort(pack.which_N, stable=True)
    starts = torch.arange(0, len(hidden_PD) + part, part, device=hidden_PD.device)
    bounds = torch.searchsorted(pack.which_N[by_position_N], starts).tolist()

    def of_part(hidden: torch.Tensor, first: int, chosen_N: torch.Tensor) -> torch.Tensor:
        which_N = pack.which_N[chosen_N] - first
        return token_logprobs(head(hidden), which_N, pack.target_N[chosen_N], pack.temperature_N[chosen_N])

    parts = [
        checkpoint(
            of_part,
            hidden_PD[first : first + part],
            first,
            by_position_N[low:high],
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for first, low, high in zip(starts.tolist()[:-1], bounds[:-1], bounds[1:], strict=True)
    ]
    return torch.cat(parts)[torch.argsort(by_position_N)]


@dataclass(frozen=True)
class Clip:
    """How far the importance ratio may move a token: `1 - eps_low` to `1 + eps_high`."""

    eps_low: float = 0.2
    eps_high: float = 0.28


@dataclass(frozen=True)
class TokenLoss:
    """What a loss says of each target."""

    loss_N: torch.Tensor
    """[N], to be summed over the step and divided by its denominator."""
    ratio_N: torch.Tensor
    """[N], pi / pi_old, detached."""
    is_clipped_N: torch.Tensor
    """bool [N], tokens whose gradient the clip has cut, at least for one sign of advantage."""


def clipped(logprob_N: torch.Tensor, pack: Pack, *, clip: Clip) -> TokenLoss:
    """Clipped policy loss, with the positive and the negative advantages of a shared token kept apart.

    loss = -( A+ min(r, 1 + eps_high) + A- max(r, 1 - eps_low) ),  r = exp(logprob - old_logprob)

    For one sample this is -min(r A, clip(r) A). For a token that several samples share it is the mean of
    their losses, which a clip on the mean advantage is not: +1 and -1 cancel there, but not under the clip.

    Source: PPO, Schulman et al. (arXiv 1707.06347); asymmetric clip: DAPO (arXiv 2503.14476).

    Example: A+ = .5, A- = -.5, r = 1.5, eps .2/.28 -> -(.5 * 1.28 - .5 * 1.5) = .11
    """
    ratio_N, plus_N, minus_N = _ratio(logprob_N, pack)
    low, high = 1.0 - clip.eps_low, 1.0 + clip.eps_high
    gain_N = plus_N * ratio_N.clamp(max=high) + minus_N * ratio_N.clamp(min=low)
    over_N = ((plus_N > 0) & (ratio_N > high)) | ((minus_N < 0) & (ratio_N < low))
    return TokenLoss(loss_N=-gain_N, ratio_N=ratio_N.detach(), is_clipped_N=over_N.detach())


def reinforce(logprob_N: torch.Tensor, pack: Pack, *, clip: Clip) -> TokenLoss:
    """Policy gradient with the importance ratio and no clip: loss = -(A+ + A-) r.

    Its gradient is -A r grad logprob; where old and new policy agree, plain REINFORCE.

    Source: Williams 1992.
    """
    ratio_N, plus_N, minus_N = _ratio(logprob_N, pack)
    return TokenLoss(
        loss_N=-(plus_N + minus_N) * ratio_N,
        ratio_N=ratio_N.detach(),
        is_clipped_N=torch.zeros_like(ratio_N, dtype=torch.bool),
    )


def _ratio(logprob_N: torch.Tensor, pack: Pack) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    dtype = logprob_N.dtype
    # Recorded logprobs may be float64; rounded to float32 before the difference, -20 would move by 1e-6.
    log_ratio_N = (logprob_N.double() - pack.old_logprob_N).to(dtype)
    return torch.exp(log_ratio_N), pack.plus_N.to(dtype), pack.minus_N.to(dtype)


LOSSES: Mapping[str, Callable[..., TokenLoss]] = {"clipped": clipped, "reinforce": reinforce}
"""What `--loss NAME` can name; each is called with `(logprob_N, pack, clip=...)`."""


def check_loss(name: str) -> None:
    """Raises UnknownLoss, naming those there are, unless `name` is one."""
    if name not in LOSSES:
        raise UnknownLoss(loss=name, hint=f"losses: {', '.join(sorted(LOSSES))}")
