"""Logits -> logprobs of the targets and entropies before them, without a [N, V] tensor in either pass."""

# P positions with logits, N targets, V vocabulary, D size of a hidden state

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from tracestore.train.forest import Pack

_CHUNK = 256  # targets whose [N, V] distributions stand in memory at once


class _TokenLogprobs(torch.autograd.Function):
    """log softmax(logits / temperature) at the targets, and the entropy of each of these distributions.

    With z = logits / temperature and p = softmax(z):  d logprob / d z_v = [v = target] - p_v  and, of
    H = -sum_v p_v log p_v,  d H / d z_v = -p_v (log p_v + H).
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits_PV: torch.Tensor,
        which_N: torch.Tensor,
        target_N: torch.Tensor,
        temperature_N: torch.Tensor,
        wants_entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.float64 if logits_PV.dtype == torch.float64 else torch.float32
        logprob_N = torch.empty(len(target_N), dtype=wide, device=logits_PV.device)
        lse_N = torch.empty_like(logprob_N)
        entropy_N = torch.zeros_like(logprob_N)
        for part in _parts(len(target_N)):
            scaled_NV = _scaled(logits_PV, which_N[part], temperature_N[part], wide)
            lse_N[part] = torch.logsumexp(scaled_NV, dim=-1)
            logprob_N[part] = scaled_NV.gather(-1, target_N[part, None])[:, 0] - lse_N[part]
            if wants_entropy:
                # Not z - logsumexp(z): of the likeliest token that would round where log p is nearest to 0.
                log_p_NV = torch.log_softmax(scaled_NV, -1)
                # A token that a model rules out has log p = -inf and p = 0: it adds 0, not NaN.
                entropy_N[part] = -torch.exp(log_p_NV).mul_(log_p_NV).nan_to_num_(nan=0.0).sum(-1)
        ctx.save_for_backward(logits_PV, which_N, target_N, temperature_N, lse_N, entropy_N)
        ctx.wants_entropy = wants_entropy
        return logprob_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_N: torch.Tensor, grad_entropy_N: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None, None]:
        logits_PV, which_N, target_N, temperature_N, lse_N, entropy_N = ctx.saved_tensors
        grad_PV = torch.zeros_like(logits_PV)
        for part in _parts(len(target_N)):
            grad = grad_N[part, None]
            scaled_NV = _scaled(logits_PV, which_N[part], temperature_N[part], lse_N.dtype)
            if ctx.wants_entropy:
                log_p_NV = torch.log_softmax(scaled_NV, -1)
                p_NV = torch.exp(log_p_NV)
                weight_NV = log_p_NV.add_(entropy_N[part, None]).mul_(grad_entropy_N[part, None]).add_(grad)
                grad_NV = p_NV.mul_(weight_NV.neg_()).nan_to_num_(nan=0.0)
            else:
                grad_NV = torch.exp_(scaled_NV.sub_(lse_N[part, None])).mul_(-grad)
            grad_NV.scatter_add_(-1, target_N[part, None], grad)
            grad_NV.div_(temperature_N[part, None].to(grad_NV.dtype))
            grad_PV.index_add_(0, which_N[part], grad_NV.to(grad_PV.dtype))
        return grad_PV, None, None, None, None


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
    logprob_N, _ = _computed(logits_PV, which_N, target_N, temperature_N, wants_entropy=False)
    return logprob_N


def token_logprobs_and_entropies(
    logits_PV: torch.Tensor, which_N: torch.Tensor, target_N: torch.Tensor, temperature_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same, and [N], the entropy in nats of the distribution that each target was drawn from.

    It is exact, over the whole vocabulary, and its gradient is too.
    """
    return _computed(logits_PV, which_N, target_N, temperature_N, wants_entropy=True)


def _computed(
    logits_PV: torch.Tensor,
    which_N: torch.Tensor,
    target_N: torch.Tensor,
    temperature_N: torch.Tensor,
    *,
    wants_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    result: tuple[torch.Tensor, torch.Tensor] = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        logits_PV, which_N, target_N, temperature_N, wants_entropy
    )
    return result


Scores = tuple[torch.Tensor, ...]
"""Tensors [N]: logprobs, or logprobs and entropies."""


def by_parts(
    scores: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], Scores],
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden_PD: torch.Tensor,
    pack: Pack,
    *,
    part: int,
) -> Scores:
    """What `scores` gives of logits, from the last hidden states, `part` positions' logits in memory at once.

    The backward pass multiplies by the vocabulary again instead of keeping [P, V] logits.

    Args:
        scores: (logits_PV, which_N, target_N, temperature_N) -> tensors [N].
        head: hidden states [_, D] -> logits [_, V].
        hidden_PD: at `pack.logit_P`, in that order.
    """
    by_position_N = torch.argsort(pack.which_N, stable=True)
    starts = torch.arange(0, len(hidden_PD) + part, part, device=hidden_PD.device)
    bounds = torch.searchsorted(pack.which_N[by_position_N], starts).tolist()

    def of_part(hidden: torch.Tensor, first: int, chosen_N: torch.Tensor) -> Scores:
        which_N = pack.which_N[chosen_N] - first
        return scores(head(hidden), which_N, pack.target_N[chosen_N], pack.temperature_N[chosen_N])

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
    back_N = torch.argsort(by_position_N)
    return tuple(torch.cat(found)[back_N] for found in zip(*parts, strict=True))
