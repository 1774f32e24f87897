"""`tracestore convert`: an export -> files for other trainers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    print_facts,
    progress,
    verb_parser,
    whole_number,
)

if TYPE_CHECKING:
    from tracestore.shards.row import Row
    from tracestore.shards.views import Ownership
    from tracestore.train.credit.base import TokenCredit

TARGETS = ("flat", "sft", "preference", "prime-rl")


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "convert",
        help="write an export's samples for other trainers",
        example="tracestore convert export/ --to flat --advantages shared --out flat/",
    )
    parser.add_argument(
        "export", metavar="EXPORT", help="folder that `tracestore export` wrote, or its URL (http, s3)"
    )
    parser.add_argument(
        "--to",
        choices=TARGETS,
        required=True,
        help="flat: Parquet, one sample a row (verl, TRL, datasets); sft: ids and labels; preference: pairs"
        " of candidates; prime-rl: JSON lines",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="new or empty folder for the files")
    parser.add_argument(
        "--advantages",
        metavar="RULE",
        help="credit rule whose advantages are written (flat: optional, prime-rl: needed)",
    )
    parser.add_argument(
        "--pass-k",
        metavar="K",
        type=whole_number(least=1),
        help="with --advantages pkpo: of how many attempts at a task the best one counts",
    )


def run(args: argparse.Namespace) -> int:
    from tracestore.shards.read import open_export
    from tracestore_exporters.convert import convert

    export = open_export(args.export)
    rule = args.advantages
    k = args.pass_k
    if (rule == "pkpo") != (k is not None):
        raise UsageError(advantages=rule, hint="--advantages pkpo and --pass-k K go together")
    credit = None if rule is None else _credit(rule, export.manifest.ownership, pass_k=k)
    rule = rule if k is None else f"{rule} k={k}"
    with progress("convert", args=args, total=export.manifest.rows) as show:
        done = convert(export, Path(args.out), to=args.to, rule=rule, credit=credit, progress=show)
    print_facts({"out": args.out, "to": args.to} | asdict(done), args=args)
    return 0


def _credit(rule: str, ownership: Ownership, *, pass_k: int | None) -> Callable[[Row], TokenCredit]:
    """The advantages that our trainer gives at step 0."""
    from tracestore.train.credit import advantages, check_rule
    from tracestore.train.credit.base import Context, combine

    check_rule(rule)
    context = Context(pass_k=pass_k)
    return lambda row: combine(row, advantages(row, rule=rule, context=context), ownership=ownership)
