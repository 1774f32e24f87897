"""One optimizer step: gradients summed over the planned micro-batches, checked, clipped, applied."""

# N targets

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from tracestore.errors import TracestoreError
from tracestore.train.engine import Engine
from tracestore.train.forest import Pack, Unit
from tracestore.train.losses import LOSS_OF_A_PASS
from tracestore.train.losses.base import Objective, TokenLoss
from tracestore.train.losses.terms import divergence
from tracestore.train.plan import Step
from tracestore.train.sharding import full


class NonFiniteStep(TracestoreError):
    """A step has a loss or a gradient that is no finite number; the weights were left as they are."""


@dataclass(frozen=True)
class StepStats:
    """What the forward passes of a step saw."""

    loss: float | None
    """Sum of token losses and of the terms beside them, over the step's denominator; None: nobody looked."""
    ratio_mean: float | None
    """Mean importance ratio of the trained tokens; None without any."""
    ratio_max: float | None
    clip_fraction: float | None
    """Share of trained tokens whose gradient the clip cut."""
    kl: float | None
    """Mean estimate of the divergence from the reference model; None without that term."""
    entropy: float | None
    """Mean entropy where a target was drawn; None without that term."""
    max_logprob_diff: float | None
    """Largest |logprob now - recorded|, over trained tokens whose recorded logprob can be compared."""
    mean_logprob_diff: float | None
    """Mean of them."""


NOTHING_SEEN = StepStats(**dict.fromkeys((field.name for field in fields(StepStats)), None))
"""Of a step in which the policy was not computed."""


def gradients(
    engine: Engine,
    step: Step,
    *,
    objective: Objective,
    on_micro_batch: Callable[[int], None] = lambda tokens: None,
) -> StepStats:
    """Adds the gradients of a step to the model's, summed, never averaged over micro-batches or ranks.

    Each rank computes its own micro-batches; what is returned, or raised, is of all of them.

    Args:
        objective: its targets are `ready` (see `tracestore.train.couple`).
        on_micro_batch: told the tokens of each micro-batch when it is done.

    Raises:
        NonFiniteStep: the loss is no finite number. Gradients are then undefined.
    """
    seen = _Seen()
    for units in step.by_rank[engine.ranks.rank]:
        for pack, logprob_N, entropy_N in _passes(engine, units, objective):
            if not pack.units:
                (logprob_N.sum() * 0.0).backward()  # type: ignore[no-untyped-call]
                continue
            result = LOSS_OF_A_PASS[objective.loss](logprob_N, pack, objective)
            loss_N = result.loss_N + _terms(logprob_N, entropy_N, pack, objective, seen)
            part = (loss_N * pack.share_N.to(loss_N.dtype)).sum() / step.denominator
            seen.add(pack, logprob_N.detach(), float(part.detach()), result)
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


def _passes(
    engine: Engine, units: Sequence[Unit], objective: Objective
) -> Iterator[tuple[Pack, torch.Tensor, torch.Tensor | None]]:
    if not objective.entropy_weight:
        for pack, logprob_N in engine.passes(units):
            yield pack, logprob_N, None
        return
    for pack, (logprob_N, entropy_N) in engine.passes_with_entropy(units):
        yield pack, logprob_N, entropy_N


def _terms(
    logprob_N: torch.Tensor,
    entropy_N: torch.Tensor | None,
    pack: Pack,
    objective: Objective,
    seen: _Seen,
) -> torch.Tensor:
    """[N], what is added to the loss of each target."""
    term_N = torch.zeros_like(logprob_N)
    if objective.kl_weight:
        kl_N, with_gradient_N = divergence(logprob_N, pack.more["reference"], estimator=objective.kl)
        term_N = term_N + objective.kl_weight * with_gradient_N
        seen.kl_sum = (seen.kl_sum or 0.0) + float(kl_N.double().sum())
    if entropy_N is not None:
        term_N = term_N - objective.entropy_weight * entropy_N
        seen.entropy_sum = (seen.entropy_sum or 0.0) + float(entropy_N.detach().double().sum())
    return term_N * pack.more["term"].to(term_N.dtype) if "term" in pack.more else term_N


def apply(engine: Engine, optimizer: torch.optim.Optimizer, *, grad_clip: float | None) -> float:
    """Clips the gradients to a norm and takes the optimizer's step; returns the norm before the clip.

    Raises:
        NonFiniteStep: the norm is no finite number; no weight was changed.
    """
    norm = grad_norm(engine.model.parameters())
    if not math.isfinite(norm):
        raise NonFiniteStep(grad_norm=norm, hint="lower the learning rate, or look at the batch's logprobs")
    if grad_clip is not None:
        torch.nn.utils.clip_grads_with_norm_(engine.model.parameters(), grad_clip, torch.tensor(norm))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm


def grad_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """Euclidean norm of the gradient over these parameters; 0 where none has one."""
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(full(torch.nn.utils.get_total_norm(grads))) if grads else 0.0


class _Seen:
    """Sums over the passes of a step."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.targets = 0
        self.clipped: int | None = None
        self.ratio_sum: float | None = None
        self.ratio_max: float | None = None
        self.max_logprob_diff: float | None = None
        self.compared = 0
        self.diff_sum = 0.0
        self.kl_sum: float | None = None
        self.entropy_sum: float | None = None

    def add(self, pack: Pack, logprob_N: torch.Tensor, loss: float, result: TokenLoss) -> None:
        self.loss += loss
        self.targets += len(logprob_N)
        if result.is_clipped_N is not None:
            self.clipped = (self.clipped or 0) + int(result.is_clipped_N.sum())
        if result.ratio_N is not None:
            self.ratio_sum = (self.ratio_sum or 0.0) + float(result.ratio_N.double().sum())
            self.ratio_max = _larger(self.ratio_max, float(result.ratio_N.max()))
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
            whole.compared += part.compared
            whole.diff_sum += part.diff_sum
            for name in ("clipped", "ratio_sum", "kl_sum", "entropy_sum"):
                if (seen := getattr(part, name)) is not None:
                    setattr(whole, name, (getattr(whole, name) or 0) + seen)
            if part.ratio_max is not None:
                whole.ratio_max = _larger(whole.ratio_max, part.ratio_max)
            if part.max_logprob_diff is not None:
                whole.max_logprob_diff = _larger(whole.max_logprob_diff, part.max_logprob_diff)
        return whole

    def stats(self) -> StepStats:
        def mean(total: float | None) -> float | None:
            return None if total is None else total / self.targets

        return StepStats(
            loss=self.loss,
            ratio_mean=mean(self.ratio_sum),
            ratio_max=self.ratio_max,
            clip_fraction=mean(self.clipped),
            kl=mean(self.kl_sum),
            entropy=mean(self.entropy_sum),
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
