"""Logprobs of an export, taken again from a model: what was recorded against what the trainer sees."""

# N targets, T tokens of a row

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tracestore.shards.row import Row
from tracestore.train.engine import Engine
from tracestore.train.forest import Forest, Pack, Targets, Unit, forest, recorded_targets
from tracestore.train.plan import planned


@dataclass(frozen=True)
class WorstToken:
    """Where the largest difference stands."""

    group_id: str | None
    call_id: str
    completion: int
    """Index among the call's completions."""
    token: int
    """Index inside the completion."""
    recorded: float
    recomputed: float


@dataclass(frozen=True)
class Drift:
    """How far recomputed logprobs are from the recorded ones."""

    max_logprob_diff: float | None
    """Largest absolute difference of one token; None when nothing could be compared."""
    compared_tokens: int
    not_comparable_tokens: int
    """Processed by a top-p, a top-k or an unknown temperature: what was kept is not recorded."""
    worst: WorstToken | None


def recompute(
    engine: Engine,
    rows: Iterable[Row],
    *,
    micro_batch_tokens: int,
    on_row: Callable[[int], None] = lambda tokens: None,
) -> Drift:
    """The logprob of every recorded sampled token again, trained or not, at the temperature of its call.

    Args:
        on_row: told the tokens of each row when it is done.

    Raises:
        SampleTooLong: a path longer than `micro_batch_tokens`.
    """
    largest: float | None = None
    worst: WorstToken | None = None
    compared = skipped = 0
    for row in rows:
        grown = forest(row)
        targets = recorded_targets(grown)
        if len(targets):
            logprob_T = logprobs(engine, grown, targets, micro_batch_tokens=micro_batch_tokens)
            token_N = targets.token_N[grown.is_comparable_T[targets.token_N]]
            compared += len(token_N)
            skipped += len(targets) - len(token_N)
            diff_N = np.abs(logprob_T[token_N] - grown.logprob_T[token_N])
            if len(diff_N) and (largest is None or diff_N.max() > largest):
                largest = float(diff_N.max())
                worst = _worst(grown, int(token_N[diff_N.argmax()]), logprob_T)
        on_row(len(row.token_ids))
    return Drift(largest, compared, skipped, worst)


def logprobs(engine: Engine, forest: Forest, targets: Targets, *, micro_batch_tokens: int) -> np.ndarray:
    """float64 [T] of a forest: the model's logprob at the targets, NaN elsewhere. No gradients.

    Ranks share the work, and all of them get the whole answer.
    """
    return at_targets(engine, engine.passes, forest, targets, micro_batch_tokens=micro_batch_tokens)


def at_targets(
    engine: Engine,
    passes: Callable[[Sequence[Unit]], Iterator[tuple[Pack, torch.Tensor]]],
    forest: Forest,
    targets: Targets,
    *,
    micro_batch_tokens: int,
) -> np.ndarray:
    """The same of whatever `passes` of this engine give, [N] each."""
    found_T = np.full(forest.num_tokens, np.nan)
    plan = planned([(forest, targets)], micro_batch_tokens=micro_batch_tokens, placing=engine.placing)
    found: list[tuple[np.ndarray, np.ndarray]] = []
    with torch.no_grad():
        for batch in plan.by_rank[engine.ranks.rank]:
            for pack, found_N in passes(batch):
                if pack.units:
                    token_N = np.concatenate([one.targets.token_N for one in pack.units])
                    found.append((token_N, found_N.double().cpu().numpy()))
    for of_rank in engine.ranks.gathered(found):
        for token_N, value_N in of_rank:
            found_T[token_N] = value_N
    return found_T


def _worst(grown: Forest, token: int, logprob_T: np.ndarray) -> WorstToken:
    row = grown.row
    index = int(grown.completion_T[token])
    completion = row.completions[index]
    first = int(row.segments.start[row.segments.completion == index][0])
    before = np.count_nonzero(grown.completion_T[first:token] == index)
    return WorstToken(
        group_id=row.group_id,
        call_id=row.calls[completion.call].call_id,
        completion=completion.index,
        token=int(before),
        recorded=float(grown.logprob_T[token]),
        recomputed=float(logprob_T[token]),
    )
