"""`tracestore db parquet`: every view as Parquet files, brought up to date by each run."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tracestore.cli.common import Subparsers, add_db_flag, opened_store, print_facts, progress, verb_parser


def add_parser(actions: Subparsers) -> None:
    parser = verb_parser(
        actions,
        "parquet",
        help="write every view to DIR/VIEW/project-N/part-*.parquet; a later run writes what has changed",
        example="tracestore db parquet analysis",
    )
    parser.add_argument("folder", metavar="DIR", help="an empty folder, or one that this verb made")
    parser.add_argument("--project", metavar="NAME", help="one project (default: all)")
    add_db_flag(parser)


def run(args: argparse.Namespace) -> int:
    from tracestore.store import query
    from tracestore.store.parquet import export_parquet

    with opened_store(args, create=False) as store:
        if args.project is not None:
            with store.read() as connection:
                query.require_project(connection, args.project)
        with progress("parquet", args=args, unit="parts") as advance:
            written = export_parquet(
                store,
                Path(args.folder),
                projects=None if args.project is None else [args.project],
                heard=lambda done, total: advance(1 if done else 0),
            )
    print_facts(asdict(written), args=args)
    return 0
