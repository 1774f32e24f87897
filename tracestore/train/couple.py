"""What a loss needs of models before a step is cut: reference logprobs, and what couples its targets.

A ratio of a sample or a margin of a pair depends on tokens that a cut may put into several forward passes.
So the model is asked for all logprobs of the step first, without gradients; the loss is taken of them, and
its value and its slope at each target are what the passes with gradients then apply. By the chain rule the
sum over the passes is the gradient of the whole loss, however the step is cut. It costs one more forward
pass."""

# N targets

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tracestore.errors import TracestoreError
from tracestore.train.engine import Engine
from tracestore.train.filling import Batch
from tracestore.train.forest import Forest, Targets
from tracestore.train.losses import COUPLED_LOSSES
from tracestore.train.losses.base import Objective, Scored
from tracestore.train.losses.denominators import Work
from tracestore.train.recompute import logprobs


class OtherVocabulary(TracestoreError):
    """The reference model has another vocabulary: there is no divergence from it."""

    exit_code = 2


class NonFiniteReference(TracestoreError):
    """The reference model gives a target no finite logprob."""


def ready(
    batch: Batch,
    objective: Objective,
    *,
    engine: Engine,
    reference: Engine | None,
    micro_batch_tokens: int,
) -> Batch:
    """The same batch with what `objective` needs at each target.

    Raises:
        NonFiniteReference: see there.
    """
    if not objective.needs_reference and objective.loss not in COUPLED_LOSSES:
        return batch
    done: list[Work] = []
    margins: list[float] = []
    for grown, given in batch.work:
        targets = given
        if len(targets):
            if objective.needs_reference:
                assert reference is not None, "checked when the run began"
                targets = _referred(grown, targets, reference, micro_batch_tokens)
            if objective.loss in COUPLED_LOSSES:
                now_T = logprobs(engine, grown, targets, micro_batch_tokens=micro_batch_tokens)
                targets, found = coupled(grown, targets, now_T[targets.token_N], objective)
                margins += found
        done.append((grown, targets))
    return replace(batch, work=tuple(done), margins=tuple(margins))


def _referred(grown: Forest, targets: Targets, reference: Engine, micro_batch_tokens: int) -> Targets:
    reference_T = logprobs(reference, grown, targets, micro_batch_tokens=micro_batch_tokens)
    reference_N = reference_T[targets.token_N]
    if not np.isfinite(reference_N).all():
        bad = int(targets.token_N[~np.isfinite(reference_N)][0])
        raise NonFiniteReference(
            group_id=grown.row.group_id,
            token=bad,
            hint="does the reference model load with other weights, or in a wider --dtype?",
        )
    return targets.given(reference=reference_N)


def coupled(
    grown: Forest, targets: Targets, logprob_N: np.ndarray, objective: Objective
) -> tuple[Targets, tuple[float, ...]]:
    """The targets with value and slope of a coupled loss at `logprob_N` (float64 [N]), and its margins."""
    leaf_N = torch.tensor(logprob_N, requires_grad=True)
    found = COUPLED_LOSSES[objective.loss](Scored(grown, targets, leaf_N), objective)
    share_N = torch.as_tensor(targets.more.get("share", np.ones(len(targets))))
    [slope_N] = torch.autograd.grad(found.token.loss_N, leaf_N, share_N)
    # Each pass multiplies by the share again; a slope that comes from other targets has theirs in it.
    more = {"value": found.token.loss_N.detach(), "slope": slope_N / share_N}
    if found.token.ratio_N is not None:
        more["ratio"] = found.token.ratio_N
    if found.token.is_clipped_N is not None:
        more["is_clipped"] = found.token.is_clipped_N.double()
    return targets.given(**{name: values.numpy() for name, values in more.items()}), found.margins
