"""What a step was like: one line of the metrics file each."""

# N targets

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from tracestore.train.plan import Step

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class StepMetrics:
    """One line of the metrics file."""

    step: int
    loss: float | None
    """None while the critic alone learns, and so is all that the policy's passes say."""
    groups: tuple[str, ...]
    """Ids of the groups that the step trained, in order; of an episode on its own, the episode's."""
    tokens: int
    """Tokens computed."""
    trained_tokens: int
    """Zero-advantage tokens included."""
    denominator: int
    """What the sum of the losses is divided by: trained tokens, what `--denominator` says, or pairs (dpo)."""
    zero_advantage_tokens: int
    grad_norm: float | None
    """Before the clip."""
    lr: float
    ratio_mean: float | None
    ratio_max: float | None
    clip_fraction: float | None
    kl: float | None
    """Mean estimate of the divergence from the reference model."""
    entropy: float | None
    """Mean entropy of the policy where it sampled a trained token, in nats."""
    preferred: float | None
    """dpo: share of pairs whose chosen member the model prefers more than the reference does."""
    max_logprob_diff: float | None
    """Largest |logprob now - recorded| of a trained token."""
    mean_logprob_diff: float | None
    """Mean of them."""
    value_loss: float | None
    """Mean loss of the critic; None without one."""
    explained_variance: float | None
    """Of the returns, by the critic's values: 1 - Var(R - V) / Var(R)."""
    critic_grad_norm: float | None
    staleness: dict[str, int]
    """Trained tokens by how many versions the policy that sampled them is behind, where that is known."""
    advantage_by_cause: dict[str, dict[str, float]]
    """Per cause of the owning sample: tokens, mean and mean absolute advantage."""
    seconds: float
    tokens_per_s: float
    """Computed tokens a second, credit and planning included."""


def advantage_by_cause(step: Step) -> dict[str, dict[str, float]]:
    """Tokens, mean and mean absolute advantage of the trained tokens, by why their sample begins."""
    found: dict[str, list[np.ndarray]] = {}
    for one in (unit for batch in step.micro_batches for unit in batch):
        grown, advantage_N = one.forest, one.targets.plus_N + one.targets.minus_N
        owner_N = grown.owner_S[grown.segment_T[one.targets.token_N]]
        for owner in np.unique(owner_N):
            cause = grown.row.samples[owner].cause
            found.setdefault(cause, []).append(advantage_N[owner_N == owner])
    joined = {cause: np.concatenate(parts) for cause, parts in sorted(found.items())}
    return {
        cause: {"tokens": len(a), "mean": float(a.mean()), "mean_abs": float(np.abs(a).mean())}
        for cause, a in joined.items()
    }


def staleness(step: Step, *, version: int | None) -> dict[str, int]:
    """Trained tokens by `version` minus the version that sampled them; empty without a version."""
    found: dict[int, int] = {}
    for one in (unit for batch in step.micro_batches for unit in batch):
        if version is None:
            continue
        version_T = np.full(one.forest.num_tokens, np.iinfo(np.int64).min)
        for run in one.forest.row.policy_runs:
            if run.version is not None:
                version_T[run.start : run.start + run.length] = run.version
        known_N = version_T[one.targets.token_N]
        for behind, count in zip(
            *np.unique(version - known_N[known_N != np.iinfo(np.int64).min], return_counts=True), strict=True
        ):
            found[int(behind)] = found.get(int(behind), 0) + int(count)
    return {str(behind): count for behind, count in sorted(found.items())}


class MetricsFile:
    """Appends one line a step."""

    def __init__(self, file: TextIO | None) -> None:
        self._file = file

    def add(self, metrics: DataclassInstance) -> None:
        if self._file is not None:
            self._file.write(json.dumps(asdict(metrics)) + "\n")
            self._file.flush()


@contextmanager
def metrics_file(out: Path | None, *, steps_before: int) -> Iterator[MetricsFile]:
    """The file in a run's folder, cut behind the lines of the first `steps_before` steps.

    What a run that was killed wrote after its checkpoint is taken back: those steps are made again.
    """
    if out is None:
        yield MetricsFile(None)
        return
    out.mkdir(parents=True, exist_ok=True)
    path = out / METRICS_FILE
    kept = path.read_text(encoding="utf-8").splitlines(keepends=True)[:steps_before] if steps_before else []
    path.write_text("".join(kept), encoding="utf-8")
    with path.open("a", encoding="utf-8") as file:
        yield MetricsFile(file)
