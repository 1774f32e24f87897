"""One optimizer step: gradients summed over the planned micro-batches, checked, clipped, applied."""

# N targets

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tracestore.errors import TracestoreError
from tracestore.train.engine import Engine
from tracestore.train.forest import Pack
from tracestore.train.losses import LOSSES, Clip
from tracestore.train.plan import Step
from tracestore.train.sharding import full


class NonFiniteStep(TracestoreError):
    """A step has a loss or a gradient that is no finite number; the weights were left as they are."""


@dataclass(frozen=True)
class StepStats:
    """What the forward passes of a step saw."""

    loss: float
    """Sum of the token losses over the step's denominator."""
    ratio_mean: float | None
    """Mean importance ratio of the trained tokens; None without any."""
    ratio_max: float | None
    clip_fraction: float | None
    """Share of trained tokens whose gradient the clip cut."""
    max_logprob_diff: float | None
    """Largest |logprob now - recorded|, over trained tokens whose recorded logprob can be compared."""
    mean_logprob_diff: float | None
    """Mean of them."""


def gradients(
    engine: Engine,
    step: Step,
    *,
    loss: str,
    clip: Clip,
    on_micro_batch: Callable[[int], None] = lambda tokens: None,
) -> StepStats:
    """Adds the gradients of a step to the model's, summed, never averaged over micro-batches or ranks.

    Each rank computes its own micro-batches; what is returned, or raised, is of all of them.

    Args:
        on_micro_batch: told the tokens of each micro-batch when it is done.

    Raises:
        NonFiniteStep: the loss is no finite number. Gradients are then undefined.
    """
    token_loss = LOSSES[loss]
    seen = _Seen()
    for units in step.by_rank[engine.ranks.rank]:
        for pack, logprob_N in engine.passes(units):
            if not pack.units:
                (logprob_N.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
                continue
            result = token_loss(logprob_N, pack, clip=clip)
            part = result.loss_N.sum() / step.denominator
            seen.add(pack, logprob_N.detach(), float(part.detach()), result.ratio_N, result.is_clipped_N)
            part.backward()  # type: ignore[no-untyped-call]
        on_micro_batch(sum(one.num_tokens for one in units))
    of_all = _Seen.joined(engine.ranks.gathered(seen))
    # Only now: a rank that stopped on its own would leave the others waiting for its part of a layer.
    if not math.isfinite(of_all.loss):
        raise NonFiniteStep(
            loss=of_all.loss,
            max_logprob_diff=of_all.max_logprob_diff,
            hint="is this the model that sampled the tokens? see max_logprob_diff",
        )
    return of_all.stats()


def apply(engine: Engine, optimizer: torch.optim.Optimizer, *, grad_clip: float | None) -> float:
    """Clips the gradients to a norm and takes the optimizer's step; returns the norm before the clip.

    Raises:
        NonFiniteStep: the norm is no finite number; no weight was changed.
    """
    norm = grad_norm(engine.model)
    if not math.isfinite(norm):
        raise NonFiniteStep(grad_norm=norm, hint="lower the learning rate, or look at the batch's logprobs")
    if grad_clip is not None:
        torch.nn.utils.clip_grads_with_norm_(engine.model.parameters(), grad_clip, torch.tensor(norm))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def grad_norm(model: Any) -> float:
    """Euclidean norm of the gradient over all parameters; 0 for a model without one."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    return float(full(torch.nn.utils.get_total_norm(grads))) if grads else 0.0


class _Seen:
    """Sums over the passes of a step."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.targets = 0
        self.clipped = 0
        self.ratio_sum = 0.0
        self.ratio_max: float | None = None
        self.max_logprob_diff: float | None = None
        self.compared = 0
        self.diff_sum = 0.0

    def add(
        self, pack: Pack, logprob_N: torch.Tensor, loss: float, ratio_N: torch.Tensor, clipped_N: torch.Tensor
    ) -> None:
        self.loss += loss
        self.targets += len(ratio_N)
        self.clipped += int(clipped_N.sum())
        self.ratio_sum += float(ratio_N.double().sum())
        self.ratio_max = _larger(self.ratio_max, float(ratio_N.max()))
        diff_N = recorded_diff(pack, logprob_N)
        if len(diff_N):
            self.max_logprob_diff = _larger(self.max_logprob_diff, float(diff_N.max()))
            self.compared += len(diff_N)
            self.diff_sum += float(diff_N.sum())

    @classmethod
    def joined(cls, parts: Sequence[_Seen]) -> _Seen:
        """What all of them saw together."""
        whole = cls()
        for part in parts:
            whole.loss += part.loss
            whole.targets += part.targets
            whole.clipped += part.clipped
            whole.ratio_sum += part.ratio_sum
            whole.compared += part.compared
            whole.diff_sum += part.diff_sum
            if part.ratio_max is not None:
                whole.ratio_max = _larger(whole.ratio_max, part.ratio_max)
            if part.max_logprob_diff is not None:
                whole.max_logprob_diff = _larger(whole.max_logprob_diff, part.max_logprob_diff)
        return whole

    def stats(self) -> StepStats:
        some = self.targets > 0
        return StepStats(
            loss=self.loss,
            ratio_mean=self.ratio_sum / self.targets if some else None,
            ratio_max=self.ratio_max,
            clip_fraction=self.clipped / self.targets if some else None,
            max_logprob_diff=self.max_logprob_diff,
            mean_logprob_diff=self.diff_sum / self.compared if self.compared else None,
        )


def recorded_diff(pack: Pack, logprob_N: torch.Tensor) -> torch.Tensor:
    """float64, |logprob - recorded| of the targets of a pack that can be compared."""
    recorded_N, comparable_N = recorded_of(pack)
    return (logprob_N.double().cpu() - recorded_N).abs()[comparable_N]


def recorded_of(pack: Pack) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 [N] recorded logprobs of a pack's targets, and bool [N] whether a recomputed one compares."""
    recorded = [one.forest.logprob_T[one.targets.token_N] for one in pack.units]
    comparable = [one.forest.is_comparable_T[one.targets.token_N] for one in pack.units]
    recorded_N = torch.cat([torch.as_tensor(values) for values in recorded])
    comparable_N = torch.cat([torch.as_tensor(values) for values in comparable])
    return recorded_N, comparable_N & ~torch.isnan(recorded_N)


def _larger(a: float | None, b: Any) -> float:
    return float(b) if a is None or b > a else a
