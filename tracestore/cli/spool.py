"""`tracestore spool`: events that clients left on disk while the server was away: list, show, send them."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    note,
    print_facts,
    print_json_line,
    print_table,
    progress,
    verb_parser,
)

if TYPE_CHECKING:
    from tracestore.client.drain import Drained
    from tracestore.client.settings import Settings

_RETRY_S = 10.0
"""How long a server that does not answer is tried again."""
_TIMEOUT_S = 60.0
_SHOWN = 10
_ACTIONS = (
    ("list", "list the files: whose events, how many, whether a process is at work on them"),
    ("show", "list the events in the files"),
    ("drain", "send what processes that ended left, and remove the files that the server has"),
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "spool",
        help="list, show or send what clients left on disk while the server was away",
        epilog="example:\n  tracestore spool drain --folder spool",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions: Subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, help_ in _ACTIONS:
        one = verb_parser(actions, name, help=help_, example=f"tracestore spool {name} --folder spool")
        one.add_argument(
            "--folder",
            metavar="DIR",
            type=Path,
            default=os.environ.get("TRACESTORE_SPOOL"),
            help="spool folder (default: $TRACESTORE_SPOOL)",
        )
        one.add_argument(
            "--project", metavar="NAME", help="only the events of this project (default: of all projects)"
        )
        if name == "drain":
            one.add_argument(
                "--url",
                help="server (default: $TRACESTORE_URL, else http://127.0.0.1:8421); "
                "its key is $TRACESTORE_API_KEY",
            )


def run(args: argparse.Namespace) -> int:
    if args.folder is None:
        raise UsageError(hint="name the spool folder: --folder DIR or $TRACESTORE_SPOOL")
    args.folder = Path(args.folder)
    if not args.folder.is_dir():
        raise FileNotFoundError(2, "No such folder", str(args.folder))
    if args.action == "drain":
        return _drain(args)
    return _list(args) if args.action == "list" else _show(args)


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    project: str
    events: int
    size: int
    state: str
    """waiting, in_use or rejected."""


def _files(args: argparse.Namespace) -> Iterator[_File]:
    from tracestore.client.spool import EVENTS, REJECTED, claimed, owner_of, spool_files, spooled

    for ending in (EVENTS, REJECTED):
        for path in spool_files(args.folder, owner=args.project, ending=ending):
            with claimed(path) as is_free:
                if not path.exists():
                    continue  # sent and removed meanwhile
                state = "rejected" if ending == REJECTED else "waiting" if is_free else "in_use"
                events = sum(len(batch) for batch in spooled(path))
                yield _File(path, owner_of(path), events, path.stat().st_size, state)


def _list(args: argparse.Namespace) -> int:
    columns = ("file", "project", "events", "bytes", "state")
    rows = [(one.path.name, one.project, one.events, one.size, one.state) for one in _files(args)]
    if args.json:
        for row in rows:
            print_json_line(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, rows)
    return 0


def _show(args: argparse.Namespace) -> int:
    columns = ("file", "line", "kind", "id", "phase", "episode_id", "bytes")
    rows = _events(args)
    if args.json:
        for row in rows:
            print_json_line(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, list(rows))
    return 0


def _events(args: argparse.Namespace) -> Iterator[tuple[object, ...]]:
    from tracestore.client.spool import spooled

    for one in _files(args):
        for batch in spooled(one.path):
            for posted in batch:
                event = _seen(posted.text)
                named = (event.get(name) for name in ("kind", "id", "phase", "episode_id"))
                yield (one.path.name, posted.index + 1, *named, len(posted.text))


def _seen(text: bytes) -> dict[str, Any]:
    """What an event says of itself; nothing where the line is damaged."""
    try:
        value = json.loads(text, parse_int=len, parse_float=len)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _drain(args: argparse.Namespace) -> int:
    from tracestore.client.drain import Drained
    from tracestore.client.errors import ClientError
    from tracestore.client.spool import owner_of, spool_files

    total = Drained()
    failed: ClientError | None = None
    paths = spool_files(args.folder, owner=args.project)
    size = sum(path.stat().st_size for path in paths)
    with progress("drain", args=args, total=size, unit="bytes") as advance:
        for owner in dict.fromkeys(map(owner_of, paths)):
            try:
                done = _send(args, owner, [path for path in paths if owner_of(path) == owner], advance)
            except ClientError as error:
                failed = error  # of this project: the key may be good for the next
                continue
            total.taken += done.taken
            total.rejected += done.rejected
            total.in_use += done.in_use
    left = len(spool_files(args.folder, owner=args.project))
    facts = {"taken": total.taken, "rejected": len(total.rejected), "in_use": len(total.in_use)}
    print_facts({**facts, "left": left}, args=args)
    for one in total.rejected[:_SHOWN]:
        note(f"not taken: line {one.index + 1}: {one.kind} {one.id}: {one.problem}", args=args)
    if failed is not None:
        raise failed
    return 1 if total.rejected or left > len(total.in_use) else 0


def _send(
    args: argparse.Namespace, owner: str, paths: list[Path], advance: Callable[[float], None]
) -> Drained:
    """Send the files of one owner."""
    from tracestore.client.drain import Drained, drain
    from tracestore.client.server import Patience, Server

    settings = _settings(args, owner)
    if settings is None:
        note(f"{owner}: recorded with another key; --project {owner} sends it with this one", args=args)
        return Drained()
    server = Server(settings.url, headers=settings.headers(), timeout_s=_TIMEOUT_S)
    patience = Patience(lambda: _RETRY_S, threading.Event(), lambda problem: note(problem, args=args))
    try:
        return drain(server, paths, patience=patience, after_batch=advance)
    finally:
        server.close()


def _settings(args: argparse.Namespace, owner: str) -> Settings | None:
    """Where the events of an owner go; None where only another key knows their project."""
    from tracestore.client.settings import Settings
    from tracestore.client.spool import BY_KEY

    project = None if owner.startswith(BY_KEY) else owner
    environ = {name: value for name, value in os.environ.items() if name != "TRACESTORE_PROJECT"}
    settings = Settings.read(url=args.url, api_key=None, project=project, spool_dir=None, environ=environ)
    is_ours = owner in (settings.owner, args.project)
    return settings if is_ours else None
