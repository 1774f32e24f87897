"""Rows -> what one call saw, each message with the completion that wrote it.

It is what `graph.context` finds, read from the call's own chain and nothing else of its episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    bindparam,
    select,
)

from tracestore.graph.model import CompletionKey, Link
from tracestore.store import tables as t
from tracestore.store.load import path_messages
from tracestore.store.lookup import driver_rows
from tracestore.wire.base import Raw


class Seen(NamedTuple):
    """The context of a call and how it follows from another one."""

    link: Link
    messages: list[tuple[Raw, CompletionKey | None]] | None
    """In order, each with its author. None: the call is pending, and what came before is not known."""


class _Linked(NamedTuple):
    """A call of the chain, as far as its answer is concerned that was continued."""

    id: str
    depth: int | None
    """Of the last message that it saw itself; None: it saw none."""
    match_key: bytes | None
    """Of the last message of the answer; None: it has none with a place."""
    answer_depth: int | None
    link_call_key: int | None
    link_completion: int | None


def what_was_seen(connection: Connection, project_id: int, call_key: int) -> Seen:
    """The context of a call that has come."""
    here = {"project_id": project_id, "call_key": call_key}
    call = connection.execute(_CALL, here).one()
    chain = {row[:2]: _Linked(*row[2:]) for row in driver_rows(connection, _CHAIN, here)}
    first = _Linked(call.id, None, None, None, call.link_call_key, call.link_completion)
    messages = None
    if call.context_messages is not None:
        messages = _messages(connection, call, _answers(first, chain))
    return Seen(link_of(connection, call), messages)


def link_of(connection: Connection, call: Row[Any]) -> Link:
    """How a call follows from another one, by its whole row."""
    parent = None
    if call.link_call_key is not None:
        c = t.call.c
        id_ = select(c.id).where(c.project_id == call.project_id, c.key == call.link_call_key)
        parent = (connection.execute(id_).scalar_one(), call.link_completion)
    return Link(parent, call.link or "none", bool(call.link_exact))


def _answers(
    call: _Linked, chain: Mapping[tuple[int, int], _Linked]
) -> Iterator[tuple[CompletionKey, _Linked]]:
    """The completions that led to a call, the latest first, each with its call."""
    seen = {call.id}
    while call.link_call_key is not None and call.link_completion is not None:
        index = call.link_completion
        call = chain[call.link_call_key, index]
        if call.id in seen:
            return
        seen.add(call.id)
        yield (call.id, index), call


def _messages(
    connection: Connection, call: Row[Any], answers: Iterable[tuple[CompletionKey, _Linked]]
) -> list[tuple[Raw, CompletionKey | None]]:
    if call.prompt_node_key is None:
        return []
    here = {"project_id": call.project_id, "node_key": call.prompt_node_key}
    place = dict(driver_rows(connection, _PLACES, here))
    authors: dict[int, CompletionKey] = {}
    for name, author in answers:
        # One whose text drifted stands at no place of this context; those behind it still may.
        last = author.answer_depth
        if last is not None and place.get(last) == author.match_key:
            first = 0 if author.depth is None else author.depth + 1
            authors.update((position, name) for position in range(first, last + 1))
    spans = path_messages(connection, call.project_id, call.prompt_node_key)
    return [(span, authors.get(position)) for position, span in enumerate(spans)]


_PROJECT_ID, _CALL_KEY, _NODE_KEY = (
    bindparam(name, type_=BigInteger) for name in ("project_id", "call_key", "node_key")
)
_CALL = select(t.call).where(t.call.c.project_id == _PROJECT_ID, t.call.c.key == _CALL_KEY)


def _chain() -> Select[Any]:
    """The answers along the links from a call, as `_Linked` behind their keys."""
    call, answer = t.call.c, t.completion.c
    link = select(call.link_call_key, call.link_completion).where(
        call.project_id == _PROJECT_ID, call.link_call_key.is_not(None)
    )
    # A union of different rows ends also where links go round in a circle.
    chain = link.where(call.key == _CALL_KEY).cte("chain", recursive=True)
    chain = chain.union(link.where(call.key == chain.c.link_call_key))
    seen, said = t.node.alias("seen"), t.node.alias("said")

    def is_row(table: FromClause, key: ColumnElement[Any]) -> ColumnElement[bool]:
        return (table.c.project_id == _PROJECT_ID) & (table.c.key == key)

    return select(
        *(chain.c.link_call_key, chain.c.link_completion),
        *(call.id, seen.c.depth, said.c.match_key, said.c.depth, call.link_call_key, call.link_completion),
    ).select_from(
        chain.join(t.call, is_row(t.call, chain.c.link_call_key))
        .outerjoin(seen, is_row(seen, call.prompt_node_key))
        .outerjoin(
            t.completion,
            (answer.project_id == _PROJECT_ID)
            & (answer.call_key == call.key)
            & (answer.completion == chain.c.link_completion),
        )
        .outerjoin(said, is_row(said, answer.node_key))
    )


def _places() -> Select[Any]:
    """(depth, place) of every message on the path to a node."""
    node = t.node.c
    step = select(node.parent_key, node.depth, node.match_key).where(node.project_id == _PROJECT_ID)
    path = step.where(node.key == _NODE_KEY).cte("path", recursive=True)
    path = path.union_all(step.where(node.key == path.c.parent_key))
    return select(path.c.depth, path.c.match_key)


_CHAIN, _PLACES = _chain(), _places()
