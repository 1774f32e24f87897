"""What every verb shares: flags, errors, tables, progress. A verb file imports nothing heavier at its top.

A verb is a module with `add_parser(subparsers)` and `run(args) -> int` (0 done, 1 found a problem or failed,
2 asked for wrongly). Results go to stdout, progress and errors to stderr; with `--json` stdout holds JSON
lines and nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tracestore.store.store import Store

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

DEFAULT_DB = "sqlite:///tracestore.db"
DEFAULT_PROJECT = "default"
_UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Verb(Protocol):
    """A module of this package that implements one verb."""

    def add_parser(self, subparsers: Subparsers) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


class UsageError(TracestoreError):
    """The command was asked for wrongly."""

    exit_code = 2


class MissingExtra(TracestoreError):
    """This verb needs packages that are not installed."""


def verb_parser(subparsers: Subparsers, name: str, *, help: str, example: str) -> argparse.ArgumentParser:  # noqa: A002
    """A parser for one verb, with `--json` and an example line at the end of its help.

    Args:
        help: one line, shown in the list of verbs and on top of the verb's own help.
        example: one command line that works as it stands, without "$".
    """
    parser = subparsers.add_parser(
        name,
        help=help,
        description=help,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="JSON lines on stdout, for machines")
    return parser


def add_export(parser: argparse.ArgumentParser) -> None:
    """The export that a verb reads."""
    parser.add_argument(
        "export", metavar="EXPORT", help="folder that `tracestore export` wrote, or its URL (http, s3)"
    )


def add_reward_terms(parser: argparse.ArgumentParser) -> None:
    """Costs that stand beside the rewards, for verbs that give credit."""
    parser.add_argument(
        "--reward-term",
        metavar="NAME=WEIGHT",
        type=weighted_name,
        action="append",
        default=[],
        help="add a cost to each episode's reward: length, tokens, critical_steps or calls, times the weight",
    )


def add_db_flag(parser: argparse.ArgumentParser) -> None:
    """`--db URL`, the same for every verb that opens a store."""
    parser.add_argument(
        "--db",
        metavar="URL",
        default=os.environ.get("TRACESTORE_DB", DEFAULT_DB),
        help=f"database (default: $TRACESTORE_DB, else {DEFAULT_DB})",
    )


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """`--db URL` and `--project NAME`, for the verbs that look into one project."""
    add_db_flag(parser)
    parser.add_argument(
        "--project", metavar="NAME", default=DEFAULT_PROJECT, help="project (default: default)"
    )


def add_blobs_flag(parser: argparse.ArgumentParser) -> None:
    """`--blobs PLACE`, for the verbs that reach payloads as `blobs_place` finds them."""
    parser.add_argument(
        "--blobs",
        metavar="PLACE",
        help="where the server keeps the payloads (default: FILE.blobs beside a SQLite file, where it is"
        " there)",
    )


def blobs_place(args: argparse.Namespace) -> str | None:
    """What `--blobs` names, else the folder beside a SQLite file, if any blob was ever put there."""
    from tracestore.store.blobs import default_blobs

    if args.blobs is not None:
        return str(args.blobs)
    place = default_blobs(args.db)
    return place if place is not None and Path(place).is_dir() else None


def text_of(file: str) -> str:
    """The text of a file that a person wrote.

    Raises:
        UsageError: it cannot be read, or is no text.
    """
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(file=file, reason=str(error), hint="name a file of JSON") from error


def whole_number(*, least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: an integer between the two, both included."""
    bounds = f"at least {least}" if most is None else f"between {least} and {most}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text} is not {bounds}")
        return value

    return read


def positive_number(text: str) -> float:
    """An argparse type: a finite number above zero."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number above 0")
    return value


def weighted_name(text: str) -> tuple[str, float]:
    """NAME=NUMBER, for argparse."""
    name, equals, weight = text.partition("=")
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not name or not equals or not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=NUMBER, such as length=-0.001")
    return name, number


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import what the extra `name` brings; when it is not installed, say how to install it.

    Example: `with extra("serve"): from tracestore_api.serve import serve`
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        root = (missing.name or "").partition(".")[0]
        if root.startswith("tracestore"):
            raise
        raise MissingExtra(module=root, hint=f'pip install "tracestore[{name}]"') from missing


def share_cpus() -> None:
    """For verbs that compute; before torch is loaded, which reads it once.

    Threads that spin while they wait slow a busy machine down tenfold. What the caller has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@contextmanager
def store_at(url: str, *, create: bool = True) -> Iterator[Store]:
    """The store at a URL, closed at the end. Without `create`, a missing database is an error."""
    from tracestore_migrations import open_store

    store = open_store(url, create=create)
    try:
        yield store
    finally:
        store.close()


def opened_store(args: argparse.Namespace, *, create: bool = True) -> AbstractContextManager[Store]:
    """The store that `--db` names, as `store_at` gives it."""
    return store_at(args.db, create=create)


@contextmanager
def opened_engine(args: argparse.Namespace, *, create: bool) -> Iterator[Engine]:
    """The database that `--db` names, whatever revision it is at."""
    from tracestore.store.engine import connect

    engine = connect(args.db, create=create)
    try:
        yield engine
    finally:
        engine.dispose()


def require_project(store: Store, args: argparse.Namespace) -> None:
    """Refuse a `--project` to which nothing was ever posted: an empty answer would look like success."""
    from tracestore.store import query

    with store.read() as connection:
        query.require_project(connection, args.project)


def print_line(text: str = "") -> None:
    """One line on stdout."""
    sys.stdout.write(text + "\n")


def print_json_line(value: Any) -> None:
    """One JSON value on a line of stdout, flushed. NaN and infinities are refused: they are not JSON."""
    sys.stdout.write(json.dumps(value, allow_nan=False, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def note(text: str, *, args: argparse.Namespace) -> None:
    """One line for a person, on stderr; nothing with `--json`."""
    if not args.json:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters, direction marks and lone surrogates as escapes.

    Recorded text is whatever a model or a tool wrote; it must not move the reader's cursor.
    """
    return _UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)


def cell(value: object) -> str:
    """One value as a table shows it. Unknown is NULL."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return printable(str(value))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned text, numbers to the right, never truncated. No newline at the end."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    is_number = [
        bool(rows) and all(value is None or isinstance(value, (int, float)) for value in column)
        for column in zip(*rows, strict=True)
    ] or [False] * len(columns)

    def line(texts: Sequence[str]) -> str:
        parts = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, is_number, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join([line(columns), line(["-" * width for width in widths]), *map(line, cells)])


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None
) -> None:
    """A table on stdout, with a title line above it if given."""
    if title is not None:
        print_line(title)
    print_line(table(columns, rows))


def print_facts(facts: Mapping[str, object], *, args: argparse.Namespace) -> None:
    """A verb's result: one JSON object with `--json`, else a two-column table. Nested values show as JSON."""
    if args.json:
        print_json_line(facts)
        return
    rows = [
        (name, json.dumps(value) if isinstance(value, (dict, list)) else cell(value))
        for name, value in facts.items()
    ]
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print_line(f"{name.ljust(width)}  {value}")


@contextmanager
def progress(
    title: str, *, args: argparse.Namespace, total: float | None = None, unit: str = "items"
) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr for anything long; call what it yields with the amount done since last time.

    Silent when stderr is no terminal and with `--json`. An unknown total (None) shows a moving bar. Of the
    unit "bytes" the amounts are shown as kB, MB, GB.

    Example: `with progress("export", args=args, total=len(groups)) as advance: ...; advance(1)`
    """
    if args.json or not sys.stderr.isatty():
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if unit == "bytes" else MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda amount: bar.advance(task, amount)
