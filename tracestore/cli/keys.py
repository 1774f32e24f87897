"""`tracestore keys`: make, list, revoke and rotate the API keys of a project."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    add_store_flags,
    note,
    opened_store,
    print_json_line,
    print_line,
    print_table,
    require_project,
    verb_parser,
)
from tracestore.settings import seconds_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from tracestore.store.keys import Key, NewKey

_SCOPES = ("read", "write", "admin")


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "keys",
        help="make, list, revoke and rotate the API keys of a project",
        epilog="example:\n  tracestore keys create --project tau --scope write --name rollouts",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions: Subparsers = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_create(actions)
    listed = verb_parser(
        actions,
        "list",
        help="every key of a project, without the keys themselves",
        example="tracestore keys list",
    )
    revoked = verb_parser(
        actions, "revoke", help="end a key now", example="tracestore keys revoke Xk3v9QpL --project tau"
    )
    rotated = verb_parser(
        actions,
        "rotate",
        help="make a key like another, which goes on working for a while",
        example="tracestore keys rotate Xk3v9QpL --project tau --grace 7d",
    )
    for one in (listed, revoked, rotated):
        add_store_flags(one)
    for one in (revoked, rotated):
        one.add_argument("prefix", metavar="PREFIX", help="of the key, as `tracestore keys list` shows it")
    rotated.add_argument(
        "--grace",
        metavar="TIME",
        type=duration_s,
        default="1d",
        help="how long the old key still works, as 30m, 12h or 7d (default: 1d)",
    )


def _add_create(actions: Subparsers) -> None:
    created = verb_parser(
        actions,
        "create",
        help="make a key and show it, this once",
        example="tracestore keys create --project tau --scope write --name rollouts --expires 30d",
    )
    add_store_flags(created)
    created.add_argument(
        "--scope",
        action="append",
        choices=_SCOPES,
        required=True,
        help="what it may do; may be repeated, admin is all of them",
    )
    created.add_argument("--name", required=True, help="what it is for")
    created.add_argument(
        "--expires",
        metavar="TIME",
        type=duration_s,
        help="how long it works, as 12h or 30d (default: for ever)",
    )


def duration_s(text: str) -> int:
    """An argparse type: a number and its unit, in seconds. `30d` is 2,592,000."""
    seconds = seconds_of(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 90s, 30m, 12h or 7d")
    return seconds


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], None]] = {
        "create": _create,
        "list": _list,
        "revoke": _revoke,
        "rotate": _rotate,
    }
    actions[args.action](args)
    return 0


def _create(args: argparse.Namespace) -> None:
    from tracestore.store.keys import create_key

    now = time.time_ns()
    with _writing(args, create=True) as connection:
        new = create_key(
            connection,
            args.project,
            name=args.name,
            scopes=frozenset(args.scope),
            expires_at=None if args.expires is None else now + args.expires * 10**9,
            now=now,
        )
    _show_new(new, args=args)


def _list(args: argparse.Namespace) -> None:
    from tracestore.store.keys import list_keys

    with opened_store(args, create=False) as store:
        require_project(store, args)
        with store.read() as connection:
            keys = list_keys(connection, args.project)
    now = time.time_ns()
    if args.json:
        for key in keys:
            print_json_line(_facts(key, now=now))
        return
    columns = ("prefix", "name", "scopes", "created", "expires", "state")
    rows = [
        (
            key.prefix,
            key.name,
            " ".join(key.scopes),
            _day(key.created_at),
            "never" if key.expires_at is None else _day(key.expires_at),
            _state(key, now=now),
        )
        for key in keys
    ]
    print_table(columns, rows)


def _revoke(args: argparse.Namespace) -> None:
    from tracestore.store.keys import revoke_key

    with _writing(args) as connection:
        key = revoke_key(connection, args.project, args.prefix, now=time.time_ns())
    if args.json:
        print_json_line(_facts(key, now=time.time_ns()))
    else:
        print_line(f"key {key.prefix} ({key.name}) is revoked; servers refuse it within two seconds")


def _rotate(args: argparse.Namespace) -> None:
    from tracestore.store.keys import rotate_key

    with _writing(args) as connection:
        new = rotate_key(connection, args.project, args.prefix, grace=args.grace * 10**9, now=time.time_ns())
    _show_new(new, args=args)
    note(f"key {args.prefix} still works for {args.grace:,} seconds at most", args=args)


@contextmanager
def _writing(args: argparse.Namespace, *, create: bool = False) -> Iterator[Connection]:
    """A transaction that writes."""
    from tracestore.store.engine import writer

    with opened_store(args, create=create) as store, writer(store.engine).begin() as connection:
        yield connection


def _show_new(new: NewKey, *, args: argparse.Namespace) -> None:
    if args.json:
        print_json_line({"key": new.text, **_facts(new.key, now=new.key.created_at)})
        return
    print_line(new.text)
    note("This is the only time it is shown. Send it as `Authorization: Bearer ...`.", args=args)


def _facts(key: Key, *, now: int) -> dict[str, object]:
    return {
        "project": key.project,
        "prefix": key.prefix,
        "name": key.name,
        "scopes": list(key.scopes),
        "created_at": key.created_at,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "state": _state(key, now=now),
    }


def _state(key: Key, *, now: int) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "live" if key.is_live(now=now) else "expired"


def _day(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at // 10**9))
