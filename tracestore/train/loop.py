"""Shards -> credit -> steps -> weights: the training loop.

Credit is given on whole groups; then each step is planned, computed on the token tree, checked and applied.
A step that is no finite number stops the run before it changes a weight. A run that was stopped at any moment
goes on from its last checkpoint as if it had not been: the same groups, the same losses, the same weights.
"""

# N targets, T tokens of a row

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import torch

from tracestore.errors import TracestoreError
from tracestore.ids import new_id
from tracestore.shards.log import GroupName
from tracestore.shards.read import Export
from tracestore.train.checkpoint import Checkpoint, save_checkpoint
from tracestore.train.consumption import Consumed, Sink, consumed
from tracestore.train.couple import OtherVocabulary, ready
from tracestore.train.credit import choose
from tracestore.train.credit.base import Context
from tracestore.train.credit.gae import Critic as AlongTime
from tracestore.train.credit.terms import check_terms
from tracestore.train.critic import Critic, CriticSettings
from tracestore.train.engine import Engine
from tracestore.train.filling import (
    Batch,
    Filled,
    Filling,
    credit_digest,
    credited,
    filled,
    grow,
    paired,
    supervised,
)
from tracestore.train.forest import Forest, forest, trainable_targets
from tracestore.train.loader import BEGIN, Group, Loader, Place, Reading
from tracestore.train.losses import WITHOUT_CREDIT, check_loss
from tracestore.train.losses.base import MissingReference, Objective, UnsuitableLoss
from tracestore.train.losses.denominators import Denominator
from tracestore.train.metrics import StepMetrics, advantage_by_cause, metrics_file, staleness
from tracestore.train.plan import Step, planned
from tracestore.train.probe import probe
from tracestore.train.ranks import ALONE, Ranks
from tracestore.train.recompute import logprobs
from tracestore.train.schedule import Schedule, scheduler
from tracestore.train.sharding import full_state, load_full_state
from tracestore.train.step import NOTHING_SEEN, apply, gradients

_MAY_CHANGE = ("steps", "checkpoint_every", "micro_batch_tokens", "stop_at_drift")
"""Settings that a run may go on with other values of: none of them changes what a step does. (A schedule that
falls to 0 makes `steps` one that may not.)"""
_READING_MAY_CHANGE = ("epochs", "idle_s", "poll_s", "ahead")


class NothingToTrain(TracestoreError):
    """The export has no token to train with this credit rule."""


class LogprobDrift(TracestoreError):
    """The model's logprobs are further from the recorded ones than the run allows."""


@dataclass(frozen=True)
class Settings:
    """What a run does."""

    credit: str = "shared"
    """A rule as `tracestore.train.credit.choose` reads it: `rloo`, `rao:lambda=0.4`."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    """Term of `tracestore.train.credit.terms` -> its weight in every episode's reward."""
    objective: Objective = field(default_factory=Objective)
    """The loss, and the terms beside it."""
    denominator: Denominator = field(default_factory=Denominator)
    """What a step's losses are divided by; `dpo` has its own, the pairs."""
    old_logprobs: Literal["recorded", "recomputed"] = "recorded"
    """Denominator of the importance ratio: what the sampler recorded, or what this model said before step
    one, which leaves out the sampler's numerical differences and costs one more pass over the export."""
    importance_cap: float | None = None
    """With `recomputed`: weigh each token by min(recomputed / recorded probability, this); None: do not."""
    critic: CriticSettings | None = None
    """How the critic of a rule that runs along time learns; None: there is no critic."""
    steps: int | None = None
    """Optimizer steps, those of the critic alone included; None: until the groups end."""
    reading: Reading = field(default_factory=lambda: Reading(epochs=None))
    """Which groups, in which order. `epochs` None: without end when `steps` says how many, else once."""
    filling: Filling = field(default_factory=Filling)
    """How many groups a step takes."""
    lr: float = 1e-6
    schedule: Schedule = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    grad_clip: float | None = 1.0
    """Largest norm of the gradient."""
    micro_batch_tokens: int = 8_192
    """Tokens of one forward pass; bounds memory, never changes a gradient."""
    policy_version: int | None = None
    """Version of the policy that the weights are before step one; each step makes the next. None: unknown."""
    max_staleness: int | None = None
    """Tokens of a policy that is more versions behind than this do not train; needs `policy_version`."""
    stop_at_drift: float | None = None
    """Stop when the mean |logprob now - recorded| of a step's tokens exceeds this."""
    compute_dtype: Literal["bfloat16"] | None = None
    """Of matrix products, where it is not that of the weights; these, their gradients and the optimizer keep
    theirs."""
    checkpoint_every: int | None = None
    """Steps between checkpoints; None: at the end only."""

    @property
    def epochs(self) -> int | None:
        return 1 if self.reading.epochs is None and self.steps is None else self.reading.epochs

    def oldest_version(self, step: int) -> int | None:
        """The earliest policy version whose tokens train in a step; None: all of them may."""
        version = self.version(step)
        return None if version is None or self.max_staleness is None else version - self.max_staleness

    def version(self, step: int) -> int | None:
        """The policy version that the weights are before a step."""
        before = max(0, step - self.pretrain_steps)
        return None if self.policy_version is None else self.policy_version + before

    @property
    def pretrain_steps(self) -> int:
        """First steps in which no weight of the policy changes."""
        return 0 if self.critic is None else self.critic.pretrain_steps


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
    resume: Checkpoint | None = None,
    reference: Any = None,
    critic: Any = None,
    sink: Sink | None = None,
    on_step: Callable[[StepMetrics], None] = lambda metrics: None,
    on_tokens: Callable[[int], None] = lambda tokens: None,
    ranks: Ranks = ALONE,
) -> Trained:
    """Trains a causal LM on an export.

    Args:
        model: from `AutoModelForCausalLM`; changed in place, left in eval mode (dropout is never used), and
            with several ranks in pieces.
        run: name of the run in consumption records; without it, a new id.
        out: folder for `metrics.jsonl` and `checkpoint/`; without it, nothing is written.
        resume: where an earlier run stood; `model` then holds that checkpoint's weights. Steps, losses and
            weights are those of a run that was not stopped, bit for bit, on the same device with the same
            number of threads.
        reference: causal LM that `dpo` and the divergence compare with; it is not changed but for its mode.
        critic: causal LM below the critic's head, trained with it (with `resume`: that of the checkpoint's
            `critic` folder); None: the head reads the policy's own hidden states and leaves them alone.
        sink: told after each step what it trained; a step that is made again after a stop is told again, with
            the same ids.
        on_step, on_tokens: for progress; told of every step, and of this rank's tokens.
        ranks: of processes that all make this call with equal arguments; the first one alone writes files and
            tells the sink.

    Raises:
        UnknownRule, BadOption, UnknownTerm, UnknownLoss, UnsuitableLoss,
        ScheduleWithoutEnd: something in the settings.
        MissingFact: a row does not hold what the credit rule needs.
        MissingReference, OtherVocabulary: the reference model.
        OtherRun: `resume` is of a run with other settings or of another export.
        NothingToTrain: no graded, trained token in the whole export.
        MissingLogprobs: recorded logprobs are wanted and missing.
        SampleTooLong: a sample does not fit a micro-batch.
        RanksDisagree: ranks do not see the same groups, or give other credit.
        NonFiniteStep, LogprobDrift: weights are as after the last step; the last checkpoint stays.
    """
    choose(settings.credit)
    check_terms(settings.reward_terms)
    check_settings(settings, objective=export.manifest.spec.get("objective"), reference=reference)
    torch.manual_seed(settings.reading.seed)
    engine = Engine(model, ranks=ranks, compute_dtype=_dtype(settings))
    probe(engine, seed=settings.reading.seed)
    trainer = _Trainer(
        engine,
        critic,
        export,
        settings,
        run=run,
        resume=resume,
        reference=None if reference is None else _frozen(reference, engine, seed=settings.reading.seed),
    )
    done: list[StepMetrics] = []

    def save() -> Path | None:
        return None if out is None else trainer.save(out, tokenizer_from=tokenizer_from)

    with metrics_file(out if ranks.is_first else None, steps_before=trainer.num_steps) as file:
        for batch, step in trainer.steps():
            trains_policy = trainer.trains_policy
            metrics = trainer.take(batch, step, on_tokens)
            done.append(metrics)
            file.add(metrics)
            if sink is not None and trains_policy and ranks.is_first:
                sink(trainer.consumed(step, metrics.step))
            on_step(metrics)
            if settings.checkpoint_every and trainer.num_steps % settings.checkpoint_every == 0:
                save()
    checkpoint = save()
    return Trained(trainer.run, tuple(done), dict(+trainer.notes), dict(engine.reasons), checkpoint)


def check_settings(settings: Settings, *, objective: str | None, reference: Any) -> None:
    """Whether the loss can be computed as the settings say.

    Args:
        objective: of the export, where it is known.

    Raises:
        UnknownLoss, MissingReference, UnsuitableLoss.
    """
    wanted, loss = settings.objective, settings.objective.loss
    check_loss(loss)

    def refuse(hint: str, **values: Any) -> NoReturn:
        raise UnsuitableLoss(loss=loss, **values, hint=hint)

    if wanted.needs_reference and reference is None:
        raise MissingReference(
            loss=loss, kl_weight=wanted.kl_weight, hint="name its folder: --reference FOLDER"
        )
    if settings.importance_cap is not None and settings.old_logprobs != "recomputed":
        refuse(
            "truncated importance sampling weighs recomputed against recorded: --old-logprobs recomputed",
            importance_cap=settings.importance_cap,
        )
    if loss in WITHOUT_CREDIT:
        if settings.filling.refill:
            refuse("no reward takes part in this loss, so no group is without spread: leave out --refill")
        if settings.importance_cap is not None:
            refuse("this loss has no importance ratio: leave out --importance-cap")
    if settings.critic is not None:
        _check_critic(settings, refuse)
    if loss == "dpo" and settings.denominator.kind != "token":
        refuse("dpo divides by its pairs: leave out --denominator", denominator=settings.denominator.kind)
    fits = {"sft": ("sft", None), "dpo": ("preference", "rl", None)}
    if objective not in fits.get(loss, (objective,)):
        refuse(f"tracestore export --objective {fits[loss][0]}", objective=objective)


def _check_critic(settings: Settings, refuse: Callable[..., NoReturn]) -> None:
    options = choose(settings.credit).options
    if settings.objective.loss in WITHOUT_CREDIT:
        refuse("no reward takes part in this loss, so there is nothing to value: leave out --critic")
    if not isinstance(options, AlongTime) or options.critic == "zero":
        refuse("a critic goes with --credit compaction-rl or mem1", credit=settings.credit)
    if settings.filling.refill:
        refuse("with a critic a group without spread still teaches: leave out --refill")


def _frozen(reference: Any, engine: Engine, *, seed: int) -> Engine:
    """The reference as an engine of its own, asked like the model itself whether it computes trees."""
    sizes = [one.get_input_embeddings().weight.shape[0] for one in (engine.model, reference)]
    if sizes[0] != sizes[1]:
        raise OtherVocabulary(
            vocab_size=sizes[0],
            reference_vocab_size=sizes[1],
            hint="a reference has the same tokenizer; as a rule it is the model that training began with",
        )
    frozen = Engine(reference, ranks=engine.ranks)
    probe(frozen, seed=seed)
    reference.requires_grad_(False)
    return frozen


def _critic(engine: Engine, model: Any, settings: Settings) -> Critic:
    assert settings.critic is not None
    if model is None:
        return Critic(engine, settings.critic, trains_trunk=False)
    trunk = Engine(model, ranks=engine.ranks)
    probe(trunk, seed=settings.reading.seed)
    return Critic(trunk, settings.critic, trains_trunk=True)


class _Trainer:
    """The state of one run: where it stands, what it counted."""

    def __init__(
        self,
        engine: Engine,
        critic: Any,
        export: Export,
        settings: Settings,
        *,
        run: str | None,
        resume: Checkpoint | None,
        reference: Engine | None,
    ) -> None:
        self.engine = engine
        self.ranks = engine.ranks
        self.reference = reference
        self.critic = None if settings.critic is None else _critic(engine, critic, settings)
        self.export = export
        self.settings = settings
        self.optimizer = torch.optim.AdamW(
            (p for p in engine.model.parameters() if p.requires_grad),
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )
        self.scheduler = scheduler(
            self.optimizer,
            schedule=settings.schedule,
            warmup_steps=settings.warmup_steps,
            steps=None if settings.steps is None else max(1, settings.steps - settings.pretrain_steps),
        )
        self.run = run or self.ranks.from_first(new_id)
        self.num_steps = 0
        self.place = BEGIN
        self.uses: Counter[GroupName] = Counter()
        self.notes: Counter[str] = Counter()
        self._loaded: Counter[str] = Counter()
        self._old: dict[str, np.ndarray] = {}
        self._since = time.monotonic()
        if resume is not None:
            self._go_on(resume, run)

    def _go_on(self, checkpoint: Checkpoint, run: str | None) -> None:
        """Stand where the checkpoint stood."""
        state = checkpoint.state
        checkpoint.require(
            export=self.export.hash,
            settings=self._lasting_settings(),
            **({} if run is None else {"run": run}),
        )
        self.run, self.num_steps, self.place = state["run"], state["steps"], Place(*state["place"])
        self.uses.update({GroupName(kind, id_): count for kind, id_, count in state["uses"]})
        self.notes.update(state["notes"])
        load_full_state(self.optimizer, checkpoint.optimizer["optimizer"])
        self.scheduler.load_state_dict(checkpoint.optimizer["schedule"])
        self._old = dict(checkpoint.old_logprobs)
        if self.critic is not None:
            self.critic.load(checkpoint.optimizer["critic"])

    def save(self, out: Path, *, tokenizer_from: Path | None) -> Path:
        """Writes what `_go_on` reads, on whatever number of ranks."""
        critic = self.critic
        optimizer = {"optimizer": full_state(self.optimizer), "schedule": self.scheduler.state_dict()}
        return save_checkpoint(
            out,
            model=self.engine.model,
            optimizer=optimizer if critic is None else {**optimizer, "critic": critic.state()},
            critic=critic.trunk.model if critic is not None and critic.trains_trunk else None,
            state=self._state(),
            old_logprobs=self._old,
            tokenizer_from=tokenizer_from,
            ranks=self.ranks,
        )

    def _state(self) -> dict[str, Any]:
        counted = self.settings.reading.max_reuse is not None
        return {
            "run": self.run,
            "steps": self.num_steps,
            "export": self.export.hash,
            "settings": self._lasting_settings(),
            "credit": choose(self.settings.credit).told(),
            "place": list(self.place),
            "uses": [[*name, count] for name, count in self.uses.items()] if counted else [],
            "notes": dict(+self.notes),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "ranks": self.ranks.size,
        }

    def _lasting_settings(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        for name in _MAY_CHANGE:
            del settings[name]
        for name in _READING_MAY_CHANGE:
            del settings["reading"][name]
        if self.settings.schedule != "constant":
            settings["steps"] = self.settings.steps
        return settings

    def steps(self) -> Iterator[tuple[Batch, Step]]:
        """The steps from where the run stands, each planned when the one before it is done.

        Raises:
            NothingToTrain: as many groups in a row as the export has gave nothing to train, or all there are.
        """
        if self._is_done():
            return
        if self._recomputes and not self.settings.reading.follow and not self._old:
            self._recompute_all()
        reading = replace(self.settings.reading, epochs=self.settings.epochs)
        loader = Loader(self.export, reading, self.place, Counter(self.uses))
        many = None if reading.follow else self.export.manifest.rows
        nothing = 0
        with closing(self._agreed(loader)) as groups:
            for some in self._filled(groups, give_up_after=many):
                batch, step = self._planned(some)
                self._passed(some)
                if step.micro_batches:
                    nothing = 0
                    yield batch, step
                else:
                    nothing += len(some.groups)
                if self._is_done() or (many is not None and nothing >= many):
                    break
            else:
                self.notes.update(loader.notes - self._loaded)
        if not self.num_steps:
            raise NothingToTrain(
                loss=self.settings.objective.loss,
                rule=self.settings.credit,
                notes=dict(+self.notes),
                hint=self._nothing_hint(),
            )

    def _agreed(self, loader: Loader) -> Generator[Group]:
        """The loader's groups. Of an export that goes on ranks would see other states: the first reads it for
        all."""
        if self.ranks.size == 1 or not self.settings.reading.follow:
            yield from loader.groups()
            return
        with closing(loader.groups() if self.ranks.is_first else _no_groups()) as groups:
            while (group := self.ranks.from_first(lambda: next(groups, None))) is not None:
                yield group

    def _is_done(self) -> bool:
        return self.settings.steps is not None and self.num_steps >= self.settings.steps

    def _filled(self, groups: Iterator[Group], *, give_up_after: int | None) -> Iterator[Filled]:
        return filled(
            map(grow, groups),
            self.settings.filling,
            rule=self.settings.credit,
            context=self._context(),
            across_epochs=self.settings.reading.follow,
            give_up_after=give_up_after,
        )

    def _passed(self, some: Filled) -> None:
        """Stand behind these groups."""
        groups = [one.group for one in some.groups]
        self.uses.update(group.name for group in (*groups, *some.left_out))
        self.notes["groups_refilled"] += len(some.left_out)
        if groups:
            self.place = groups[-1].after
            self.notes.update(Counter(groups[-1].notes) - self._loaded)
            self._loaded = Counter(groups[-1].notes)

    def _planned(self, some: Filled) -> tuple[Batch, Step]:
        batch = self._batch(some)
        if self.settings.reading.follow or all(group.after.epoch == 0 for group in batch.groups):
            self.notes.update(batch.notes)
        step = planned(
            batch.work, micro_batch_tokens=self.settings.micro_batch_tokens, placing=self.engine.placing
        )
        step = replace(step, denominator=batch.denominator)
        if self.ranks.size > 1:
            self.ranks.require_same(
                step=self.num_steps,
                groups=[group.name.id for group in batch.groups],
                denominator=step.denominator,
                credit=credit_digest(batch),
            )
        return batch, step

    def _batch(self, some: Filled) -> Batch:
        settings, ownership = self.settings, self.export.manifest.ownership
        oldest_version = settings.oldest_version(self.num_steps)
        match settings.objective.loss:
            case "sft":
                batch = supervised(
                    some.groups,
                    ownership=ownership,
                    denominator=settings.denominator,
                    oldest_version=oldest_version,
                )
            case "dpo":
                batch = paired(some.groups, oldest_version=oldest_version)
            case _:
                batch = credited(
                    some.groups,
                    rule=settings.credit,
                    context=self._context(),
                    ownership=ownership,
                    denominator=settings.denominator,
                    old_logprobs=self._old_logprobs,
                    values=self._values,
                    oldest_version=oldest_version,
                    importance_cap=settings.importance_cap,
                )
        if not self.trains_policy:
            return batch
        return ready(
            batch,
            settings.objective,
            engine=self.engine,
            reference=self.reference,
            micro_batch_tokens=settings.micro_batch_tokens,
        )

    def _context(self) -> Context:
        return Context(step=self.num_steps, reward_terms=self.settings.reward_terms)

    def _nothing_hint(self) -> str:
        if self.settings.objective.loss == "dpo":
            return (
                "no candidate set has a selected and a rejected member that train and differ, see the notes"
            )
        if self.notes["trained_tokens_without_advantage"]:
            return "no episode has a reward: post rewards and export again"
        if self.notes["groups_refilled"]:
            return "no group has spread: every advantage is 0, and such groups were to be replaced by others"
        return "the manifest's conservation table says why tokens are excluded"

    def take(self, batch: Batch, step: Step, on_tokens: Callable[[int], None]) -> StepMetrics:
        """One optimizer step."""
        settings = self.settings
        learned = None if self.critic is None else self.critic.learn(step, grad_clip=settings.grad_clip)
        [lr] = {group["lr"] for group in self.optimizer.param_groups}
        seen, norm = NOTHING_SEEN, None
        if self.trains_policy:
            seen = gradients(self.engine, step, objective=settings.objective, on_micro_batch=on_tokens)
            self._check_drift(seen.mean_logprob_diff)
            norm = apply(self.engine, self.optimizer, grad_clip=settings.grad_clip)
            self.scheduler.step()
        targets = [one.targets for micro in step.micro_batches for one in micro]
        is_without_credit = settings.objective.loss in WITHOUT_CREDIT
        seconds = time.monotonic() - self._since
        metrics = StepMetrics(
            step=self.num_steps,
            groups=tuple(group.name.id for group in batch.groups),
            tokens=step.num_tokens,
            trained_tokens=batch.num_targets,
            denominator=step.denominator,
            zero_advantage_tokens=0
            if is_without_credit
            else sum(int(np.count_nonzero((t.plus_N == 0) & (t.minus_N == 0))) for t in targets),
            preferred=batch.preferred,
            value_loss=None if learned is None else learned.value_loss,
            explained_variance=None if learned is None else learned.explained_variance,
            critic_grad_norm=None if learned is None else learned.grad_norm,
            grad_norm=norm,
            lr=float(lr),
            staleness=staleness(step, version=settings.version(self.num_steps)),
            advantage_by_cause={} if is_without_credit else advantage_by_cause(step),
            seconds=seconds,
            tokens_per_s=step.num_tokens / seconds,
            **asdict(seen),
        )
        self.num_steps += 1
        self._since = time.monotonic()
        return metrics

    @property
    def trains_policy(self) -> bool:
        """Whether the next step changes the policy; the first ones may be the critic's alone."""
        return self.num_steps >= self.settings.pretrain_steps

    def _check_drift(self, drift: float | None) -> None:
        limit = self.settings.stop_at_drift
        if limit is not None and drift is not None and drift > limit:
            raise LogprobDrift(
                step=self.num_steps,
                mean_logprob_diff=drift,
                stop_at_drift=limit,
                hint="is this the model, in the precision, that sampled the tokens, and not too long ago?",
            )

    def consumed(self, step: Step, number: int) -> list[Consumed]:
        units = (one for batch in step.micro_batches for one in batch)
        return consumed(units, run=self.run, step=number, export_hash=self.export.hash)

    def _old_logprobs(self, grown: Forest) -> np.ndarray | None:
        """What the importance ratio of a forest compares to; None: what was recorded."""
        if not self._recomputes:
            return None
        key = _key(grown)
        if key not in self._old:  # an export that goes on: when a group comes, of the model as it is then
            self._old[key] = self._recomputed(grown)
        return self._old[key]

    def _values(self, grown: Forest) -> np.ndarray | None:
        """What the critic says before each token of a forest that trains."""
        if self.critic is None:
            return None
        return self.critic.values(grown, micro_batch_tokens=self.settings.micro_batch_tokens)

    @property
    def _recomputes(self) -> bool:
        """Whether old logprobs are the model's own; a loss without a ratio has none."""
        settings = self.settings
        return settings.old_logprobs == "recomputed" and settings.objective.loss not in WITHOUT_CREDIT

    def _recompute_all(self) -> None:
        for shard in self.export.manifest.shards:
            for row in self.export.shard_rows(shard):
                grown = forest(row, shard=shard.file)
                self._old[_key(grown)] = self._recomputed(grown)

    def _recomputed(self, grown: Forest) -> np.ndarray:
        micro_batch_tokens = self.settings.micro_batch_tokens
        return logprobs(self.engine, grown, trainable_targets(grown), micro_batch_tokens=micro_batch_tokens)


def _no_groups() -> Generator[Group]:
    yield from ()


def _dtype(settings: Settings) -> torch.dtype | None:
    return None if settings.compute_dtype is None else getattr(torch, settings.compute_dtype)


def _key(grown: Forest) -> str:
    return f"{grown.shard}:{grown.row.episodes[0].episode_id}:{grown.row.part}"
