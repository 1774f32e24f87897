"""Before step one: does this very model give on a tree the gradient that it gives on flattened rows?

Attention is not all that can mix branches: recurrent layers, token shifts, length-dependent position codes
and masks built from position ids do too, and no list of architectures is complete. So the model itself is
asked, on a small forest of random tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row, Segments
from tracestore.train.engine import Engine
from tracestore.train.forest import Forest, Targets, forest, unit
from tracestore.train.losses.base import Objective
from tracestore.train.losses.policy import clipped
from tracestore.train.recompute import logprobs
from tracestore.train.step import grad_norm

_PARENTS = (-1, 0, 1, 1, -1)
_LENGTHS = (4, 3, 3, 5, 4)
"""A branch point below another segment, and a second root: three rows, each longer than what they share."""
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
"""A wrong tree is off by a tenth or more; float64 models still normalise in float32."""
_COARSE = 0.1


@dataclass(frozen=True)
class Probe:
    """How far the tree is from the rows."""

    rel_grad_diff: float
    """||g_tree - g_rows|| / ||g_rows|| over all parameters."""
    rel_loss_diff: float
    """|L_tree - L_rows| / sum |w l|."""
    tolerance: float
    reason: str | None
    """Why the tree must not be used; None when it agrees."""


def probe(engine: Engine, *, seed: int = 0) -> Probe:
    """Compares both on one random forest; on disagreement the engine computes rows from now on.

    Ranks that train together all compute the same. Leaves no gradients behind.
    Costs one backward pass on the tree and three on rows, of few tokens each.
    """
    grown = _random_forest(engine, seed=seed)
    tolerance = _TOLERANCE.get(next(engine.model.parameters()).dtype, _COARSE)
    asked = engine.alone()
    targets = _targets(asked, grown, seed=seed)
    if asked.reasons:
        [refused] = asked.reasons
        engine.flatten(refused)
        return Probe(math.nan, math.nan, tolerance, refused)
    engine.model.zero_grad(set_to_none=True)
    loss_tree = _backward(asked, grown, targets, sign=1.0)
    norm = grad_norm(engine.model.parameters())
    # The rows' gradient is subtracted in place: no second copy of a large model's gradients is held.
    loss_rows = _backward(engine.alone(use_tree=False), grown, targets, sign=-1.0)
    rel_grad = grad_norm(engine.model.parameters()) / norm if norm > 0 else math.nan
    rel_loss = abs(loss_tree - loss_rows) / float(np.abs(targets.plus_N - targets.minus_N).sum())
    engine.model.zero_grad(set_to_none=True)
    agrees = rel_grad <= tolerance and rel_loss <= tolerance
    reason = None if agrees else f"the probe forest's gradient differs from the rows' by {rel_grad:.1e}"
    if reason:
        engine.flatten(reason)
    return Probe(rel_grad, rel_loss, tolerance, reason)


def _random_forest(engine: Engine, *, seed: int) -> Forest:
    rng = np.random.default_rng(seed)
    lengths = np.asarray(_LENGTHS, dtype=np.int32)
    tokens = int(lengths.sum())
    row = Row(
        project="",
        group_id=None,
        task_id=None,
        part=0,
        num_parts=1,
        closed_by=None,
        token_ids=rng.integers(0, engine.model.config.get_text_config().vocab_size, tokens, dtype=np.int32),
        logprobs=None,
        has_logprob=np.zeros(tokens, dtype=bool),
        reason=np.full(tokens, Reason.TRAINED, dtype=np.uint8),
        segments=Segments(
            parent=np.asarray(_PARENTS, dtype=np.int32),
            start=(np.cumsum(lengths) - lengths).astype(np.int64),
            length=lengths,
            completion=np.full(len(lengths), -1, dtype=np.int32),
        ),
        episodes=(),
        agents=(),
        calls=(),
        completions=(),
        policy_runs=(),
        samples=(),
    )
    return forest(row)


def _targets(engine: Engine, grown: Forest, *, seed: int) -> Targets:
    """Every token with a predecessor, advantages of both signs, ratios between 0.6 and 1.7."""
    rng = np.random.default_rng(seed + 1)
    token_N = np.flatnonzero(grown.previous_T >= 0)
    count = len(token_N)
    blank = Targets(token_N, np.zeros(count), np.zeros(count), np.zeros(count))
    logprob_T = logprobs(engine, grown, blank, micro_batch_tokens=grown.num_tokens)
    return Targets(
        token_N,
        plus_N=rng.uniform(0.0, 1.0, count),
        minus_N=-rng.uniform(0.0, 1.0, count),
        old_logprob_N=logprob_T[token_N] + rng.uniform(-0.5, 0.5, count),
    )


def _backward(engine: Engine, grown: Forest, targets: Targets, *, sign: float) -> float:
    """The loss; its gradient times `sign` is added to the model's."""
    total = 0.0
    for pack, logprob_N in engine.passes([unit(grown, targets)]):
        loss = clipped(logprob_N, pack, Objective()).loss_N.sum()
        (sign * loss).backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total
