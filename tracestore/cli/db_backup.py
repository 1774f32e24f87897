"""`tracestore db backup` and `restore`: a whole copy of a store that may be in use, and back."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from tracestore.cli.common import Subparsers, add_db_flag, note, print_facts, progress, verb_parser


def add_parsers(actions: Subparsers) -> None:
    parser = verb_parser(
        actions,
        "backup",
        help="copy a store to one SQLite file while the server writes, and check the copy",
        example="tracestore db backup monday.db",
    )
    parser.add_argument("file", metavar="FILE", help="where to; nothing is written over")
    parser.add_argument(
        "--blobs",
        metavar="PLACE",
        help="where the server keeps the payloads, which are copied to FILE.blobs (default: FILE.blobs beside"
        " the store; a bucket is named and not copied)",
    )
    add_db_flag(parser)
    parser = verb_parser(
        actions,
        "restore",
        help="make a store of a backup, in SQLite or PostgreSQL, where there is none yet",
        example="tracestore db restore monday.db --db sqlite:///again.db",
    )
    parser.add_argument("file", metavar="FILE", help="what `db backup` wrote; FILE.blobs comes along")
    parser.add_argument(
        "--blobs",
        metavar="FOLDER",
        help="a new folder for the payloads (default: FILE.blobs beside a SQLite store)",
    )
    add_db_flag(parser)


def run_backup(args: argparse.Namespace) -> int:
    from tracestore.store.backup import backup
    from tracestore.store.blobs import default_blobs

    place: str | None = args.blobs or default_blobs(args.db)
    bucket = place if place is not None and "://" in place else None
    if bucket is not None:
        note(f"the payloads in {bucket} are not copied: copy or version the bucket itself", args=args)
    folder = Path(place) if place is not None and bucket is None else None
    with _heard("backup", args) as heard:
        copied = backup(args.db, Path(args.file), blobs=folder, heard=heard)
    print_facts(asdict(copied) | {"blobs_not_copied": bucket}, args=args)
    return 0


def run_restore(args: argparse.Namespace) -> int:
    from tracestore.store.backup import restore

    with _heard("restore", args) as heard:
        blobs = None if args.blobs is None else Path(args.blobs)
        copied = restore(Path(args.file), args.db, blobs=blobs, heard=heard)
    print_facts(asdict(copied), args=args)
    return 0


@contextmanager
def _heard(title: str, args: argparse.Namespace) -> Iterator[Callable[[int, int], None]]:
    """What a copy tells, as a progress bar of percents."""
    with progress(title, args=args, total=100, unit="percent") as advance:
        done = 0.0

        def heard(copied: int, pages: int) -> None:
            nonlocal done
            now = 100 * copied / max(pages, 1)
            advance(now - done)
            done = now

        yield heard
