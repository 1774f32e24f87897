"""`tracestore import`: trace files -> wire events -> a store, or a running server."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any

from tracestore.cli.common import (
    DEFAULT_PROJECT,
    Subparsers,
    UsageError,
    add_store_flags,
    note,
    opened_store,
    print_json_line,
    print_line,
    print_table,
    printable,
    progress,
    verb_parser,
)
from tracestore.importers.notes import MAX_REFUSED

if TYPE_CHECKING:
    from tracestore.cli.fidelity import Fidelity
    from tracestore.importers.items import Item
    from tracestore.importers.sources import Source
    from tracestore.store.store import Store

MAX_BATCH_EVENTS = 1_000
MAX_BATCH_BYTES = 8 * 1024 * 1024
_SHOWN_PROBLEMS = 20

Outcomes = list[tuple[str, str | None]]
"""(status, problem) of each event of a batch: stored, duplicate, conflict or error."""
Sink = Callable[[Sequence["Item"]], Outcomes]


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "import",
        help="read trace files into a store, or post them to a running server",
        example="tracestore import ~/.claude/projects --db sqlite:///tracestore.db",
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="*",
        help="file, folder, glob pattern or archive (zip, tar; gz, zst, bz2, xz) to read; - for stdin",
    )
    parser.add_argument(
        "--format",
        metavar="NAME",
        default="auto",
        help="auto (default): each file is recognised by its content; else a name of --list-formats",
    )
    parser.add_argument(
        "--list-formats", action="store_true", help="list the formats that can be read, and stop"
    )
    parser.add_argument(
        "--url",
        type=_server_url,
        help="post to this server instead of opening --db, e.g. http://127.0.0.1:8421; "
        "its key is $TRACESTORE_API_KEY",
    )
    add_store_flags(parser)
    # A server's key knows its project, so whether one is named makes a difference.
    parser.set_defaults(project=None)


def run(args: argparse.Namespace) -> int:
    from tracestore.importers import formats
    from tracestore.importers.sources import sources

    if args.list_formats:
        return _list_formats(args)
    if not args.paths:
        raise UsageError(hint="name a file, folder, glob pattern or archive, or - for stdin")
    if args.format != "auto":
        formats.named(args.format)
    done = Imported()
    notes = done.fidelity.notes
    found = list(sources(args.paths, notes=notes, stdin=sys.stdin.buffer))
    num_bytes = sum(source.size or 0 for source in found)
    with (
        _sink(args) as sink,
        progress("importing", args=args, total=num_bytes or None, unit="bytes") as advance,
    ):
        watched = [watch(source, advance) for source in found]
        for batch in batches(formats.read(watched, format=args.format, notes=notes)):
            done.add(batch, sink(batch))
    if not (notes.files or notes.num_refused):
        # A wrong folder must not look like success.
        where = ", ".join(args.paths)
        num = f"none of its {len(found):,} files is in a known format" if found else "there is no file in it"
        notes.refuse(where, f"{num} (--list-formats lists them)" if found else num)
    _report(done, args)
    return 1 if done.num_problems else 0


def _list_formats(args: argparse.Namespace) -> int:
    from tracestore.importers import formats

    known = sorted(formats.formats().values(), key=lambda one: one.name)
    if args.json:
        print_json_line({one.name: one.title for one in known})
    else:
        print_table(["format", "what it is"], [(one.name, one.title) for one in known])
    return 0


def _report(done: Imported, args: argparse.Namespace) -> None:
    from tracestore.cli.fidelity import readable

    facts = done.facts()
    if args.json:
        print_json_line(facts)
        return
    for problem in done.problems[:_SHOWN_PROBLEMS]:
        note(printable(problem), args=args)
    if done.num_problems > _SHOWN_PROBLEMS:
        note(f"... and {done.num_problems - _SHOWN_PROBLEMS:,} more (--json lists them)", args=args)
    for line in readable(facts):
        print_line(printable(line))
    if done.outcomes["stored"] and args.url is None:
        note("`tracestore show` lists the episodes, `tracestore sql` asks about them", args=args)


def _server_url(text: str) -> str:
    """An argparse type: where a server may listen."""
    from tracestore.client.errors import ClientError
    from tracestore.client.server import checked_url

    try:
        checked_url(text)
    except ClientError as error:
        raise argparse.ArgumentTypeError(error.hint) from None
    return text


@contextmanager
def _sink(args: argparse.Namespace) -> Iterator[Sink]:
    if args.url is not None:
        from tracestore.cli.posting import posting

        key = os.environ.get("TRACESTORE_API_KEY") or None
        tell = partial(note, args=args)
        with posting(args.url, project=args.project, api_key=key, tell=tell) as post:
            yield post
        return
    with ExitStack() as stack:
        stores: list[Store] = []

        def ingest(batch: Sequence[Item]) -> Outcomes:
            # Opened when there is something to store: a file that cannot be read leaves no database behind.
            if not stores:
                stores.append(stack.enter_context(opened_store(args)))
            outcomes = stores[0].ingest(args.project or DEFAULT_PROJECT, list(batch))
            return [(outcome.status, outcome.problem) for outcome in outcomes]

        yield ingest


def watch(source: Source, advance: Callable[[float], None]) -> Source:
    """The source, telling `advance` of every byte that is read of it for the first time."""

    def opened() -> IO[bytes]:
        return io.BufferedReader(_Watched(source.raw(), seen, advance))

    seen = [0]
    return replace(source, raw=opened)


class _Watched(io.RawIOBase):
    def __init__(self, stream: IO[bytes], seen: list[int], advance: Callable[[float], None]) -> None:
        self._stream = stream
        self._seen = seen
        self._advance = advance

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        chunk = self._stream.read(len(buffer))
        buffer[: len(chunk)] = chunk
        # A file is read for its beginning, and then whole: its bytes count once.
        if chunk and self._stream.seekable() and self._stream.tell() > self._seen[0]:
            self._advance(self._stream.tell() - self._seen[0])
            self._seen[0] = self._stream.tell()
        return len(chunk)

    def close(self) -> None:
        self._stream.close()
        super().close()


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Items in order, cut where a batch would pass MAX_BATCH_EVENTS or MAX_BATCH_BYTES."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) == MAX_BATCH_EVENTS or size + len(item.text) > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += len(item.text)
    if batch:
        yield batch


@dataclass
class Imported:
    """What one import read and what became of it."""

    fidelity: Fidelity = field(default_factory=lambda: _fidelity())
    failed: list[str] = field(default_factory=list)
    """Events that the store did not take, with the reason; the first `MAX_REFUSED` of them."""
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, batch: Sequence[Item], outcomes: Outcomes) -> None:
        """Count what is in a batch and what became of it."""
        for item, (status, problem) in zip(batch, outcomes, strict=True):
            self.outcomes[status] += 1
            if status not in ("stored", "duplicate") and len(self.failed) < MAX_REFUSED:
                self.failed.append(f"{item.event.kind} {item.event.id}: {problem or status}")
            self.fidelity.add(item.event)

    @property
    def problems(self) -> list[str]:
        """What did not get in: records that could not be read, then events that were not taken."""
        return self.fidelity.notes.refused + self.failed

    @property
    def num_problems(self) -> int:
        """How many there are; `problems` ends somewhere, where a file holds nothing but damage."""
        taken = self.outcomes["stored"] + self.outcomes["duplicate"]
        return self.fidelity.notes.num_refused + self.outcomes.total() - taken

    def facts(self) -> dict[str, object]:
        """What was read, how much of it is stored now, and what is not."""
        return self.fidelity.facts() | {
            "stored": self.outcomes["stored"],
            "duplicates": self.outcomes["duplicate"],
            "refused": self.num_problems,
            "problems": self.problems,
        }


def _fidelity() -> Fidelity:
    from tracestore.cli.fidelity import Fidelity

    return Fidelity()
