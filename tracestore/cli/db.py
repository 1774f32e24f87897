"""`tracestore db`: bring a database up to date, check its schema, say what it holds, delete from it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracestore.cli import deletion
from tracestore.cli.common import (
    Subparsers,
    add_db_flag,
    print_facts,
    print_json_line,
    print_line,
    verb_parser,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "db",
        help="bring a database up to date, check it, count what it holds",
        epilog="example:\n  tracestore db upgrade --db sqlite:///tracestore.db",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions: Subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, help_ in (
        ("upgrade", "make the schema, or bring it up to date; the rows stay"),
        ("check", "compare the schema with the declared one; exit code 1 where they differ"),
        ("stats", "count what the database holds, over all projects"),
    ):
        add_db_flag(verb_parser(actions, name, help=help_, example=f"tracestore db {name}"))
    deletion.add_parser(actions)


def run(args: argparse.Namespace) -> int:
    if args.action == "delete":
        return deletion.run(args)
    if args.action == "upgrade":
        return _upgrade(args)
    return _check(args) if args.action == "check" else _stats(args)


def _upgrade(args: argparse.Namespace) -> int:
    from tracestore_migrations import current, upgrade

    with _engine(args, create=True) as engine:
        before = current(engine)
        upgrade(engine)
        print_facts({"revision_before": before, "revision": current(engine)}, args=args)
    return 0


def _check(args: argparse.Namespace) -> int:
    from tracestore_migrations import check, current

    with _engine(args, create=False) as engine:
        revision, differences = current(engine), check(engine)
    if args.json:
        print_json_line({"revision": revision, "differences": differences})
    else:
        for difference in differences:
            print_line(difference)
        print_line(f"revision {revision}: {len(differences)} differences from the declared schema")
    return 1 if differences else 0


def _stats(args: argparse.Namespace) -> int:
    from tracestore.store import schema
    from tracestore.store.stats import stats

    with _engine(args, create=False) as engine, engine.connect() as connection:
        schema.require(connection)
        print_facts(stats(connection), args=args)
    return 0


@contextmanager
def _engine(args: argparse.Namespace, *, create: bool) -> Iterator[Engine]:
    from tracestore.store.engine import connect

    engine = connect(args.db, create=create)
    try:
        yield engine
    finally:
        engine.dispose()
