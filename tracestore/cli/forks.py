"""`tracestore forks`: the forks of an episode beside it: where each parts from it, and what came of it."""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    add_store_flags,
    opened_store,
    print_json_line,
    print_line,
    print_table,
    printable,
    require_project,
    verb_parser,
)
from tracestore.cli.show import NothingRecorded, is_episode

if TYPE_CHECKING:
    from tracestore.graph.context import ContextMessage
    from tracestore.graph.model import CompletionKey, Graph
    from tracestore.replay.paths import Fork
    from tracestore.store.store import Store


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "forks",
        help="list the forks of an episode: where each parts from it, and the rewards side by side",
        example="tracestore forks EPISODE_ID",
    )
    add_store_flags(parser)
    parser.add_argument(
        "episode",
        nargs="?",
        metavar="EPISODE",
        help="the origin (default: list the episodes that have forks)",
    )


def run(args: argparse.Namespace) -> int:
    from tracestore.store import query

    with opened_store(args, create=False) as store:
        require_project(store, args)
        with store.read() as connection:
            pairs = query.forks(connection, args.project, origin=args.episode)
            is_here = args.episode is None or is_episode(connection, args.project, args.episode)
        if args.episode is None:
            _print_origins(pairs, args)
        elif not pairs and not is_here:
            raise NothingRecorded(
                id=args.episode, project=args.project, hint="`tracestore show` lists episodes"
            )
        else:
            _print_forks(store, is_here, [fork for _, fork in pairs], args)
    return 0


def _print_origins(pairs: Sequence[tuple[str, str]], args: argparse.Namespace) -> None:
    forks: dict[str, list[str]] = defaultdict(list)
    for origin, fork in pairs:
        forks[origin].append(fork)
    if args.json:
        for origin, ids in forks.items():
            print_json_line({"episode_id": origin, "forks": ids})
    elif forks:
        print_table(("episode", "forks"), [(origin, len(ids)) for origin, ids in forks.items()])
    else:
        print_line("no episode has a fork")


def _print_forks(store: Store, is_here: bool, ids: Sequence[str], args: argparse.Namespace) -> None:
    """The origin first, then its forks in the order in which they came."""
    from tracestore.replay.paths import forked

    origin = store.load_graph(args.project, args.episode) if is_here else None
    lines = [_own_facts(args.episode, origin)]
    for fork_id in ids:
        fork = store.load_graph(args.project, fork_id)
        found = None if origin is None else forked(origin, fork)
        after = None if fork.episode is None else fork.episode.forked_from_call_id
        facts = _own_facts(fork_id, fork) | {"forked_from_call_id": after} | _parting_facts(found)
        lines.append(facts | {"reward_difference": _less(facts["reward"], lines[0]["reward"])})
    if args.json:
        for line in lines:
            print_json_line(line)
        return
    _print_side_by_side(lines)
    for line in lines[1:]:
        if line["at"] is not None:
            print_line()
            print_line(printable(f"{line['episode_id']} parts from {args.episode} at message {line['at']}"))
            for name, side in ((args.episode, line["origin_message"]), (line["episode_id"], line["message"])):
                text = "(ends here)" if side is None else f"{side['role'] or 'message'}: {side['preview']}"
                print_line(printable(f"  {name}  {text}"))


def _own_facts(episode_id: str, graph: Graph | None) -> dict[str, Any]:
    """Status and rewards of one episode; None is unknown."""
    from tracestore.wire.reward import counted

    rewards = [] if graph is None else list(graph.rewards.values())
    own = [one for one in rewards if one.target.finest == "episode"]
    terms = [term for one in own if (term := counted(one.value, one.weight)) is not None]
    return {
        "episode_id": episode_id,
        "status": None if graph is None or graph.episode is None else graph.episode.status,
        "reward": math.fsum(terms) if terms else None,
        "rewards": [
            {name: getattr(one, name) for name in ("name", "value", "weight", "scorer", "scorer_version")}
            for one in own
        ],
    }


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _parting_facts(found: Fork | None) -> dict[str, Any]:
    """Where a fork parts, and what was sampled on both sides from there on."""
    if found is None:
        names = ("at", "shared_tokens", "sampled_tokens", "origin_sampled_tokens", "end", "origin_end")
        return dict.fromkeys((*names, "message", "origin_message", "difference"))
    difference = found.parting.difference
    return {
        "at": found.parting.messages,
        "shared_tokens": found.parting.tokens,
        "sampled_tokens": found.sampled_fork,
        "origin_sampled_tokens": found.sampled_origin,
        "end": _key(found.fork_end),
        "origin_end": _key(found.origin_end),
        "message": _message(found.at_fork),
        "origin_message": _message(found.at_origin),
        "difference": None if difference is None else asdict(difference),
    }


def _key(key: CompletionKey | None) -> dict[str, Any] | None:
    return None if key is None else {"call_id": key[0], "completion": key[1]}


def _message(message: ContextMessage | None) -> dict[str, Any] | None:
    from tracestore.graph.messages import preview, role_of

    if message is None:
        return None
    return {"role": role_of(message.raw), "preview": preview(message.raw), "author": _key(message.author)}


def _print_side_by_side(lines: Sequence[dict[str, Any]]) -> None:
    """A row an episode, a column for each reward: one of another scorer or version has its own."""
    kinds = sorted({_kind(one) for line in lines for one in line["rewards"]})
    called = Counter(name for name, _, _ in kinds)
    titles = [
        name if called[name] == 1 else f"{name} ({scorer or 'no scorer'} {version})".replace(" )", ")")
        for name, scorer, version in kinds
    ]
    columns = [
        "episode",
        "status",
        "after call",
        "at message",
        "tokens shared",
        "sampled after",
        "its origin",
    ]
    parts = ("forked_from_call_id", "at", "shared_tokens", "sampled_tokens", "origin_sampled_tokens")
    rows = []
    for line in lines:
        # What is said of a fork is nothing that could be known of its origin.
        about = [line[part] if "at" in line else "" for part in parts]
        rows.append([line["episode_id"], line["status"], *about, line["reward"], *_values(line, kinds)])
    print_table([*columns, "reward", *titles], rows)


def _kind(reward: dict[str, Any]) -> tuple[str, str, str]:
    return reward["name"], reward["scorer"] or "", reward["scorer_version"] or ""


def _values(line: dict[str, Any], kinds: Sequence[tuple[str, str, str]]) -> list[float | None]:
    """The sum of an episode's rewards of each kind; None where it has none."""
    found = [[one["value"] for one in line["rewards"] if _kind(one) == kind] for kind in kinds]
    return [math.fsum(values) if values else None for values in found]
