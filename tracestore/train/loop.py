"""Shards -> credit -> steps -> weights: the training loop.

Credit is given on whole groups; then each step is planned, computed on the token tree, checked and applied.
A step that is no finite number stops the run before it changes a weight.
"""

# N targets, T tokens of a row

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import torch

from tracestore.errors import TracestoreError
from tracestore.ids import new_id
from tracestore.shards.read import Export
from tracestore.shards.row import Row
from tracestore.train.checkpoint import save_checkpoint
from tracestore.train.consumption import Consumed, Sink, consumed
from tracestore.train.credit import advantages, check_rule
from tracestore.train.credit.base import Advantages, Context, combine
from tracestore.train.engine import Engine
from tracestore.train.forest import Forest, Targets, forest, trainable_targets, trained_targets
from tracestore.train.loader import shuffled_rows
from tracestore.train.losses import Clip, check_loss
from tracestore.train.plan import Step, steps
from tracestore.train.probe import probe
from tracestore.train.recompute import logprobs
from tracestore.train.step import apply, gradients

METRICS_FILE = "metrics.jsonl"
CHECKPOINT_FOLDER = "checkpoint"


class NothingToTrain(TracestoreError):
    """The export has no token to train with this credit rule."""


@dataclass(frozen=True)
class Settings:
    """What a run does."""

    credit: str = "shared"
    """Name of a rule of `tracestore.train.credit.RULES`."""
    pass_k: int | None = None
    """`pkpo`: of how many attempts at a task the best one counts."""
    loss: str = "clipped"
    """Name of a loss of `tracestore.train.losses.LOSSES`."""
    clip: Clip = field(default_factory=Clip)
    old_logprobs: Literal["recorded", "recomputed"] = "recorded"
    """Denominator of the importance ratio: what the sampler recorded, or what this model said before step
    one, which leaves out the sampler's numerical differences and costs one more pass over the export."""
    steps: int | None = None
    """Optimizer steps; None: each group once."""
    lr: float = 1e-6
    weight_decay: float = 0.0
    grad_clip: float | None = 1.0
    """Largest norm of the gradient."""
    max_tokens_per_step: int = 32_768
    """Distinct tokens, each computed once."""
    micro_batch_tokens: int = 8_192
    """Tokens of one forward pass; bounds memory, never changes a gradient."""
    seed: int = 0


@dataclass(frozen=True)
class StepMetrics:
    """One line of the metrics file."""

    step: int
    loss: float
    tokens: int
    """Tokens computed."""
    trained_tokens: int
    """The denominator: zero-advantage tokens included."""
    zero_advantage_tokens: int
    grad_norm: float
    """Before the clip."""
    ratio_mean: float | None
    ratio_max: float | None
    clip_fraction: float | None
    max_logprob_diff: float | None
    """Largest |logprob now - recorded| of a trained token."""
    advantage_by_cause: dict[str, dict[str, float]]
    """Per cause of the owning sample: tokens, mean and mean absolute advantage."""
    seconds: float


@dataclass(frozen=True)
class Trained:
    """What a run did."""

    run: str
    metrics: tuple[StepMetrics, ...]
    notes: dict[str, int]
    """Counted on the way: ungraded episodes, groups without spread, groups without a trained token, ..."""
    rows_reasons: dict[str, int]
    """Why flattened rows were computed instead of the tree; empty when the tree was used throughout."""
    checkpoint: Path | None


def train(
    model: Any,
    export: Export,
    *,
    settings: Settings,
    run: str | None = None,
    out: Path | None = None,
    tokenizer_from: Path | None = None,
    sink: Sink | None = None,
    on_step: Callable[[StepMetrics], None] = lambda metrics: None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Trained:
    """Trains a causal LM on an export.

    Args:
        model: from `AutoModelForCausalLM`; changed in place, left in eval mode (dropout is never used).
        run: name of the run in consumption records; without it, a new id.
        out: folder for `metrics.jsonl` and `checkpoint/`; without it, nothing is written.
        sink: told after each step what it trained.
        on_step, on_tokens: for progress.

    Raises:
        UnknownRule, UnknownLoss: a name in the settings.
        NothingToTrain: no graded, trained token in the whole export.
        MissingLogprobs: recorded logprobs are wanted and missing.
        SampleTooLong: a sample does not fit the limits.
        NonFiniteStep: weights are as after the last finite step; no checkpoint is written.
    """
    check_rule(settings.credit)
    check_loss(settings.loss)
    torch.manual_seed(settings.seed)
    engine = Engine(model)
    probe(engine, seed=settings.seed)
    trainer = _Trainer(engine, export, settings, run or new_id())
    optimizer = torch.optim.AdamW(
        (p for p in model.parameters() if p.requires_grad), lr=settings.lr, weight_decay=settings.weight_decay
    )
    done: list[StepMetrics] = []
    with _metrics_file(out) as file:
        for step in itertools.islice(trainer.steps(), settings.steps):
            metrics = trainer.take(step, optimizer, on_tokens)
            done.append(metrics)
            trainer.num_steps = len(done)
            if file is not None:
                file.write(json.dumps(asdict(metrics)) + "\n")
                file.flush()
            if sink is not None:
                sink(trainer.consumed(step, metrics.step))
            on_step(metrics)
    checkpoint = None if out is None else out / CHECKPOINT_FOLDER
    if checkpoint is not None:
        save_checkpoint(
            checkpoint,
            model=model,
            optimizer=optimizer,
            state=trainer.state(),
            tokenizer_from=tokenizer_from,
        )
    return Trained(trainer.run, tuple(done), dict(+trainer.notes), dict(engine.reasons), checkpoint)


class _Trainer:
    """The state of one run: where it stands, what it counted."""

    def __init__(self, engine: Engine, export: Export, settings: Settings, run: str) -> None:
        self.engine = engine
        self.export = export
        self.settings = settings
        self.run = run
        self.num_steps = 0
        self.notes: Counter[str] = Counter()
        self._old: dict[tuple[str, str, int], np.ndarray] = {}

    def steps(self) -> Iterator[Step]:
        """Epoch after epoch; one epoch when no number of steps was asked for."""
        if self.settings.old_logprobs == "recomputed":
            self._recompute_old()
        for epoch in itertools.count() if self.settings.steps is not None else range(1):
            planned = steps(
                self._work(epoch),
                max_tokens_per_step=self.settings.max_tokens_per_step,
                micro_batch_tokens=self.settings.micro_batch_tokens,
            )
            first = next(planned, None)
            if first is None:
                raise NothingToTrain(
                    rule=self.settings.credit, notes=dict(+self.notes), hint=self._nothing_hint()
                )
            yield first
            yield from planned

    def _nothing_hint(self) -> str:
        if self.notes["trained_tokens_without_advantage"]:
            return "no episode has a reward: post rewards and export again"
        return "the manifest's conservation table says why tokens are excluded"

    def take(
        self, step: Step, optimizer: torch.optim.Optimizer, on_tokens: Callable[[int], None]
    ) -> StepMetrics:
        """One optimizer step."""
        began = time.monotonic()
        seen = gradients(
            self.engine, step, loss=self.settings.loss, clip=self.settings.clip, on_micro_batch=on_tokens
        )
        norm = apply(self.engine, optimizer, grad_clip=self.settings.grad_clip)
        targets = [one.targets for batch in step.micro_batches for one in batch]
        zero = sum(int(np.count_nonzero((t.plus_N == 0) & (t.minus_N == 0))) for t in targets)
        return StepMetrics(
            step=self.num_steps,
            tokens=step.num_tokens,
            trained_tokens=step.denominator,
            zero_advantage_tokens=zero,
            grad_norm=norm,
            advantage_by_cause=_advantage_by_cause(step),
            seconds=time.monotonic() - began,
            **asdict(seen),
        )

    def consumed(self, step: Step, number: int) -> list[Consumed]:
        units = (one for batch in step.micro_batches for one in batch)
        return consumed(units, run=self.run, step=number, export_hash=self.export.manifest.manifest_hash)

    def state(self) -> dict[str, Any]:
        """What the checkpoint says about the run."""
        return {
            "run": self.run,
            "steps": self.num_steps,
            "export_hash": self.export.manifest.manifest_hash,
            "settings": asdict(self.settings),
        }

    def _work(self, epoch: int) -> Iterator[tuple[Forest, Targets]]:
        for shard, row in shuffled_rows(self.export, seed=self.settings.seed, epoch=epoch):
            context = Context(step=self.num_steps, pass_k=self.settings.pass_k)
            given = advantages(row, rule=self.settings.credit, context=context)
            grown = forest(row, shard=shard)
            old_T = self._old.get(_key(shard, row))
            credit = combine(row, given, ownership=self.export.manifest.ownership)
            targets = trained_targets(grown, credit, old_logprob_T=old_T)
            if epoch == 0:
                self._count(row, given, len(targets))
            if len(targets):
                yield grown, targets

    def _count(self, row: Row, given: Advantages, targets: int) -> None:
        if row.part == 0:  # every part has the whole header: count its episodes once
            self.notes.update(given.notes)
        self.notes["trained_tokens_without_advantage"] += row.num_trained - targets
        self.notes["rows_without_targets"] += targets == 0

    def _recompute_old(self) -> None:
        for shard, row in shuffled_rows(self.export, seed=self.settings.seed, epoch=0):
            grown = forest(row, shard=shard)
            self._old[_key(shard, row)] = logprobs(
                self.engine,
                grown,
                trainable_targets(grown),
                micro_batch_tokens=min(self.settings.micro_batch_tokens, self.settings.max_tokens_per_step),
            )


def _key(shard: str, row: Row) -> tuple[str, str, int]:
    return shard, row.episodes[0].episode_id, row.part


def _advantage_by_cause(step: Step) -> dict[str, dict[str, float]]:
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


@contextmanager
def _metrics_file(out: Path | None) -> Iterator[TextIO | None]:
    if out is None:
        yield None
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / METRICS_FILE).open("w", encoding="utf-8") as file:
        yield file
