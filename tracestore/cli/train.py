"""`tracestore train`: an export, a model and a credit rule -> optimizer steps and a checkpoint."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_export,
    add_reward_terms,
    extra,
    note,
    opened_store,
    positive_number,
    print_facts,
    print_json_line,
    progress,
    share_cpus,
    verb_parser,
    whole_number,
)
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.store.store import Store
    from tracestore.train.checkpoint import Checkpoint
    from tracestore.train.consumption import Consumed
    from tracestore.train.loop import Settings, Trained
    from tracestore.train.losses.base import Objective
    from tracestore.train.metrics import StepMetrics

DTYPES = ("float32", "bfloat16", "float64")
SCHEDULES = ("constant", "linear", "cosine")
DENOMINATORS = ("token", "sequence", "group", "constant")


class RenderedExport(TracestoreError):
    """The export holds text that a chat template rendered: nothing sampled it, so it has no logprobs."""

    exit_code = 2


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "train",
        help="train a Hugging Face causal LM on an export",
        example="tracestore train export/ --model ./smollm2 --credit rloo --steps 3 --out trained/",
    )
    add_export(parser)
    parser.add_argument(
        "--model",
        metavar="PATH",
        type=Path,
        help="folder that transformers can load (with --resume: that of the checkpoint)",
    )
    parser.add_argument(
        "--credit",
        metavar="RULE",
        default="shared",
        help="credit rule, options after a colon: rloo, pkpo:k=4, rao:lambda=0.4 (default: shared)",
    )
    add_reward_terms(parser)
    parser.add_argument(
        "--old-logprobs",
        choices=("recorded", "recomputed"),
        default="recorded",
        help="what the importance ratio compares to: the sampler's logprobs, or this model's before step one",
    )
    _add_loss(parser)
    _add_critic(parser)
    _add_reading(parser)
    _add_optimizer(parser)
    parser.add_argument(
        "--micro-batch-tokens",
        metavar="N",
        type=whole_number(least=1),
        default=8_192,
        help="tokens of one forward pass; bounds memory, changes no gradient (default: 8192)",
    )
    _add_memory(parser)
    parser.add_argument(
        "--run", metavar="NAME", help="name of the run in consumption records (default: a new id)"
    )
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for metrics.jsonl and checkpoint/")
    parser.add_argument(
        "--tensorboard",
        metavar="DIR",
        type=Path,
        help="folder for an event file with the metrics of each step",
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="N",
        type=whole_number(least=1),
        help="steps between checkpoints (default: one at the end)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on from the checkpoint in --out as if the run had not stopped; give the options it had",
    )
    parser.add_argument("--db", metavar="URL", help="store in which to record what each step trained")


def _add_loss(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the loss")
    group.add_argument(
        "--loss",
        metavar="NAME",
        default="clipped",
        help="clipped, reinforce, gspo (a ratio for each sample), sft or dpo (default: clipped)",
    )
    group.add_argument(
        "--clip-low",
        metavar="X",
        type=positive_number,
        help="how far the ratio may fall below 1 (default: 0.2; gspo: 3e-4)",
    )
    group.add_argument(
        "--clip-high",
        metavar="X",
        type=positive_number,
        help="how far it may rise above 1 (default: 0.28; gspo: 4e-4)",
    )
    group.add_argument(
        "--importance-cap",
        metavar="C",
        type=positive_number,
        help="weigh tokens by min(recomputed / recorded probability, C) (needs --old-logprobs recomputed)",
    )
    group.add_argument(
        "--denominator",
        choices=DENOMINATORS,
        default="token",
        help="what the losses of a step are a mean over; constant: see --denominator-length (default: token)",
    )
    group.add_argument(
        "--denominator-length",
        metavar="N",
        type=whole_number(least=1),
        help="with --denominator constant: tokens that the sum of each episode is divided by",
    )
    group.add_argument(
        "--reference",
        metavar="PATH",
        type=Path,
        help="folder of the model that dpo and --kl-weight compare with",
    )
    group.add_argument(
        "--kl-weight",
        metavar="X",
        type=positive_number,
        help="add the divergence from --reference times this (default: none)",
    )
    group.add_argument(
        "--kl", choices=("k1", "k3"), default="k3", help="how it is estimated (default: k3, as GRPO does)"
    )
    group.add_argument(
        "--entropy-weight",
        metavar="X",
        type=positive_number,
        help="take off the policy's entropy times this (default: none)",
    )
    group.add_argument(
        "--beta",
        metavar="X",
        type=positive_number,
        default=0.1,
        help="dpo: weight of a margin (default: 0.1)",
    )
    group.add_argument(
        "--label-smoothing",
        metavar="X",
        type=positive_number,
        help="dpo: how often a preference is thought to be wrong, below 0.5 (default: never)",
    )


def _add_critic(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the critic (--credit compaction-rl, mem1)")
    group.add_argument(
        "--critic",
        metavar="head|PATH",
        help="a head on the policy's hidden states, or on those of a model of its own, trained with it",
    )
    group.add_argument(
        "--critic-lr", metavar="X", type=positive_number, default=3e-6, help="its AdamW rate (default: 3e-6)"
    )
    group.add_argument(
        "--critic-clip", metavar="X", type=positive_number, help="how far a value may move in a step"
    )
    group.add_argument(
        "--critic-epochs",
        metavar="N",
        type=whole_number(least=1),
        default=1,
        help="its optimizer steps in each step (default: 1)",
    )
    group.add_argument(
        "--critic-pretrain",
        metavar="N",
        type=whole_number(least=0),
        default=0,
        help="first steps in which it learns alone (default: 0)",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("precision and memory")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="of the computation; with bfloat16, weights and optimizer stay float32 (default: float32)",
    )
    group.add_argument(
        "--gradient-checkpointing",
        action="store_true",
        help="compute each layer again in the backward pass instead of keeping what it computed",
    )
    group.add_argument(
        "--lora",
        metavar="RANK",
        type=whole_number(least=1),
        help="train adapters of this rank through peft, nothing else of the model",
    )


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which groups a step trains")
    group.add_argument(
        "--steps", metavar="N", type=whole_number(least=1), help="optimizer steps (default: all)"
    )
    group.add_argument(
        "--epochs",
        metavar="N",
        type=whole_number(least=1),
        help="times that each group comes (default: as --steps asks, else once)",
    )
    group.add_argument(
        "--groups-per-step",
        metavar="N",
        type=whole_number(least=1),
        help="groups of a step (default: as --max-tokens has room for)",
    )
    group.add_argument(
        "--max-tokens",
        metavar="N",
        type=whole_number(least=1),
        default=32_768,
        help="distinct tokens of a step, unless one group has more (default: 32768)",
    )
    group.add_argument(
        "--refill",
        action="store_true",
        help="leave out groups in which every advantage is 0, and take others in their place",
    )
    group.add_argument(
        "--replacement", action="store_true", help="draw the groups of a shard with replacement"
    )
    group.add_argument(
        "--max-reuse",
        metavar="N",
        type=whole_number(least=1),
        help="never train a group more often than this",
    )
    group.add_argument("--seed", metavar="N", type=int, default=0, help="order of groups (default: 0)")
    group.add_argument(
        "--follow",
        action="store_true",
        help="train on what `tracestore export --follow` adds, as it comes",
    )
    group.add_argument(
        "--idle",
        metavar="SECONDS",
        type=positive_number,
        help="with --follow: end when nothing has come for so long (default: never)",
    )
    group.add_argument(
        "--policy-version",
        metavar="N",
        type=whole_number(least=0),
        help="version of the policy that the weights are; each step makes the next",
    )
    group.add_argument(
        "--max-staleness",
        metavar="N",
        type=whole_number(least=0),
        help="do not train tokens of a policy more versions behind (needs --policy-version)",
    )


def _add_optimizer(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the optimizer")
    group.add_argument("--lr", type=positive_number, default=1e-6, help="AdamW learning rate (default: 1e-6)")
    group.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="constant",
        help="of the rate; linear and cosine fall to 0 at the last of --steps (default: constant)",
    )
    group.add_argument(
        "--warmup",
        metavar="N",
        type=whole_number(least=0),
        default=0,
        help="steps in which the rate rises from 0 (default: 0)",
    )
    group.add_argument(
        "--weight-decay", metavar="X", type=positive_number, default=0.0, help="of AdamW (default: 0)"
    )
    group.add_argument(
        "--grad-clip", metavar="X", type=positive_number, default=1.0, help="largest norm (default: 1)"
    )
    group.add_argument(
        "--stop-at-drift",
        metavar="X",
        type=positive_number,
        help="stop when a step's mean |logprob now - recorded| is larger",
    )


def run(args: argparse.Namespace) -> int:
    _check(args)
    from tracestore.shards.read import open_export

    export = open_export(args.export)
    if (
        export.manifest.tokenizer_hash is not None
        and args.old_logprobs == "recorded"
        and args.loss not in ("sft", "dpo")
    ):
        raise RenderedExport(
            path=args.export,
            hint="train with --loss sft, or with --old-logprobs recomputed: this model's own before step one",
        )
    share_cpus()
    with extra("train"):
        from tracestore.train.checkpoint import CRITIC_FOLDER, checkpoint_in
        from tracestore.train.loop import train
        from tracestore.train.model import library_bars, load_model
        from tracestore.train.ranks import ranks_of_environment
    settings = _settings(args)
    resume = checkpoint_in(args.out) if args.resume else None
    model_folder = args.model if resume is None or args.lora else resume.folder
    with ExitStack() as stack:
        ranks = stack.enter_context(ranks_of_environment())
        if args.out is None and ranks.is_first:
            note("no --out: the trained weights are not kept", args=args)
        records = args.db and ranks.is_first
        store = stack.enter_context(opened_store(args, create=False)) if records else None
        recorder = None if store is None else _Recorder(store, export.manifest.project)
        is_shown = ranks.is_first and not args.json and sys.stderr.isatty()
        stack.enter_context(library_bars(shown=is_shown))
        steps_before = 0 if resume is None else resume.state["steps"]
        board = stack.enter_context(_board(args, steps_before=steps_before)) if ranks.is_first else None
        model = _model(args, model_folder, resume)
        reference = None if args.reference is None else load_model(args.reference, dtype=_weights(args))
        critic = None
        if args.critic not in (None, "head"):
            folder = Path(args.critic) if resume is None else resume.folder / CRITIC_FOLDER
            critic = load_model(folder, dtype=_weights(args))
        advance = stack.enter_context(progress("train", args=args, total=args.steps)) if is_shown else None

        def on_step(metrics: StepMetrics) -> None:
            if advance is not None:
                advance(1)
            if not ranks.is_first:
                return
            if board is not None:
                board(metrics)
            if args.json:
                print_json_line(asdict(metrics))
            else:
                note(_step_line(metrics), args=args)

        trained = train(
            model,
            export,
            settings=settings,
            run=args.run,
            out=args.out,
            tokenizer_from=args.model or model_folder,
            resume=resume,
            reference=reference,
            critic=critic,
            sink=recorder,
            on_step=on_step,
            ranks=ranks,
        )
    if not ranks.is_first:
        return 0
    facts = _facts(trained, manifest_hash=export.manifest.manifest_hash)
    if recorder is not None:
        facts["consumption_records"] = recorder.stored
        facts["consumption_problems"] = recorder.problems
    print_facts(facts, args=args)
    return 0


def _model(args: argparse.Namespace, folder: Path, resume: Checkpoint | None) -> Any:
    """What is trained, from where a run begins or goes on."""
    from tracestore.train.lora import add_lora, is_lora, load_lora
    from tracestore.train.model import best_device, compute_layers_again, load_model

    if resume is not None and is_lora(resume.folder) != (args.lora is not None):
        raise UsageError(checkpoint=str(resume.folder), hint="begin and go on with the same --lora")
    model = load_model(folder, dtype=_weights(args))
    if args.lora:
        with extra("train"):
            if resume is None:
                add_lora(model, rank=args.lora, base=str(args.model))
            else:
                load_lora(model, resume.folder)
    if args.gradient_checkpointing:
        compute_layers_again(model)
    return model.to(best_device())


def _weights(args: argparse.Namespace) -> str:
    """Of weights and optimizer: steps at usual rates are smaller than bfloat16 can say."""
    return "float32" if args.dtype == "bfloat16" else str(args.dtype)


def _board(
    args: argparse.Namespace, *, steps_before: int
) -> AbstractContextManager[Callable[[StepMetrics], None] | None]:
    if args.tensorboard is None:
        return nullcontext()
    with extra("tensorboard"):
        from tracestore.train.tensorboard import event_file
    return event_file(args.tensorboard, steps_before=steps_before)


def _check(args: argparse.Namespace) -> None:
    if args.lora and args.model is None:
        raise UsageError(hint="--lora needs --model: the checkpoint holds the adapters alone")
    if args.model is None and not args.resume:
        raise UsageError(hint="--model names a folder with config.json and weights")
    if args.model is not None and not args.model.is_dir():
        raise UsageError(model=str(args.model), hint="--model names a folder with config.json and weights")
    for name, needs in (("resume", "out"), ("checkpoint_every", "out"), ("max_staleness", "policy_version")):
        if getattr(args, name) not in (None, False) and getattr(args, needs) is None:
            raise UsageError(hint=f"--{name.replace('_', '-')} needs --{needs.replace('_', '-')}")
    _check_loss(args)
    if args.idle is not None and not args.follow:
        raise UsageError(hint="--idle goes with --follow")


def _check_loss(args: argparse.Namespace) -> None:
    if args.reference is not None and not args.reference.is_dir():
        raise UsageError(reference=str(args.reference), hint="--reference names a folder like --model")
    if args.reference is not None and args.kl_weight is None and args.loss != "dpo":
        raise UsageError(hint="--reference goes with --kl-weight or --loss dpo")
    if args.critic not in (None, "head") and not Path(args.critic).is_dir():
        raise UsageError(critic=args.critic, hint="--critic is `head`, or names a folder like --model")
    if args.critic is None and (args.critic_clip is not None or args.critic_pretrain):
        raise UsageError(hint="--critic-clip and --critic-pretrain need --critic")
    if (args.denominator == "constant") != (args.denominator_length is not None):
        raise UsageError(hint="--denominator constant and --denominator-length N go together")
    if args.label_smoothing is not None and args.label_smoothing >= 0.5:
        raise UsageError(label_smoothing=args.label_smoothing, hint="at .5 a preference says nothing")


def _settings(args: argparse.Namespace) -> Settings:
    from tracestore.train.credit import choose
    from tracestore.train.credit.terms import check_terms
    from tracestore.train.critic import CriticSettings
    from tracestore.train.filling import Filling
    from tracestore.train.loader import Reading
    from tracestore.train.loop import Settings
    from tracestore.train.losses import check_loss
    from tracestore.train.losses.denominators import Denominator

    choose(args.credit)
    check_terms(dict(args.reward_term))
    check_loss(args.loss)
    return Settings(
        credit=args.credit,
        reward_terms=dict(args.reward_term),
        objective=_objective(args),
        denominator=Denominator(args.denominator, args.denominator_length or 1),
        old_logprobs=args.old_logprobs,
        importance_cap=args.importance_cap,
        critic=None
        if args.critic is None
        else CriticSettings(
            lr=args.critic_lr,
            clip=args.critic_clip,
            epochs=args.critic_epochs,
            pretrain_steps=args.critic_pretrain,
        ),
        steps=args.steps,
        reading=Reading(
            seed=args.seed,
            epochs=args.epochs,
            replacement=args.replacement,
            max_reuse=args.max_reuse,
            follow=args.follow,
            idle_s=args.idle,
        ),
        filling=Filling(
            groups_per_step=args.groups_per_step, max_tokens_per_step=args.max_tokens, refill=args.refill
        ),
        lr=args.lr,
        schedule=args.schedule,
        warmup_steps=args.warmup,
        weight_decay=args.weight_decay,
        grad_clip=args.grad_clip,
        micro_batch_tokens=args.micro_batch_tokens,
        policy_version=args.policy_version,
        max_staleness=args.max_staleness,
        stop_at_drift=args.stop_at_drift,
        compute_dtype="bfloat16" if args.dtype == "bfloat16" else None,
        checkpoint_every=args.checkpoint_every,
    )


def _objective(args: argparse.Namespace) -> Objective:
    from tracestore.train.losses.base import Clip, Objective

    objective = Objective(
        loss=args.loss,
        kl_weight=args.kl_weight or 0.0,
        kl=args.kl,
        entropy_weight=args.entropy_weight or 0.0,
        beta=args.beta,
        label_smoothing=args.label_smoothing or 0.0,
    )
    if args.clip_low is None and args.clip_high is None:
        return objective
    usual = objective.bounds
    low = usual.eps_low if args.clip_low is None else args.clip_low
    return replace(objective, clip=Clip(low, usual.eps_high if args.clip_high is None else args.clip_high))


class _Recorder:
    """A sink that posts what was trained to a store. What a store refuses (a deleted episode) is counted: the
    step has been taken either way."""

    def __init__(self, store: Store, project: str) -> None:
        self._store = store
        self._project = project
        self.stored = 0
        self.problems: dict[str, int] = {}

    def __call__(self, records: Sequence[Consumed]) -> None:
        from tracestore.wire.consumption import Consumption
        from tracestore.wire.encode import encode

        events = [Consumption(**asdict(record)) for record in records]
        for outcome in self._store.ingest(self._project, [(event, encode(event)) for event in events]):
            if outcome.status in ("stored", "duplicate"):
                self.stored += 1
            else:
                problem = outcome.problem or outcome.status
                self.problems[problem] = self.problems.get(problem, 0) + 1


def _step_line(metrics: StepMetrics) -> str:
    cost = (
        f"{metrics.trained_tokens:,} of {metrics.tokens:,} tokens trained in {metrics.seconds:.1f} s"
        f" ({metrics.tokens_per_s:,.0f}/s)"
    )
    clipped = "" if metrics.clip_fraction is None else f"  clipped {metrics.clip_fraction:.1%}"
    if metrics.preferred is not None:
        clipped = f"  preferred {metrics.preferred:.1%}"
    drift = "" if metrics.max_logprob_diff is None else f"  logprob diff {metrics.max_logprob_diff:.2e}"
    values = "critic alone"
    if metrics.loss is not None and metrics.grad_norm is not None:
        values = f"loss {metrics.loss:+.6f}  grad norm {metrics.grad_norm:.4f}{clipped}{drift}"
    if metrics.value_loss is not None:
        values += f"  value loss {metrics.value_loss:.4f}"
    return f"step {metrics.step}  {values}  {cost}"


def _facts(trained: Trained, *, manifest_hash: str) -> dict[str, Any]:
    drifts = [m.max_logprob_diff for m in trained.metrics if m.max_logprob_diff is not None]
    return {
        "run": trained.run,
        "steps": len(trained.metrics),
        "losses": [m.loss for m in trained.metrics],
        "tokens": sum(m.tokens for m in trained.metrics),
        "trained_tokens": sum(m.trained_tokens for m in trained.metrics),
        "zero_advantage_tokens": sum(m.zero_advantage_tokens for m in trained.metrics),
        "grad_norms": [m.grad_norm for m in trained.metrics],
        "max_logprob_diff": max(drifts, default=None),
        "flattened_rows": trained.rows_reasons,
        "notes": trained.notes,
        "checkpoint": None if trained.checkpoint is None else str(trained.checkpoint),
        "manifest_hash": manifest_hash,
    }
