"""`tracestore diff A B`: where two recorded calls, branches or episodes first differ."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    opened_store,
    print_json_line,
    print_line,
    printable,
    verb_parser,
    whole_number,
)
from tracestore.cli.show import NothingRecorded, episode_of_call, is_episode

if TYPE_CHECKING:
    from tracestore.graph.model import Graph
    from tracestore.replay.compare import Differing
    from tracestore.replay.paths import Path
    from tracestore.replay.sides import Row
    from tracestore.replay.tape import Recorded
    from tracestore.store.store import Store
    from tracestore.wire.episode import Episode
    from tracestore.wire.events import AnyEvent

SHOWN = 20
"""Differences that are printed; `--json` holds all."""
AROUND = 3
"""Equal lines beside the first that differs, unless said otherwise."""
_WIDTH = 120
"""Of a terminal that does not say."""


@dataclass(frozen=True)
class Operand:
    """What one of the two words names."""

    word: str
    episode_id: str
    call_id: str | None = None
    """None: the whole episode."""
    completion: int | None = None
    """Of a branch: the answer it ends with."""


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "diff",
        help="show where two calls, branches or episodes first differ: message, byte and token",
        example="tracestore diff e1 e2",
    )
    add_store_flags(parser)
    parser.add_argument(
        "one",
        metavar="A",
        help="id of a call or an episode; CALL/0 is the branch that ends with the first answer of a call",
    )
    parser.add_argument("other", metavar="B", help="another: a call or branch, or an episode")
    parser.add_argument(
        "--context",
        metavar="N",
        type=whole_number(least=0),
        default=AROUND,
        help=f"equal lines shown around the first that differ, side by side (default: {AROUND})",
    )


def run(args: argparse.Namespace) -> int:
    with opened_store(args, create=False) as store:
        one, other = (_operand(store, args.project, word) for word in (args.one, args.other))
        if (one.call_id is None) != (other.call_id is None):
            raise UsageError(
                one=args.one, other=args.other, hint="name two calls or branches, or two episodes"
            )
        found = list(_differing(store, args.project, one, other))
        rows = [] if args.json or not found else _rows(store, args, one, other, found)
    if args.json:
        for differing in found:
            print_json_line(asdict(differing))
        print_json_line({"equal": not found, "differences": len(found)})
    elif not found:
        is_path = one.completion is not None or other.completion is not None
        print_line(
            "equal: "
            + (
                "messages, and token ids where both are recorded"
                if is_path
                else "requests, outcomes, answers and token ids"
            )
        )
    else:
        _print(found)
        _print_rows(rows)
    return 1 if found else 0


def _operand(store: Store, project: str, word: str) -> Operand:
    """An episode or a call of this id, else the branch that `CALL/COMPLETION` names."""
    with store.engine.connect() as connection:
        if is_episode(connection, project, word):
            return Operand(word, word)
        episode_id = episode_of_call(connection, project, word)
        if episode_id is not None:
            return Operand(word, episode_id, word)
        call_id, _, completion = word.rpartition("/")
        episode_id = episode_of_call(connection, project, call_id) if completion.isdecimal() else None
    if episode_id is None:
        raise NothingRecorded(id=word, project=project, hint="`tracestore show` lists episodes")
    return Operand(word, episode_id, call_id, int(completion))


def _differing(store: Store, project: str, one: Operand, other: Operand) -> Sequence[Differing]:
    from tracestore.replay.compare import of_calls, of_paths

    if one.call_id is None:
        return _of_episodes(store, project, one, other)
    if one.completion is None and other.completion is None:
        return list(of_calls(*(_call(store, project, each) for each in (one, other))))
    paths = [_path(store.load_graph(project, each.episode_id), each) for each in (one, other)]
    return list(of_paths(*paths, names=(one.word, other.word)))


def _of_episodes(store: Store, project: str, one: Operand, other: Operand) -> Sequence[Differing]:
    """Where one is a fork of the other, the calls since they parted."""
    from tracestore.replay.compare import from_parting, of_episodes
    from tracestore.replay.tape import recorded_calls

    events = [store.load(project, each.episode_id) for each in (one, other)]
    mine, theirs = (list(recorded_calls(some)) for some in events)
    if (fork := _fork_of(one.episode_id, events[1])) is not None:
        mine = from_parting(mine, theirs, after=fork.forked_from_call_id)
    elif (fork := _fork_of(other.episode_id, events[0])) is not None:
        theirs = from_parting(theirs, mine, after=fork.forked_from_call_id)
    return list(of_episodes(mine, theirs))


def _fork_of(origin: str, events: Sequence[AnyEvent]) -> Episode | None:
    """What says that they are of a fork of an episode."""
    episodes = (one for one in events if one.kind == "episode")
    return next((one for one in episodes if one.forked_from_episode_id == origin), None)


def _calls(store: Store, project: str, operand: Operand) -> list[Recorded]:
    from tracestore.replay.tape import recorded_calls

    return list(recorded_calls(store.load(project, operand.episode_id)))


def _call(store: Store, project: str, operand: Operand) -> Recorded:
    found = next((one for one in _calls(store, project, operand) if one.call.id == operand.call_id), None)
    if found is None:
        raise NothingRecorded(id=operand.word, project=project, hint="its request was not recorded")
    return found


def _path(graph: Graph, operand: Operand) -> Path:
    """The context of a call, or the branch that ends with an answer of it."""
    from tracestore.replay.paths import branch_path, context_path

    assert operand.call_id is not None, "an episode is no path"
    if operand.call_id in graph.pending:
        raise NothingRecorded(
            call_id=operand.call_id, hint="its context is not known: its parent has not come"
        )
    if operand.completion is None:
        return context_path(graph, operand.call_id)
    key = (operand.call_id, operand.completion)
    if key not in graph.completions:
        raise NothingRecorded(call_id=key[0], completion=key[1], hint="the call has no such completion")
    return branch_path(graph, key)


def _rows(
    store: Store, args: argparse.Namespace, one: Operand, other: Operand, found: Sequence[Differing]
) -> list[Row]:
    """The first messages that differ, side by side; [] where they do not differ, or a side has none there."""
    from tracestore.replay.paths import parting
    from tracestore.replay.sides import side_by_side

    ends = []
    for operand, call_id in zip((one, other), found[0].calls, strict=True):
        graph = store.load_graph(args.project, operand.episode_id)
        if operand.completion is None:
            if call_id is None or call_id in graph.pending:
                return []
            operand = Operand(operand.word, operand.episode_id, call_id, _only(graph, call_id))
        ends.append(_path(graph, operand))
    at = parting(*ends).messages
    if any(at >= len(path.messages) for path in ends):
        return []
    values = [path.messages[at].raw.value() for path in ends]
    return side_by_side(*values, around=args.context)


def _only(graph: Graph, call_id: str) -> int | None:
    """The first answer of a call; None without one."""
    answers = graph.completions_of(call_id)
    return answers[0][1] if answers else None


def _print(found: Sequence[Differing]) -> None:
    for differing in found[:SHOWN]:
        one = differing.difference
        at = "" if one.byte is None else f", byte {one.byte}"
        calls = " and ".join("(no call)" if id_ is None else id_ for id_ in differing.calls)
        print_line(printable(f"{differing.what} of {calls}: {one.path}{at}"))
        print_line(printable(f"  {one.recorded}"))
        print_line(printable(f"  {one.asked}"))
    if len(found) > SHOWN:
        print_line(f"{len(found) - SHOWN} more: --json tells all")


def _print_rows(rows: Sequence[Row]) -> None:
    """Two columns, A on the left."""
    from tracestore.replay.differences import shared
    from tracestore.replay.sides import cut

    if not rows:
        return
    width = (shutil.get_terminal_size((_WIDTH, 0)).columns - 3) // 2
    print_line()
    for row in rows:
        at = 0 if row.left is None or row.right is None else shared(row.left, row.right)
        left, right = (cut(None if side is None else printable(side), width, at=at) for side in row)
        print_line(f"{left.ljust(width)} {row.mark} {right}".rstrip())
