"""`tracestore db delete`: an episode, what is old, or a whole project, until it is gone."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_blobs_flag,
    add_store_flags,
    blobs_place,
    note,
    opened_store,
    print_facts,
    verb_parser,
)
from tracestore.cli.keys import duration_s

if TYPE_CHECKING:
    from tracestore.store.blobs import Blobs
    from tracestore.store.delete import Deletion
    from tracestore.store.store import Store


def add_parser(actions: Subparsers) -> None:
    parser = verb_parser(
        actions,
        "delete",
        help="delete an episode, what is old, or all of a project; without flags, finish what was broken off",
        example="tracestore db delete --project default --older-than 30d --keep-graded",
    )
    add_store_flags(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--episode", metavar="ID", help="this episode")
    which.add_argument(
        "--older-than",
        metavar="AGE",
        type=duration_s,
        help="episodes of which nothing came for so long, as 12h or 30d",
    )
    which.add_argument("--all", action="store_true", help="everything in the project, which takes no more")
    parser.add_argument("--keep-graded", action="store_true", help="of what is old, keep what has a reward")
    parser.add_argument("--reason", metavar="TEXT", help="why, for the record")
    add_blobs_flag(parser)
    parser.add_argument(
        "--vacuum",
        action="store_true",
        help="write the database anew without its free room, while posts wait; else that is filled again",
    )


def run(args: argparse.Namespace) -> int:
    from tracestore.store import delete

    if args.keep_graded and args.older_than is None:
        raise UsageError(flag="--keep-graded", hint="it goes with --older-than")
    with opened_store(args, create=False) as store:
        asked = _asked(store, args)
        if not asked:
            note("nothing to delete", args=args)
        for project, key in asked:
            done = delete.carry_out(
                store, project, key, blobs=blobs_of(args), progress=lambda one: tell(one, args)
            )
            print_facts({"project": project, **delete.facts(done)}, args=args)
        if args.vacuum:
            store.vacuum()
    return 0


def _asked(store: Store, args: argparse.Namespace) -> list[tuple[str, int]]:
    """(project, number) of the deletions that are to be carried out now."""
    from tracestore.store import delete

    project, reason = args.project, args.reason
    if args.all:
        return [(project, delete.delete_project(store, project, reason=reason).id)]
    if args.episode is not None:
        return [(project, delete.delete_episode(store, project, args.episode, reason=reason).id)]
    if args.older_than is None:
        return delete.unfinished(store)
    before = time.time_ns() - args.older_than * 10**9
    old = delete.old_episodes(store, project, before=before, keep_graded=args.keep_graded)
    if not old:
        return []
    rule = f"older than {args.older_than} s" + (", without a reward" if args.keep_graded else "")
    return [(project, delete.delete_episodes(store, project, old, what="age", name=rule, reason=reason).id)]


def blobs_of(args: argparse.Namespace) -> Blobs | None:
    """Where payloads lie, if that is known."""
    from tracestore.store.blobs import open_blobs

    place = blobs_place(args)
    return None if place is None else open_blobs(place)


def tell(one: Deletion, args: argparse.Namespace) -> None:
    """How far a deletion has come, for a person."""
    note(f"{one.state}: {one.episodes_erased} of {one.episodes} episodes, {one.rows} rows", args=args)
