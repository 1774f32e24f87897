"""`tracestore convert`: an export -> files for other trainers."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import Subparsers, UsageError, print_facts, progress, verb_parser, whole_number

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
        help="of how many attempts the best counts (--advantages pkpo)",
    )


def run(args: argparse.Namespace) -> int:
    from tracestore.shards.read import open_export
    from tracestore_exporters.convert import convert

    if (args.advantages == "pkpo") != (args.pass_k is not None):
        raise UsageError(advantages=args.advantages, hint="--advantages pkpo and --pass-k K go together")
    export = open_export(args.export)
    notes: Counter[str] = Counter()
    credit = None if args.advantages is None else _credit(args, export.manifest.ownership, notes)
    rule = args.advantages if args.pass_k is None else f"{args.advantages}, k = {args.pass_k}"
    with progress("convert", args=args, total=export.manifest.rows) as show:
        done = convert(export, Path(args.out), to=args.to, rule=rule, credit=credit, progress=show)
    facts = vars(done) | {"left_out": dict(done.left_out), "notes": dict(notes)}
    print_facts({"out": args.out, "to": args.to} | facts, args=args)
    return 0


def _credit(
    args: argparse.Namespace, ownership: Ownership, notes: Counter[str]
) -> Callable[[Row], TokenCredit]:
    """The advantages that our trainer gives at step 0; `notes` is told what the rule counts on the way."""
    from tracestore.train.credit import advantages, check_rule
    from tracestore.train.credit.base import Context, combine

    check_rule(args.advantages)

    def credit(row: Row) -> TokenCredit:
        given = advantages(row, rule=args.advantages, context=Context(pass_k=args.pass_k))
        if row.part == 0:  # every part has the whole header: count its episodes once
            notes.update(given.notes)
        return combine(row, given, ownership=ownership)

    return credit
