"""`tracestore db retain`: what rules of retention say is due, deleted; by cron, or by the server itself."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    add_blobs_flag,
    add_db_flag,
    note,
    opened_store,
    print_facts,
    text_of,
    verb_parser,
)
from tracestore.cli.deletion import blobs_of, tell

if TYPE_CHECKING:
    from tracestore.store.retain import Retention
    from tracestore.store.store import Store


def add_parser(actions: Subparsers) -> None:
    parser = verb_parser(
        actions,
        "retain",
        help="delete what a file of rules says is due: episodes, their content alone, unused blobs",
        example="tracestore db retain retention.json --dry-run",
    )
    add_db_flag(parser)
    parser.add_argument(
        "rules",
        metavar="FILE",
        help='JSON array of rules, as {"project": "*", "older_than": "30d", "keep_graded": true} with'
        ' "take": "content" or "blobs" for less than whole episodes',
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and delete nothing")
    add_blobs_flag(parser)


def run(args: argparse.Namespace) -> int:
    from tracestore.store import delete
    from tracestore.store.retain import retain

    rules, now = rules_of(args.rules), time.time_ns()
    with opened_store(args, create=False) as store:
        if args.dry_run:
            _tell_due(store, rules, now, args)
            return 0
        count = 0
        done = retain(store, rules, now=now, blobs=blobs_of(args), progress=lambda one: tell(one, args))
        for project, deletion in done:
            count += 1
            print_facts({"project": project, **delete.facts(deletion)}, args=args)
        if not count:
            note("nothing is due", args=args)
    return 0


def rules_of(file: str) -> tuple[Retention, ...]:
    """The rules in a file."""
    from tracestore.store.retain import read_retention

    return read_retention(text_of(file))


def _tell_due(store: Store, rules: tuple[Retention, ...], now: int, args: argparse.Namespace) -> None:
    from tracestore.store.retain import due, unused_blobs

    blobs = blobs_of(args)
    for one in due(store, rules, now=now):
        names: list[str] = []
        if one.rule.take == "blobs" and blobs is not None:
            names = unused_blobs(store, one, blobs, now=now)
        facts = {"project": one.project, "rule": one.rule.name, "episodes": list(one.episode_ids)}
        if names or one.episode_ids:
            print_facts({**facts, "blobs": names}, args=args)
