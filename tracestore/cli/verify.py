"""`tracestore verify`: does the store hold what was posted, and do exports hold what the store holds?"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tracestore.cli.chat import add_chat_flags, chat_of
from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_blobs_flag,
    add_store_flags,
    blobs_place,
    opened_store,
    print_json_line,
    print_line,
    printable,
    progress,
    require_project,
    verb_parser,
)
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.store.store import Store
    from tracestore.store.verify_state import VerifyState

Line: TypeAlias = dict[str, Any]
"""A finding, or after the findings what was `checked`, in numbers."""


class Finding(Protocol):
    """A broken promise: of the store or of an export."""

    @property
    def name(self) -> str: ...

    @property
    def where(self) -> str: ...

    @property
    def detail(self) -> str: ...


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "verify",
        help="check a store, or exports against their store",
        example="tracestore verify shards",
    )
    add_store_flags(parser)
    parser.add_argument(
        "exports",
        nargs="*",
        metavar="EXPORT",
        help="exports of the project, folders or URLs, to check against the store (default: check the store"
        " itself)",
    )
    add_blobs_flag(parser)
    parser.add_argument(
        "--state",
        metavar="FILE",
        help="keep here how far the check of a store has come, and go on there if it was broken off",
    )
    add_chat_flags(parser, purpose="what the exports were rendered with")


def run(args: argparse.Namespace) -> int:
    from tracestore.shards.files import files_at
    from tracestore.shards.log import is_followed
    from tracestore.shards.manifest import require_manifest

    for files in map(files_at, args.exports):
        if not is_followed(files):
            require_manifest(files)
    if args.state is not None and args.exports:
        raise UsageError(hint="--state goes with a check of the store itself")
    found = 0
    with opened_store(args, create=False) as store:
        require_project(store, args)
        for line in _exports(store, args) if args.exports else _store(store, args):
            if "checked" in line:
                found += line["findings"]
                _print_summary(line, args)
            else:
                _print_finding(line, args)
    return 1 if found else 0


def _exports(store: Store, args: argparse.Namespace) -> Iterator[Line]:
    """Per export: its findings and its summary. One that cannot be read is a finding, not the end."""
    from tracestore_exporters.verify import verify_export

    chat = chat_of(args)
    for path in args.exports:
        deleted = list(_deleted(store, path, args))
        if deleted:
            # What is gone cannot be compared.
            yield from deleted
            yield {"checked": path, "findings": len(deleted)}
            continue
        try:
            report = verify_export(store, args.project, path, chat=chat)
        except TracestoreError as error:
            if error.exit_code == 2:
                raise
            yield {"name": type(error).__name__, "where": path, "detail": str(error)}
            yield {"checked": path, "findings": 1}
            continue
        yield from map(_facts, report.findings)
        yield {
            "checked": path,
            "rows": report.rows,
            "samples": report.samples,
            "sampled_tokens": report.sampled_tokens,
            "trained_tokens": report.trained_tokens,
            "findings": len(report.findings) + report.dropped,
        }


def _deleted(store: Store, path: str, args: argparse.Namespace) -> Iterator[Line]:
    """What the store has deleted or redacted since the snapshot of an export, which may hold it."""
    from tracestore.shards.read import open_export
    from tracestore.store.exports import gone

    try:
        export = open_export(path)
    except TracestoreError:
        return  # told with all else that is wrong with it
    what = "this export: make a new one, and delete this"
    if export.log is not None:
        what = "the last entry: follow on, so that its rows count no more"
    for kind, id_ in gone(store, args.project, snapshot=export.manifest.snapshot):
        detail = f"{_GONE[kind].format(id_)} after {what}"
        yield {"name": "deleted", "where": path, "detail": detail}


_GONE = {
    "episode": "episode {} was deleted",
    "content": "the content of episode {} was deleted",
    "project": "project {} was deleted",
    "redaction": "redaction {} took text out",
}


def _store(store: Store, args: argparse.Namespace) -> Iterator[Line]:
    from tracestore.store.verify import counts, verify_from

    totals = counts(store, args.project)
    with (
        _state(args) as state,
        progress("verify", args=args, total=totals["num_contents"] + totals["num_episodes"]) as advance,
    ):
        for piece in verify_from(store, args.project, cursor=state.cursor):
            yield from map(_facts, piece.findings)
            state.save(piece.cursor, findings=len(piece.findings))
            advance(piece.amount)
    yield {
        "checked": args.db,
        "project": args.project,
        "events": totals["num_events"],
        "episodes": totals["num_episodes"],
        "contents": totals["num_contents"],
        "findings": state.findings,
    }
    if (place := blobs_place(args)) is not None:
        from tracestore.store.blobs import open_blobs
        from tracestore.store.blobs.verify import count_blobs, verify_blobs

        num_found = 0
        for finding in verify_blobs(store, args.project, open_blobs(place)):
            num_found += 1
            yield _facts(finding)
        blobs = count_blobs(store, args.project)
        yield {"checked": place, "project": args.project, "blobs": blobs, "findings": num_found}


@contextmanager
def _state(args: argparse.Namespace) -> Iterator[VerifyState]:
    """Where an earlier run has come to; the file is gone when the check has come to its end."""
    from tracestore.store.verify_state import VerifyState

    file = None if args.state is None else Path(args.state)
    state = VerifyState.read(file, db=args.db, project=args.project)
    try:
        yield state
    finally:
        state.close()


def _facts(finding: Finding) -> dict[str, str]:
    return {"name": finding.name, "where": finding.where, "detail": finding.detail}


def _print_finding(finding: dict[str, str], args: argparse.Namespace) -> None:
    if args.json:
        print_json_line(finding)
    else:
        print_line(printable(f"{finding['name']}: {finding['where']}: {finding['detail']}"))


def _print_summary(summary: dict[str, Any], args: argparse.Namespace) -> None:
    if args.json:
        print_json_line(summary)
        return
    facts = ", ".join(
        f"{value} {name.replace('_', ' ')}" for name, value in summary.items() if isinstance(value, int)
    )
    print_line(f"{summary['checked']}: {facts}")
