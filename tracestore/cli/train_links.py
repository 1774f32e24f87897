"""`tracestore train-links`: the links between frozen agents, trained on the latents that they handed on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    extra,
    note,
    positive_number,
    print_facts,
    print_json_line,
    progress,
    share_cpus,
    verb_parser,
    whole_number,
)

if TYPE_CHECKING:
    from tracestore.train.link_loop import LinkStep


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "train-links",
        help="train the links between frozen agents on the latents that they handed on (RecursiveMAS)",
        example="tracestore train-links latents --model planner --model solver --out links",
    )
    parser.add_argument(
        "latents",
        metavar="LATENTS",
        type=Path,
        help="folder that `tracestore export --format latents` wrote",
    )
    parser.add_argument(
        "--model",
        metavar="FOLDER",
        type=Path,
        action="append",
        default=[],
        help="frozen model of an agent, once for each; the recording knows it by the hash of its weights",
    )
    parser.add_argument(
        "--links",
        metavar="FOLDER",
        type=Path,
        help="links to begin with, AGENT.safetensors for each agent that hands latents on (default: fresh)",
    )
    parser.add_argument(
        "--answer",
        metavar="MEMBER",
        default="answer",
        help="member of the recorded task that the agents should answer with: text, or token ids"
        " (default: answer)",
    )
    for name, what in (
        ("inner", "on the inner loss, 1 - cos(R_in(H), Emb(y)) of recorded latents"),
        ("outer", "on the outer loss after them, cross entropy of y through all rounds"),
    ):
        parser.add_argument(
            f"--{name}-steps",
            metavar="N",
            type=whole_number(least=0),
            default=1,
            help=f"optimizer steps {what} (default: 1)",
        )
    parser.add_argument(
        "--lr", type=positive_number, default=5e-4, help="AdamW learning rate (default: 5e-4)"
    )
    parser.add_argument(
        "--batch",
        metavar="N",
        type=whole_number(least=1),
        default=4,
        help="episodes of a step (default: 4)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="of fresh links and the order of episodes (default: 0)",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder for metrics.jsonl and checkpoint/ (default: nowhere)"
    )
    parser.add_argument(
        "--checkpoint-every",
        metavar="N",
        type=whole_number(least=1),
        help="steps (default: at the end alone)",
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")


def run(args: argparse.Namespace) -> int:
    _check(args)
    from tracestore.shards.latents import read_latents

    manifest, episodes = read_latents(args.latents)
    share_cpus()
    with extra("train"):
        from tracestore.train.checkpoint import checkpoint_in
        from tracestore.train.link_loop import (
            LinkSettings,
            agents_in,
            count_replayed,
            links_for,
            train_links,
        )
        from tracestore.train.links import link_hash
        from tracestore.train.model import library_bars
    settings = LinkSettings(
        inner_steps=args.inner_steps,
        outer_steps=args.outer_steps,
        lr=args.lr,
        batch=args.batch,
        answer=args.answer,
        seed=args.seed,
        checkpoint_every=args.checkpoint_every,
    )
    resume = checkpoint_in(args.out) if args.resume else None
    with ExitStack() as stack:
        stack.enter_context(library_bars(shown=not args.json and sys.stderr.isatty()))
        agents, encode = agents_in(args.model)
        folder = args.links if resume is None else resume.folder
        links = links_for(episodes, agents, folder=folder, seed=args.seed)
        for link in links.values():
            link.to(next(iter(agents.values())).embed([]).device)
        same = None if resume is not None else count_replayed(episodes, agents, links)
        if args.out is None:
            note("no --out: the trained links are not kept", args=args)
        trained = train_links(
            episodes,
            agents,
            links,
            settings=settings,
            latents=manifest.sha256,
            encode=encode,
            out=args.out,
            resume=resume,
            on_step=_shown(args, stack, total=settings.steps),
        )
    facts = {
        "episodes": manifest.episodes,
        "transfers": manifest.transfers,
        "replayed": same,
        "steps": len(trained.steps),
        "losses": {
            name: [step.loss for step in trained.steps if step.objective == name]
            for name in ("inner", "outer")
        },
        "links": {name: link_hash(link) for name, link in sorted(trained.links.items())},
        "checkpoint": None if trained.checkpoint is None else str(trained.checkpoint),
    }
    print_facts(facts, args=args)
    return 0


def _check(args: argparse.Namespace) -> None:
    if not args.model:
        raise UsageError(hint="--model FOLDER names the frozen model of an agent, once for each")
    for folder in args.model:
        if not folder.is_dir():
            raise UsageError(model=str(folder), hint="--model names a folder with config.json and weights")
    if args.links is not None and not args.links.is_dir():
        raise UsageError(links=str(args.links), hint="--links names a folder with AGENT.safetensors")
    if not args.inner_steps and not args.outer_steps:
        raise UsageError(hint="--inner-steps or --outer-steps: at least one step")
    for name in ("resume", "checkpoint_every"):
        if getattr(args, name) and args.out is None:
            raise UsageError(hint=f"--{name.replace('_', '-')} needs --out")
    if args.resume and args.links is not None:
        raise UsageError(hint="--resume goes on with the links of the checkpoint: leave --links out")


def _shown(args: argparse.Namespace, stack: ExitStack, *, total: int) -> Callable[[LinkStep], None]:
    advance = stack.enter_context(progress("train links", args=args, total=total))

    def on_step(step: LinkStep) -> None:
        advance(1)
        if args.json:
            print_json_line(asdict(step))
        else:
            note(
                f"step {step.step}  {step.objective} loss {step.loss:.6f}  grad norm {step.grad_norm:.4f}",
                args=args,
            )

    return on_step
