"""`tracestore show`: an episode as a tree or a picture, a call as facts, a call's context as it saw it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from tracestore.cli.common import (
    Subparsers,
    UsageError,
    add_store_flags,
    opened_store,
    print_facts,
    print_json_line,
    print_line,
    print_table,
    printable,
    require_project,
    verb_parser,
)
from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from tracestore.graph.compaction import Compaction
    from tracestore.graph.context import ContextMessage
    from tracestore.graph.model import Graph
    from tracestore.store.store import Store

LATEST = 20
"""Episodes listed when no id is given."""
_ONE_LINE = {ord("\n"): " ", ord("\r"): " "}


class NothingRecorded(TracestoreError):
    """There is no episode and no call with this id"""

    status = 404


def add_parser(subparsers: Subparsers) -> None:
    parser = verb_parser(
        subparsers,
        "show",
        help="print the tree of an episode, or a call and its exact context",
        example="tracestore show CALL_ID --context",
    )
    add_store_flags(parser)
    parser.add_argument(
        "id", nargs="?", metavar="ID", help="an episode or a call (default: list the latest episodes)"
    )
    parser.add_argument(
        "--context",
        action="store_true",
        help="of a call: the messages it saw, byte for byte, with authors, context edits and token counts",
    )
    parser.add_argument(
        "--picture",
        choices=("mermaid", "svg"),
        help="of an episode: a picture of its agents, calls and context edits, on stdout",
    )


def run(args: argparse.Namespace) -> int:
    if args.context and args.id is None:
        raise UsageError(hint="--context needs the id of a call")
    if args.picture is not None and (args.id is None or args.context or args.json):
        raise UsageError(
            hint="--picture needs the id of an episode, and goes with neither --context nor --json"
        )
    with opened_store(args, create=False) as store:
        require_project(store, args)
        if args.id is None:
            _print_latest(store, args)
        else:
            _print_one(store, args)
    return 0


def _print_latest(store: Store, args: argparse.Namespace) -> None:
    from sqlalchemy import func, select

    from tracestore.store import tables as t

    calls = (
        select(func.count())
        .where(t.call.c.project_id == t.episode.c.project_id, t.call.c.episode_key == t.episode.c.key)
        .scalar_subquery()
    )
    query = (
        select(
            t.episode.c.id, t.episode.c.status, t.episode.c.split, t.episode.c.task_id, calls.label("calls")
        )
        .join(t.project, t.project.c.project_id == t.episode.c.project_id)
        .where(t.project.c.name == args.project, t.episode.c.first_pos.is_not(None))
        .order_by(t.episode.c.first_pos.desc())
        .limit(LATEST)
    )
    with store.engine.connect() as connection:
        found = connection.execute(query)
        columns, rows = list(found.keys()), [tuple(row) for row in found]
    if args.json:
        for row in rows:
            print_json_line(dict(zip(columns, row, strict=True)))
        return
    print_table(columns, rows, title=f"latest episodes of project {printable(args.project)}")


def _print_one(store: Store, args: argparse.Namespace) -> None:
    with store.engine.connect() as connection:
        call_episode = episode_of_call(connection, args.project, args.id)
        of_episode = is_episode(connection, args.project, args.id)
    if of_episode and not args.context:
        _print_episode(store.load_graph(args.project, args.id), args)
    elif call_episode is not None:
        if args.picture is not None:
            raise UsageError(hint="--picture needs the id of an episode, this is a call")
        graph = store.load_graph(args.project, call_episode)
        (_print_context if args.context else _print_call)(graph, args)
    elif of_episode:
        raise UsageError(hint="--context needs the id of a call, this is an episode")
    else:
        raise NothingRecorded(id=args.id, project=args.project, hint="`tracestore show` lists episodes")


def is_episode(connection: Connection, project: str, episode_id: str) -> bool:
    """Whether a project has an episode of this id."""
    from sqlalchemy import select

    from tracestore.store import tables as t

    query = (
        select(t.episode.c.key)
        .join(t.project, t.project.c.project_id == t.episode.c.project_id)
        .where(t.project.c.name == project, t.episode.c.id == episode_id, t.episode.c.first_pos.is_not(None))
    )
    return connection.execute(query).first() is not None


def episode_of_call(connection: Connection, project: str, call_id: str) -> str | None:
    """The episode of a call; None where there is no such call."""
    from sqlalchemy import and_, false, select

    from tracestore.store import tables as t

    in_episode = and_(t.episode.c.project_id == t.call.c.project_id, t.episode.c.key == t.call.c.episode_key)
    query = (
        select(t.episode.c.id)
        .join(t.call, in_episode)
        .join(t.project, t.project.c.project_id == t.call.c.project_id)
        .where(t.project.c.name == project, t.call.c.id == call_id, t.call.c.is_placeholder == false())
    )
    return connection.execute(query).scalar()


def _print_episode(graph: Graph, args: argparse.Namespace) -> None:
    from tracestore.cli.tree import tree_lines
    from tracestore.graph.report import episode_tree
    from tracestore.wire.strict import dumps

    if args.picture is not None:
        from tracestore.analysis.episode import Episode

        episode = Episode(args.id, graph)
        print_line((episode.svg() if args.picture == "svg" else episode.mermaid()).rstrip("\n"))
        return
    if args.json:
        # A line break of a posted span is white space between its tokens: strings escape theirs.
        print_line(dumps(episode_tree(graph, args.id)).decode("utf-8").translate(_ONE_LINE))
        return
    for line in tree_lines(graph):
        print_line(line)


def _print_call(graph: Graph, args: argparse.Namespace) -> None:
    call, link = graph.calls[args.id], graph.links[args.id]
    facts: dict[str, Any] = {
        "call_id": call.id,
        "episode_id": call.episode_id,
        "agent_id": call.agent_id,
        "ordinal": call.ordinal,
        "purpose": call.purpose,
        "model": call.model,
        "policy": None if call.policy is None else call.policy.name,
        "policy_version": None if call.policy is None else call.policy.version,
        "status": call.status,
        "continues": None if link.parent is None else list(link.parent),
        "link": link.how,
    }
    for key in graph.completions_of(call.id):
        answer = graph.completions[key]
        facts[f"completion_{key[1]}"] = {
            "finish_reason": answer.finish_reason,
            "tokens": None if answer.token_ids is None else len(answer.token_ids),
            "logprobs": answer.logprobs is not None,
            "message": None if answer.message is None else answer.message.decode("utf-8"),
        }
    print_facts(facts, args=args)


def _print_context(graph: Graph, args: argparse.Namespace) -> None:
    from tracestore.graph.compaction import edits_behind
    from tracestore.graph.context import context
    from tracestore.graph.lengths import stretches
    from tracestore.graph.tokens import prompt_ids

    if args.id in graph.pending:
        raise NothingRecorded(call_id=args.id, hint="its context is not known: its parent has not come")
    pieces = stretches(graph, args.id)
    alone = {one.first: one.tokens for one in pieces if one.end == one.first + 1}
    edits, brought = edits_behind(graph, args.id)
    messages = [
        _message_facts(graph, index, message) | {"edit": brought.get(index), "tokens": alone.get(index)}
        for index, message in enumerate(context(graph, args.id))
    ]
    ids, usage = prompt_ids(graph, args.id), graph.calls[args.id].usage
    whole = {
        "messages": len(messages),
        "tokens": None if ids is None else len(ids),
        "usage_prompt_tokens": None if usage is None else usage.prompt_tokens,
        "together": [
            {"first": one.first, "end": one.end, "tokens": one.tokens}
            for one in pieces
            if one.end != one.first + 1 and one.tokens is not None
        ],
        "edits": [_edit_facts(one) for one in edits],
    }
    if args.json:
        for message in messages:
            print_json_line(message)
        print_json_line(whole)
        return
    for message in messages:
        print_line(printable(_message_title(message)))
        for line in message["raw"].split("\n"):
            print_line(printable(line))
    for line in _whole_lines(whole):
        print_line(printable(line))


def _message_facts(graph: Graph, index: int, message: ContextMessage) -> dict[str, Any]:
    """`raw` is the text of the message as a string: exact, where a parsed number might not be."""
    author = (
        None if message.author is None else {"call_id": message.author[0], "completion": message.author[1]}
    )
    role = None if message.node is None else graph.nodes[message.node].role
    return {"index": index, "role": role, "author": author, "raw": message.raw.decode("utf-8")}


def _edit_facts(made: Compaction) -> dict[str, Any]:
    """A context edit behind a context; None is unknown."""
    edit = made.edit
    return {
        "context_edit_id": edit.id,
        "edit": edit.edit,
        "author": edit.author,
        "author_call_id": edit.author_call_id,
        "before_call_id": edit.before_call_id,
        "after_call_id": edit.after_call_id,
        "vanished": None if made.vanished is None else len(made.vanished),
        "kept": made.kept,
        "added": None if made.added is None else len(made.added),
    }


def _message_title(message: dict[str, Any]) -> str:
    author, edit = message["author"], message["edit"]
    facts = [
        message["role"],
        _tokens_text(message["tokens"]),
        None if author is None else f"by call {author['call_id']}, completion {author['completion']}",
        None if edit is None else f"brought by edit {edit}",
    ]
    return f"[{message['index']}]  " + "  ".join(fact for fact in facts if fact)


def _tokens_text(count: int | None) -> str:
    if count is None:
        return "? tokens"
    return f"{count:,} token{'' if count == 1 else 's'}"


def _whole_lines(whole: dict[str, Any]) -> Iterator[str]:
    for one in whole["together"]:
        first, last = one["first"], one["end"] - 1
        what = f"[{first}-{last}]  together" if last > first else f"[{first}-]  the template"
        yield f"{what} {_tokens_text(one['tokens'])}"
    usage = whole["usage_prompt_tokens"]
    said = "" if whole["tokens"] is not None or usage is None else f" (the server counted {usage:,})"
    yield f"{whole['messages']} messages, {_tokens_text(whole['tokens'])}{said}"
    for edit in whole["edits"]:
        counts = [
            f"{name} {'?' if edit[name] is None else edit[name]}" for name in ("vanished", "kept", "added")
        ]
        places = [
            f"{word} call {edit[name]}"
            for word, name in (("written by", "author_call_id"), ("after", "before_call_id"))
            if edit[name] is not None
        ]
        by = [] if edit["author"] is None else [f"by the {edit['author'].replace('_', ' ')}"]
        title = f"edit {edit['context_edit_id']}: {edit['edit'].replace('_', ' ')}"
        yield f"{', '.join([title, *by, *places])}: messages {', '.join(counts)}"
