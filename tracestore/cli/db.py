"""`tracestore db`: bring a database up to date, check it, measure, copy, export it, take data out of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tracestore.cli import db_backup, db_parquet, db_stats, deletion, redaction, retention
from tracestore.cli.common import (
    Subparsers,
    add_db_flag,
    note,
    opened_engine,
    print_facts,
    print_json_line,
    print_line,
    progress,
    verb_parser,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "db",
        help="bring a database up to date, check it, measure it, copy it",
        epilog="example:\n  tracestore db upgrade --db sqlite:///tracestore.db",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions: Subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, help_ in (
        (
            "upgrade",
            "make the schema, or bring it up to date; the rows stay; killed, it goes on when run again",
        ),
        ("check", "compare the schema with the declared one; exit code 1 where they differ"),
    ):
        add_db_flag(verb_parser(actions, name, help=help_, example=f"tracestore db {name}"))
    db_stats.add_parser(actions)
    db_backup.add_parsers(actions)
    db_parquet.add_parser(actions)
    deletion.add_parser(actions)
    redaction.add_parser(actions)
    retention.add_parser(actions)


def run(args: argparse.Namespace) -> int:
    return _ACTIONS[args.action](args)


def _upgrade(args: argparse.Namespace) -> int:
    from tracestore_migrations import current, upgrade
    from tracestore_migrations.migrate import Progress

    told: tuple[str, str] | None = None

    with opened_engine(args, create=True) as engine, progress("upgrade", args=args, unit="rows") as advance:
        before = current(engine)

        def heard(done: Progress) -> None:
            nonlocal told
            if before is not None and (done.revision, done.step) != told:
                told = done.revision, done.step
                note(f"to revision {done.revision}: {done.step}", args=args)
            advance(done.num_new_rows)

        upgrade(engine, heard=heard)
        after = current(engine)
    print_facts({"revision_before": before, "revision": after}, args=args)
    return 0


def _check(args: argparse.Namespace) -> int:
    from tracestore_migrations import check, current

    with opened_engine(args, create=False) as engine:
        revision, differences = current(engine), check(engine)
    if args.json:
        print_json_line({"revision": revision, "differences": differences})
    else:
        for difference in differences:
            print_line(difference)
        print_line(f"revision {revision}: {len(differences)} differences from the declared schema")
    return 1 if differences else 0


_ACTIONS: dict[str, Callable[[argparse.Namespace], int]] = {
    "upgrade": _upgrade,
    "check": _check,
    "stats": db_stats.run,
    "backup": db_backup.run_backup,
    "restore": db_backup.run_restore,
    "parquet": db_parquet.run,
    "delete": deletion.run,
    "redact": redaction.run,
    "retain": retention.run,
}
