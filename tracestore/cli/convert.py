"""`tracestore convert`: an export -> files for other trainers."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_export,
    add_reward_terms,
    print_facts,
    progress,
    verb_parser,
)

if TYPE_CHECKING:
    from tracestore.shards.read import Export
    from tracestore.shards.row import Row
    from tracestore.train.credit.base import TokenCredit

TARGETS = ("flat", "sft", "preference", "prime-rl")


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "convert",
        help="write an export's samples for other trainers",
        example="tracestore convert export/ --to flat --advantages shared --out flat/",
    )
    add_export(parser)
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
        help="credit rule whose advantages are written, such as shared or pkpo:k=4 (flat: optional, prime-rl:"
        " needed)",
    )
    add_reward_terms(parser)


def run(args: argparse.Namespace) -> int:
    from tracestore.shards.read import open_export
    from tracestore_exporters.convert import convert

    export = open_export(args.export)
    notes: Counter[str] = Counter()
    terms = dict(args.reward_term)
    if terms and args.advantages is None:
        raise UsageError(reward_terms=terms, hint="costs change advantages: name a rule, --advantages shared")
    credit = None if args.advantages is None else _credit(args.advantages, terms, export, notes)
    with progress("convert", args=args, total=export.manifest.rows) as show:
        done = convert(
            export,
            Path(args.out),
            to=args.to,
            rule=args.advantages,
            terms=terms,
            credit=credit,
            progress=show,
        )
    facts = vars(done) | {"left_out": dict(done.left_out), "notes": dict(notes)}
    print_facts({"out": args.out, "to": args.to} | facts, args=args)
    return 0


def _credit(
    rule: str, terms: Mapping[str, float], export: Export, notes: Counter[str]
) -> Callable[[Row], TokenCredit]:
    """The advantages that our trainer gives at step 0; `notes` is told what the rule counts on the way."""
    from tracestore.train.credit import advantages, counted
    from tracestore.train.credit.base import Context, combine
    from tracestore.train.credit.terms import check_terms

    check_terms(terms)
    context = Context(batch_counts=counted(export.rows(), rule=rule), reward_terms=terms)

    def credit(row: Row) -> TokenCredit:
        given = advantages(row, rule=rule, context=context)
        if row.part == 0:  # every part has the whole header: count its episodes once
            notes.update(given.notes)
        return combine(row, given, ownership=export.manifest.ownership)

    return credit
