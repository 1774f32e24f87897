"""`tracestore rescore`: a new reward function over stored episodes -> reward rows beside those there are."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from tracestore.cli.common import (
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
    require_project,
    verb_parser,
    whole_number,
)
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.analysis.rescoring import Rescoring
    from tracestore.importers.items import Item
    from tracestore.store.store import Store
    from tracestore.wire.reward import Reward

BATCH = 500
"""Rewards that are stored at once."""
SHOWN = 20
"""Problems and, of a dry run, rewards that are printed; `--json` holds all."""

Sink = Callable[[Sequence["Item"]], list[tuple[str, str | None]]]
"""Events -> (status, problem) of each."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "rescore",
        help="run a new reward function over stored episodes and add what it gives as rewards",
        example="tracestore rescore --scorer my_rewards:correct --group bridges",
    )
    parser.add_argument(
        "--scorer",
        required=True,
        metavar="MODULE:FUNCTION",
        help="function of an episode, whose graph() has its calls, completions, tool calls and rewards; it"
        " returns a number, numbers by name, a list of Score, or None",
    )
    parser.add_argument(
        "--scorer-version",
        metavar="V",
        help="recorded with each reward; another version adds rows (default: a hash of the module's file)",
    )
    parser.add_argument("--name", help="of the reward where the scorer gives none (default: FUNCTION)")
    parser.add_argument(
        "--weight",
        type=_finite_number,
        default=0.0,
        metavar="W",
        help="in the composed reward (default: 0, which changes no sum and grades nothing)",
    )
    for flag, what in (("--episode", "an episode"), ("--group", "the episodes of a group")):
        parser.add_argument(
            flag,
            metavar="ID",
            action="append",
            default=[],
            help=f"{what}; several are allowed (default: all)",
        )
    parser.add_argument(
        "--status",
        action="append",
        default=[],
        help="only episodes that ended like this; several are allowed",
    )
    parser.add_argument(
        "--limit", type=whole_number(least=1), metavar="N", help="score the first N of them and stop"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be added, and add nothing")
    parser.add_argument(
        "--url",
        help="post to this server, which has the same database, instead of writing to --db; its key is"
        " $TRACESTORE_API_KEY",
    )
    add_store_flags(parser)


def run(args: argparse.Namespace) -> int:
    rescoring = _rescoring(args)
    done = Rescored()
    with opened_store(args, create=False) as store:
        require_project(store, args)
        ids = _chosen(store, args)
        with _sink(store, args) as sink, progress("rescore", args=args, total=len(ids)) as advance:
            for episode_id in ids:
                done.score(store, args.project, episode_id, rescoring)
                if len(done.waiting) >= BATCH:
                    done.keep(sink, args)
                advance(1)
            done.keep(sink, args)
    _print(done, rescoring, args)
    return 1 if done.problems else 0


def _finite_number(text: str) -> float:
    """An argparse type."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no finite number")
    return value


def _rescoring(args: argparse.Namespace) -> Rescoring:
    from tracestore.analysis.rescoring import Rescoring, load_scorer

    function, version = load_scorer(args.scorer)
    return Rescoring(
        function=function,
        scorer=args.scorer,
        version=version if args.scorer_version is None else args.scorer_version,
        name=args.scorer.rpartition(":")[2] if args.name is None else args.name,
        weight=args.weight,
    )


def _chosen(store: Store, args: argparse.Namespace) -> list[str]:
    """The episodes to score. Raises UsageError for a word that names none."""
    from tracestore.store import query
    from tracestore.wire.episode import EpisodeStatus

    for status in args.status:
        if status not in get_args(EpisodeStatus):
            raise UsageError(status=status, hint=f"statuses: {', '.join(get_args(EpisodeStatus))}")
    with store.read() as connection:
        for flag, named in (("ids", args.episode), ("group_ids", args.group)):
            for one in named:
                if not query.episodes(connection, args.project, **{flag: [one]}):
                    what = "episode" if flag == "ids" else "group"
                    raise UsageError(**{what: one}, project=args.project, hint=f"there is no such {what}")
        found = query.episodes(
            connection, args.project, ids=args.episode, group_ids=args.group, statuses=args.status
        )
    return found[: args.limit]


@contextmanager
def _sink(store: Store, args: argparse.Namespace) -> Iterator[Sink]:
    """Where rewards go: the store itself, or a server of it."""
    if args.url is None:
        yield lambda items: [(one.status, one.problem) for one in store.ingest(args.project, list(items))]
        return
    from tracestore.cli.posting import posting

    key = os.environ.get("TRACESTORE_API_KEY") or None
    with posting(args.url, project=args.project, api_key=key, tell=partial(note, args=args)) as post:
        yield post


@dataclass
class Rescored:
    """What came of a rescoring so far."""

    episodes: Counter[str] = field(default_factory=Counter)
    """scored, without_reward, failed."""
    rewards: Counter[str] = field(default_factory=Counter)
    """stored, duplicate, conflict, error; of a dry run new and duplicate."""
    namesakes: int = 0
    """Rewards beside which another of their name stands."""
    problems: list[dict[str, str]] = field(default_factory=list)
    waiting: list[tuple[Reward, bool]] = field(default_factory=list)
    """Rewards that were not handed on yet, and whether the episode has one of the same id."""
    shown: list[dict[str, Any]] = field(default_factory=list)
    """The first rewards of a dry run."""

    def score(self, store: Store, project: str, episode_id: str, rescoring: Rescoring) -> None:
        """Ask the scorer about one episode; what goes wrong with it costs the others nothing."""
        try:
            graph = store.load_graph(project, episode_id)
            with redirect_stdout(sys.stderr):  # stdout is the verb's own
                found = rescoring.rewards(episode_id, graph)
        except TracestoreError as error:
            self.episodes["failed"] += 1
            self._has(episode_id, str(error))
            return
        self.episodes["scored" if found else "without_reward"] += 1
        self.namesakes += sum(bool(rescoring.namesakes(one, graph)) for one in found)
        self.waiting += [(one, one.id in graph.rewards) for one in found]

    def keep(self, sink: Sink, args: argparse.Namespace) -> None:
        """Hand on the rewards that wait."""
        from tracestore.importers.items import Item
        from tracestore.wire.encode import encode

        waiting, self.waiting = self.waiting, []
        outcomes: list[tuple[str, str | None]]
        if args.dry_run:
            outcomes = [("duplicate" if is_there else "new", None) for _, is_there in waiting]
        else:
            outcomes = sink([Item(one, encode(one)) for one, _ in waiting]) if waiting else []
        for (one, _), (status, problem) in zip(waiting, outcomes, strict=True):
            self.rewards[status] += 1
            target = one.target.model_dump(exclude_none=True)
            line = {"reward_id": one.id, **target, "name": one.name, "value": one.value, "status": status}
            if args.json:
                print_json_line(line)
            elif args.dry_run and len(self.shown) < SHOWN:
                self.shown.append(line)
            if status == "conflict":
                problem = f"{one.name}: another value or weight is there from this scorer and version;"
                problem += " name another --scorer-version"
            if status not in ("stored", "duplicate", "new"):
                self._has(one.target.episode_id, problem or status)

    def _has(self, episode_id: str, problem: str) -> None:
        self.problems.append({"episode_id": episode_id, "problem": problem})


def _print(done: Rescored, rescoring: Rescoring, args: argparse.Namespace) -> None:
    facts = {
        "scorer": rescoring.scorer,
        "scorer_version": rescoring.version,
        "weight": rescoring.weight,
        "dry_run": args.dry_run,
        "episodes": dict(done.episodes),
        "rewards": dict(done.rewards),
        "same_name": done.namesakes,
    }
    if args.json:
        print_json_line(facts | {"problems": done.problems})
        return
    for one in done.problems[:SHOWN]:
        note(printable(f"{one['episode_id']}: {one['problem']}"), args=args)
    if len(done.problems) > SHOWN:
        note(f"... and {len(done.problems) - SHOWN:,} more (--json lists them)", args=args)
    if done.shown:
        rows = [(one["episode_id"], one["name"], one["value"], one["status"]) for one in done.shown]
        print_table(("episode", "name", "value", "status"), rows)
    counted = [f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(done.episodes.items())]
    print_line("episodes: " + (", ".join(counted) or "none"))
    counted = [f"{count:,} {name}" for name, count in sorted(done.rewards.items())]
    print_line(f"rewards: {', '.join(counted) or 'none'}, by {rescoring.scorer}, version {rescoring.version}")
    if done.namesakes:
        note(
            f"note: {done.namesakes:,} stand beside others of the same name; a spec that names it adds them"
            " up (--name gives another)",
            args=args,
        )
