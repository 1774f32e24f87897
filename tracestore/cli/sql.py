"""`tracestore sql`: one SELECT over the views -> a table or a file; without one, a shell or the views."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    positive_number,
    print_json_line,
    print_line,
    table,
    verb_parser,
    whole_number,
)

if TYPE_CHECKING:
    from tracestore.store.duck import Source, SqlAnswer

FORMATS = ("table", "json", "csv", "arrow", "parquet")
_BINARY = ("arrow", "parquet")
MAX_ROWS = 10_000
TIMEOUT_S = 60.0
MEMORY_MB = 1024

Views = dict[str, list[str]]


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "sql",
        help="answer one SELECT over the views of a project; without one, open a shell or list the views",
        example='tracestore sql "SELECT role, count(*) AS messages FROM messages GROUP BY role"',
    )
    add_store_flags(parser)
    parser.add_argument(
        "query",
        nargs="?",
        metavar="SELECT",
        help="one SELECT (default: on a terminal a shell, else the views and their columns)",
    )
    parser.add_argument(
        "--parquet",
        metavar="DIR",
        type=Path,
        help="ask the views that `tracestore db parquet` wrote, instead of the database",
    )
    parser.add_argument(
        "--shards",
        metavar="DIR",
        type=Path,
        help="ask an export instead of the database; its one view is `samples`",
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help='how rows are written (default: what --output ends in, else table); CSV: NULL is nothing, "" an'
        " empty text",
    )
    parser.add_argument("--output", metavar="FILE", type=Path, help="write there, not to stdout")
    parser.add_argument(
        "--max-rows",
        metavar="N",
        type=whole_number(least=0),
        default=MAX_ROWS,
        help=f"rows to give (default: {MAX_ROWS})",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=positive_number,
        default=TIMEOUT_S,
        help="give up after (default: 60)",
    )
    parser.add_argument(
        "--memory",
        metavar="MB",
        type=whole_number(least=64),
        default=MEMORY_MB,
        help=f"memory that the query may take (default: {MEMORY_MB})",
    )


def run(args: argparse.Namespace) -> int:
    format_ = _format(args)
    if args.parquet and args.shards:
        raise UsageError(hint="--parquet or --shards, not both")
    if args.shards:
        from tracestore.shards.files import Folder
        from tracestore.shards.log import is_followed

        if is_followed(Folder(args.shards)):
            hint = "some rows in its files count no more: export the snapshot without --follow and ask that"
            raise UsageError(folder=str(args.shards), hint=hint)
    if args.query is not None:
        return _answer(args, args.query, format_=format_)
    views = _views(args)
    if sys.stdin.isatty() and sys.stdout.isatty() and not args.json:
        from tracestore.cli.sql_shell import shell

        return shell(views, answer=lambda query: _answer(args, query, format_=format_))
    if args.json:
        print_json_line(views)
    else:
        print_views(views)
    return 0


def print_views(views: Views) -> None:
    for view, columns in views.items():
        print_line(f"{view}\n    {', '.join(columns)}")


def _format(args: argparse.Namespace) -> str:
    """The format asked for, by a flag or by the name of the file."""
    if args.json:
        if args.format not in (None, "json"):
            raise UsageError(hint=f"--json or --format {args.format}, not both")
        return "json"
    suffix = args.output.suffix[1:] if args.output else ""
    found: str = args.format or (suffix if suffix in FORMATS else "table")
    if found in _BINARY and not args.output and sys.stdout.isatty():
        raise UsageError(format=found, hint="it is not for terminals: add --output FILE")
    return found


def _views(args: argparse.Namespace) -> Views:
    """What can be asked, as `view: columns`."""
    if args.parquet:
        return _views_of_parquet(args.parquet)
    if args.shards:
        from tracestore.store import duck

        limits = duck.SqlLimits(max_rows=0)
        found = duck.SqlQuery(duck.shards(args.shards), "FROM samples", limits=limits).answer()
        return {"samples": list(duck.result_of(found).columns)}
    from tracestore.store import schema
    from tracestore.store.engine import connect

    engine = connect(args.db, create=False)
    try:
        with engine.connect() as connection:
            schema.require(connection)
            return schema.view_columns(connection)
    finally:
        engine.dispose()


def _views_of_parquet(folder: Path) -> Views:
    from pyarrow import parquet

    firsts = {path.name: next(path.rglob("*.parquet"), None) for path in sorted(folder.glob("*/"))}
    return {name: parquet.read_schema(file).names for name, file in firsts.items() if file is not None}


def _source(args: argparse.Namespace) -> Source:
    from tracestore.store import duck, schema
    from tracestore.store.engine import connect

    if args.parquet:
        return duck.parquet(args.parquet, args.project)
    if args.shards:
        return duck.shards(args.shards)
    # The child says as little as it can of a database; whoever has a command line may know more.
    engine = connect(args.db, create=False)
    try:
        with engine.connect() as connection:
            schema.require(connection)
    finally:
        engine.dispose()
    return duck.database(args.db, args.project)


def _answer(args: argparse.Namespace, query: str, *, format_: str) -> int:
    """Ask, and write what comes back."""
    from tracestore.store.duck import SqlLimits, SqlQuery

    limits = SqlLimits(max_rows=args.max_rows, timeout_s=args.timeout, memory_mb=args.memory)
    # To lay out a table takes no types, and to read Arrow takes longer than a small query.
    as_ = "json" if format_ == "table" else format_
    found = SqlQuery(_source(args), query, limits=limits, as_=as_).answer()
    body = _text_table(found) if format_ == "table" else found.body
    if format_ == "json":
        body += b"\n"
    if args.output:
        _write_whole(args.output, body)
    elif format_ in _BINARY:
        sys.stdout.buffer.write(body)
    else:
        sys.stdout.write(body.decode("utf-8"))
    if found.truncated and format_ != "json":
        # Not a note for people alone: whoever reads the rows must learn that some are missing.
        more = "; more with --max-rows" if found.num_rows == args.max_rows else ": they are too large"
        sys.stderr.write(f"tracestore: only the first {found.num_rows} rows{more}\n")
    return 0


def _text_table(answer: SqlAnswer) -> bytes:
    found = json.loads(answer.body)
    return (table(found["columns"], found["rows"]) + "\n").encode("utf-8")


def _write_whole(file: Path, body: bytes) -> None:
    """All of it or nothing: a file that is half there looks like an answer."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        part.write_bytes(body)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
