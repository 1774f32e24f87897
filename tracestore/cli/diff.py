"""`tracestore diff A B`: where two recorded calls, or two episodes, first differ."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    opened_store,
    print_json_line,
    print_line,
    verb_parser,
)
from tracestore.cli.show import NothingRecorded, episode_of_call, is_episode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracestore.replay.compare import Differing
    from tracestore.replay.tape import Recorded
    from tracestore.store.store import Store

SHOWN = 20
"""Differences that are printed; `--json` holds all."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "diff",
        help="show where two calls, or two episodes, first differ: message, byte and token",
        example="tracestore diff e1 e2",
    )
    add_store_flags(parser)
    parser.add_argument("one", metavar="A", help="id of a call or an episode")
    parser.add_argument("other", metavar="B", help="id of another of the same kind")


def run(args: argparse.Namespace) -> int:
    with opened_store(args, create=False) as store:
        one, other = (_recorded(store, args.project, id_) for id_ in (args.one, args.other))
    found = list(_compared(one, other, args))
    if args.json:
        for differing in found:
            print_json_line(asdict(differing))
        print_json_line({"equal": not found, "differences": len(found)})
    elif not found:
        print_line("equal: requests, outcomes, answers and token ids")
    else:
        _print(found)
    return 1 if found else 0


def _recorded(store: Store, project: str, id_: str) -> Recorded | list[Recorded]:
    """A call, or all calls of an episode."""
    from tracestore.replay.tape import recorded_calls

    with store.engine.connect() as connection:
        whole = is_episode(connection, project, id_)
        episode_id = id_ if whole else episode_of_call(connection, project, id_)
    if episode_id is None:
        raise NothingRecorded(id=id_, project=project, hint="`tracestore show` lists episodes")
    calls = list(recorded_calls(store.load(project, episode_id)))
    if whole:
        return calls
    found = next((one for one in calls if one.call.id == id_), None)
    if found is None:
        raise NothingRecorded(id=id_, project=project, hint="its request was not recorded")
    return found


def _compared(
    one: Recorded | list[Recorded], other: Recorded | list[Recorded], args: argparse.Namespace
) -> Sequence[Differing]:
    from tracestore.replay.compare import of_calls, of_episodes

    if isinstance(one, list) and isinstance(other, list):
        return list(of_episodes(one, other))
    if isinstance(one, list) or isinstance(other, list):
        raise UsageError(one=args.one, other=args.other, hint="name two calls, or two episodes")
    return list(of_calls(one, other))


def _print(found: Sequence[Differing]) -> None:
    for differing in found[:SHOWN]:
        one = differing.difference
        at = "" if one.byte is None else f", byte {one.byte}"
        calls = " and ".join("(no call)" if id_ is None else id_ for id_ in differing.calls)
        print_line(f"{differing.what} of {calls}: {one.path}{at}")
        print_line(f"  {one.recorded}")
        print_line(f"  {one.asked}")
    if len(found) > SHOWN:
        print_line(f"{len(found) - SHOWN} more: --json tells all")
