"""`tracestore import`: trace files -> wire events -> a store, or a running server."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    note,
    opened_store,
    print_facts,
    printable,
    progress,
    verb_parser,
)
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.importers.documents import Item, Notes
    from tracestore.store.store import Store

MAX_BATCH_EVENTS = 1_000
MAX_BATCH_BYTES = 8 * 1024 * 1024
_SHOWN_PROBLEMS = 20

Outcomes = list[tuple[str, str | None]]
"""(status, problem) of each event of a batch: stored, duplicate, conflict or error."""
Sink = Callable[[Sequence["Item"]], Outcomes]


class ServerRefused(TracestoreError):
    """The server took nothing."""


class Unreadable(TracestoreError):
    """This file cannot be read."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "import",
        help="read trace files into a store, or post them to a running server",
        example="tracestore import --format nemo-gym rollouts.jsonl --db sqlite:///tracestore.db",
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="file to read, .gz too; - for stdin")
    parser.add_argument(
        "--format", metavar="NAME", default="auto", help="auto (default), events, nemo-gym, atropos"
    )
    parser.add_argument(
        "--url",
        type=_server_url,
        help="post to this server instead of opening --db, e.g. http://127.0.0.1:8421",
    )
    add_store_flags(parser)


def run(args: argparse.Namespace) -> int:
    from tracestore.importers.formats import FORMATS

    if args.format != "auto" and args.format not in FORMATS:
        raise UsageError(format=args.format, hint=f"formats: auto, {', '.join(FORMATS)}")
    for path in args.paths:
        if path != "-" and not Path(path).exists():
            raise UsageError(path=path, hint="there is no such file")
    done = Imported()
    with _sink(args) as sink, progress("importing", args=args) as advance:
        for path in args.paths:
            _import_file(path, args.format, done=done, sink=sink, advance=advance)
    for problem in done.problems[:_SHOWN_PROBLEMS]:
        note(printable(problem), args=args)
    facts = done.facts()
    if args.json:
        facts["problems"] = done.problems[:_SHOWN_PROBLEMS]
    print_facts(facts, args=args)
    return 1 if done.problems else 0


def _server_url(text: str) -> str:
    """An argparse type: where a server may listen."""
    try:
        parts = urllib.parse.urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise argparse.ArgumentTypeError(f"{text!r} is no URL like http://127.0.0.1:8421")
    return text


def _import_file(
    path: str, format_: str, *, done: Imported, sink: Sink, advance: Callable[[float], None]
) -> None:
    """Send what is in one file; its problems are noted with its name.

    Raises:
        Unreadable, UnknownFormat: it cannot be read, and nothing else was so far. Later ones cost the others
            nothing.
    """
    from tracestore.importers.formats import UnknownFormat

    before = len(done.notes.refused)
    try:
        for batch in batches(items(path, format=format_, notes=done.notes)):
            done.add(batch, sink(batch))
            advance(len(batch))
    except (Unreadable, UnknownFormat) as error:
        if not done.outcomes:
            raise
        done.failed.append(str(error))
    done.notes.refused[before:] = [f"{path}: {problem}" for problem in done.notes.refused[before:]]


@contextmanager
def _sink(args: argparse.Namespace) -> Iterator[Sink]:
    if args.url is not None:
        yield lambda batch: post(args.url, args.project, batch)
        return
    with ExitStack() as stack:
        stores: list[Store] = []

        def ingest(batch: Sequence[Item]) -> Outcomes:
            # Opened when there is something to store: a file that cannot be read leaves no database behind.
            if not stores:
                stores.append(stack.enter_context(opened_store(args)))
            outcomes = stores[0].ingest(args.project, list(batch))
            return [(outcome.status, outcome.problem) for outcome in outcomes]

        yield ingest


def post(url: str, project: str, batch: Sequence[Item]) -> Outcomes:
    """One `POST /v1/events` of a batch, over the standard library.

    Raises:
        ServerRefused: no server there, or an answer that is not about the single events.
    """
    body = b"[" + b",\n".join(item.text for item in batch) + b"]"
    request = urllib.request.Request(
        url.rstrip("/") + "/v1/events",
        data=body,
        headers={"Content-Type": "application/json", "X-Tracestore-Project": project},
    )
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            answer = response.read()
    except urllib.error.HTTPError as error:
        answer = error.read()
    except (urllib.error.URLError, OSError) as error:
        raise ServerRefused(
            url=url, problem=str(error), hint="is `tracestore serve` running there?"
        ) from error
    try:
        return [(item["status"], _problem_text(item.get("problem"))) for item in json.loads(answer)["items"]]
    except (ValueError, KeyError, TypeError):
        raise ServerRefused(url=url, answer=answer[:500].decode("utf-8", "replace")) from None


def _problem_text(problem: Any) -> str | None:
    """problem+json as one line."""
    if not isinstance(problem, dict):
        return None if problem is None else str(problem)
    return "; ".join(str(problem[name]) for name in ("title", "detail", "hint") if problem.get(name))


def items(path: str, *, format: str, notes: Notes) -> Iterator[Item]:  # noqa: A002
    """The events in a file ("-": stdin), see `tracestore.importers.formats.read`.

    Raises:
        Unreadable: it is a folder, may not be read, or is damaged gzip.
        UnknownFormat: as `read` does, with the path.
    """
    from tracestore.importers.documents import documents, opened
    from tracestore.importers.formats import UnknownFormat, read

    try:
        with _stream(path) as stream:
            yield from read(documents(opened(stream)), format=format, notes=notes)
    except UnknownFormat as error:
        raise UnknownFormat(hint=error.hint, path=path, **error.values) from None
    except (OSError, EOFError, zlib.error) as error:
        raise Unreadable(path=path, problem=str(error)) from error


@contextmanager
def _stream(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as stream:
        yield stream


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

    notes: Notes = field(default_factory=lambda: _notes())
    failed: list[str] = field(default_factory=list)
    """Events that the store did not take, with the reason."""
    outcomes: Counter[str] = field(default_factory=Counter)
    ids: dict[str, set[str]] = field(default_factory=dict)
    """Distinct ids of each kind."""
    compactions: set[str] = field(default_factory=set)
    sampled_tokens: int = 0
    messages: _Messages = field(default_factory=lambda: _Messages())

    def add(self, batch: Sequence[Item], outcomes: Outcomes) -> None:
        """Count what is in a batch and what became of it."""
        for item, (status, problem) in zip(batch, outcomes, strict=True):
            self.outcomes[status] += 1
            if status not in ("stored", "duplicate"):
                self.failed.append(f"{item.event.kind} {item.event.id}: {problem or status}")
            self._count(item.event)

    @property
    def problems(self) -> list[str]:
        """What did not get in: documents that could not be read, then events that were not taken."""
        return self.notes.refused + self.failed

    def _count(self, event: Any) -> None:
        self.ids.setdefault(event.kind, set()).add(event.id)
        if event.kind == "context_edit" and event.edit == "compaction":
            self.compactions.add(event.id)
        bodies = [event] if event.kind == "completion" else getattr(event, "completions", None) or ()
        self.sampled_tokens += sum(len(body.token_ids) for body in bodies if body.token_ids is not None)
        self.messages.add(event)

    def facts(self) -> dict[str, object]:
        """What was read, and how much of it is stored now."""
        facts: dict[str, object] = {
            f"{kind}s": len(self.ids.get(kind, ()))
            for kind in ("group", "episode", "agent", "call", "tool_call")
        }
        return facts | {
            "messages": self.messages.num,
            "compactions": len(self.compactions),
            "sampled_tokens": self.sampled_tokens,
            "rewards": len(self.ids.get("reward", ())),
            "gaps": len(self.ids.get("gap", ())),
            "stored": self.outcomes["stored"],
            "duplicates": self.outcomes["duplicate"],
            "refused": len(self.problems),
            "not_understood": dict(self.notes.not_understood),
            "warnings": dict(self.notes.warnings),
        }


def _notes() -> Notes:
    from tracestore.importers.documents import Notes

    return Notes()


class _Messages:
    """Counts the messages of a stream of calls: each place of a conversation once, each answer on its own.

    A context that is sent again with every call counts once; equal answers to one prompt are several.
    """

    def __init__(self) -> None:
        self._read: set[bytes] = set()
        self._prompt: dict[str, bytes] = {}
        self._written: dict[tuple[str, int], list[bytes]] = {}

    @property
    def num(self) -> int:
        written = [key for keys in self._written.values() for key in keys]
        return len(written) + len(self._read.difference(written))

    def add(self, event: Any) -> None:
        if event.kind == "completion":
            self._answer(event.call_id, event.index, event.message, "openai_chat")
        if event.kind != "call":
            return
        if event.phase != "end":
            self._prompt[event.id] = self._follow(self._root(event), self._context(event))
        for index, body in enumerate(event.completions or ()):
            self._answer(event.id, index, body.message, event.dialect)

    def _root(self, event: Any) -> bytes:
        if event.context == "whole":
            return str(event.episode_id).encode()
        answer = self._written.get((event.parent_call_id, event.parent_completion or 0))
        return answer[-1] if answer else self._prompt.get(event.parent_call_id, event.parent_call_id.encode())

    def _context(self, event: Any) -> list[bytes]:
        from tracestore.graph.match import match_hash
        from tracestore.graph.messages import messages_of

        return [match_hash(m.raw, role=m.role) for m in messages_of(event.request, event.dialect)]

    def _follow(self, key: bytes, hashes: Iterable[bytes]) -> bytes:
        from tracestore.graph.match import node_key

        for one in hashes:
            key = node_key(key, one)
            self._read.add(key)
        return key

    def _answer(self, call_id: str, index: int, message: Any, dialect: Any) -> None:
        from tracestore.graph.match import match_hash, node_key
        from tracestore.graph.messages import answer_messages

        key = self._prompt.get(call_id, call_id.encode())
        keys = []
        for one in answer_messages(message, dialect):
            key = node_key(key, match_hash(one.raw, role=one.role))
            keys.append(key)
        if keys:
            self._written[call_id, index] = keys
