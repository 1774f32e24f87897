"""`tracestore export --follow` and `--lag`: an export that goes on, and how far behind it or a trainer is."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tracestore.cli.chat import chat_of
from tracestore.cli.common import (
    UsageError,
    note,
    opened_store,
    positive_number,
    print_facts,
    print_json_line,
    print_line,
    require_project,
)

if TYPE_CHECKING:
    from tracestore.shards.log import Entry, Log
    from tracestore_exporters.spec import Spec

_OF_FOLLOW = ("interval", "until_idle", "settle", "silence")


def add_follow_flags(parser: argparse.ArgumentParser) -> None:
    """What makes an export go on."""
    parser.add_argument(
        "--follow", action="store_true", help="write each group when it is closed, and go on; for online RL"
    )
    parser.add_argument(
        "--interval", type=positive_number, metavar="S", help="seconds between two looks (default: 1)"
    )
    parser.add_argument(
        "--until-idle",
        type=positive_number,
        metavar="S",
        help="end when nothing has come for so many seconds (default: never)",
    )
    parser.add_argument(
        "--settle",
        type=positive_number,
        metavar="S",
        help="leave a closed group for so many seconds after its last event (default: 0)",
    )
    parser.add_argument(
        "--silence",
        type=positive_number,
        metavar="S",
        help="take an episode without an event of its own, which nobody says has ended, as ended when nothing"
        " has come of it for so many seconds; what comes after is late (default: 1800)",
    )
    parser.add_argument(
        "--lag", action="store_true", help="say what of a followed folder is not trained, and what is behind"
    )
    parser.add_argument("--run", metavar="NAME", help="with --lag: count what this training run has trained")


def require_sense(args: argparse.Namespace) -> None:
    """Refuse flags that do not go together.

    Raises:
        UsageError: they do not.
    """
    for name in _OF_FOLLOW:
        if getattr(args, name) is not None and not args.follow:
            raise UsageError(flag=f"--{name.replace('_', '-')}", hint="belongs to --follow")
    if args.run is not None and not args.lag:
        raise UsageError(flag="--run", hint="belongs to --lag")
    if args.follow and args.lag:
        raise UsageError(hint="--lag asks about a folder that --follow writes; name one of them")
    if (args.follow or args.lag) and args.format != "shards":
        raise UsageError(flag="--format", hint="--follow and --lag are for shards")
    if args.follow and args.snapshot is not None:
        raise UsageError(flag="--snapshot", hint="--follow reads what comes; leave it out")
    if args.follow and (args.workers is not None or args.engine is not None):
        flag = "--workers" if args.workers is not None else "--engine"
        raise UsageError(flag=flag, hint="one process follows; batch exports have workers")
    if args.follow and "://" in args.out:
        raise UsageError(flag="--out", hint="--follow writes into a folder of this machine")


def run_follow(args: argparse.Namespace, spec: Spec) -> Log:
    """Follow until idle, or until the process is ended; what is there then."""
    from tracestore.cli.export import register_made
    from tracestore_exporters.follow import UNSTATED_S, following, looks
    from tracestore_exporters.inventory import misses

    with (
        opened_store(args, create=False) as store,
        following(
            store,
            args.project,
            args.out,
            spec,
            settle_s=args.settle or 0.0,
            unstated_s=args.silence or UNSTATED_S,
            chat=chat_of(args),
        ) as follower,
    ):
        if not store.snapshot(args.project):
            note(f"note: nothing has come to project {args.project!r} yet", args=args)
        noted = follower.log.manifest()
        # It stays the same however far the log goes: deletions and the service name the folder by it.
        name = follower.log.first_hash
        note(f"note: this export is {name}", args=args)
        if follower.log.number:
            register_made(store, noted, args, name=name)
        told = set[str]()
        for entry in looks(follower, interval_s=args.interval or 1.0, until_idle_s=args.until_idle):
            shards = (*entry.shards, *(one.shard for one in entry.rewritten if one.shard is not None))
            new = {"snapshot": entry.snapshot, "conservation": entry.conservation, "shards": shards}
            noted = noted.model_copy(update=new)
            register_made(store, noted, args, name=name)
            _print_entry(entry, args, name=name)
            for miss in misses(follower.there, spec):
                what, _, _ = miss.partition(";")  # then follows what there is, which grows
                if what not in told:
                    note(f"note: so far {miss}", args=args)
                told.add(what)
        return follower.log


def run_lag(args: argparse.Namespace) -> int:
    """Print how far behind trainer and follower are."""
    from tracestore.shards.log import Log
    from tracestore_exporters.lag import lag

    log = Log.open(Path(args.out))
    with opened_store(args, create=False) as store:
        require_project(store, args)
        if log.header.project != args.project:
            raise UsageError(
                project=args.project, followed=log.header.project, hint="--project names the one followed"
            )
        found = lag(store, args.project, log, run=args.run)
    print_facts(found.facts(), args=args)
    return 0


def _print_entry(entry: Entry, args: argparse.Namespace, *, name: str) -> None:
    facts = {
        "entry": entry.number,
        "snapshot": entry.snapshot,
        "groups": len(entry.groups),
        "rows": sum(group.rows for group in entry.groups),
        "trained_tokens": entry.adds.trained_tokens,
        "late_tokens": entry.conservation.excluded.get("late", 0),
        "replaced": len(entry.tombstones),
        "rewritten_shards": len(entry.rewritten),
        "waiting": len(entry.waiting),
    }
    if args.json:
        print_json_line(facts | {"shards": [shard.file for shard in entry.shards], "manifest_hash": name})
    else:
        print_line(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items()))
