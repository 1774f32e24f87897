"""`tracestore sql`: one SELECT over the views -> a table, CSV or JSON; without one, the views themselves."""

from __future__ import annotations

import argparse
import math
import re
import sys
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    positive_number,
    print_json_line,
    print_line,
    print_table,
    verb_parser,
    whole_number,
)

if TYPE_CHECKING:
    from tracestore.store.duck import SqlResult

MAX_ROWS = 10_000
TIMEOUT_S = 60.0
_CSV_SPECIAL = re.compile(r'[",\r\n]')


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "sql",
        help="answer one SELECT over the views of a project; without one, list the views",
        example='tracestore sql "SELECT role, count(*) AS messages FROM messages GROUP BY role"',
    )
    add_store_flags(parser)
    parser.add_argument(
        "query", nargs="?", metavar="SELECT", help="one SELECT (default: list the views and their columns)"
    )
    parser.add_argument("--csv", action="store_true", help='CSV: NULL is nothing, an empty text is ""')
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


def run(args: argparse.Namespace) -> int:
    from tracestore.store import schema
    from tracestore.store.duck import run_sql
    from tracestore.store.engine import connect

    if args.json and args.csv:
        raise UsageError(hint="--json or --csv, not both")
    engine = connect(args.db, create=False)
    try:
        with engine.connect() as connection:
            schema.require(connection)
            views = schema.view_columns(connection) if args.query is None else {}
    finally:
        engine.dispose()
    if args.query is None:
        _print_views(views, args)
        return 0
    result = run_sql(args.db, args.project, args.query, limit_rows=args.max_rows, timeout_s=args.timeout)
    if args.json:
        _print_json(result)
    elif args.csv:
        print_line(",".join(map(_csv, result.columns)))
        for row in result.rows:
            print_line(",".join(map(_csv, row)))
    else:
        print_table(result.columns, result.rows)
    if result.truncated and not args.json:
        # Not a note for people alone: whoever reads the rows must learn that some are missing.
        sys.stderr.write(f"tracestore: only the first {args.max_rows} rows; more with --max-rows\n")
    return 0


def _print_views(views: dict[str, list[str]], args: argparse.Namespace) -> None:
    if args.json:
        print_json_line(views)
        return
    for view, columns in views.items():
        print_line(f"{view}\n    {', '.join(columns)}")


def _print_json(result: SqlResult) -> None:
    """One object. Rows are arrays, since two columns may have one name."""
    rows = [[_jsonable(value) for value in row] for row in result.rows]
    print_json_line({"columns": list(result.columns), "rows": rows, "truncated": result.truncated})


def _jsonable(value: Any) -> Any:
    """Numbers that are not finite, decimals, times and bytes as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _csv(value: Any) -> str:
    """A field as PostgreSQL writes it: NULL and the empty text differ."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(_jsonable(value))
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return '"' + text.replace('"', '""') + '"' if not text or _CSV_SPECIAL.search(text) else text
