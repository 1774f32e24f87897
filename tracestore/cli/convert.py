"""`tracestore convert`: an export -> files for other trainers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import Subparsers, print_facts, progress, verb_parser

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


def run(args: argparse.Namespace) -> int:
    from tracestore.shards.read import open_export
    from tracestore_exporters.convert import convert

    export = open_export(args.export)
    rule = args.advantages
    credit = None if rule is None else _credit(rule, export.manifest.ownership)
    with progress("convert", args=args, total=export.manifest.rows) as show:
        done = convert(export, Path(args.out), to=args.to, rule=rule, credit=credit, progress=show)
    print_facts({"out": args.out, "to": args.to} | asdict(done), args=args)
    return 0


def _credit(rule: str, ownership: Ownership) -> Callable[[Row], TokenCredit]:
    """The advantages that our trainer gives at step 0."""
    from tracestore.train.credit import advantages, check_rule
    from tracestore.train.credit.base import Context, combine

    check_rule(rule)
    return lambda row: combine(row, advantages(row, rule=rule, context=Context()), ownership=ownership)
