"""Rows -> branches, without the messages: what `graph.branches` finds, from four narrow reads an episode.

A path is made once for each message and shared by what goes on from it, so that many branches cost what they
differ in. One episode is held at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Select, select

from tracestore.graph.model import CompletionKey
from tracestore.store import tables as t


@dataclass(frozen=True, slots=True)
class BranchPath:
    """A path from a root to an end."""

    messages: tuple[int, ...]
    """Keys of nodes, root first."""
    completions: tuple[CompletionKey, ...]
    """The completions that wrote messages of it, first to last."""
    end_call_id: str
    end: CompletionKey | None
    """The completion it ends with; None for a call that no message came back from."""


class _Answer(NamedTuple):
    call_key: int
    completion: int


def branch_paths(connection: Connection, project_id: int, episode_key: int) -> Iterator[BranchPath]:
    """Every branch of one episode, in the order of the calls they end with. Pending calls are on none."""
    episode = _Episode(connection, project_id, episode_key)
    for call in episode.calls.values():
        if call.context_messages is None:
            continue
        answers = episode.answers_of[call.key]
        for answer in answers:
            if answer not in episode.continued:
                yield episode.branch(call, answer)
        if not answers:
            yield episode.branch(call, None)


class _Episode:
    """Calls, answers and places of messages of one episode, and the paths found so far."""

    def __init__(self, connection: Connection, project_id: int, episode_key: int) -> None:
        self._connection = connection
        c, m = t.call.c, t.completion.c
        calls: Select[Any] = (
            select(
                *(c.key, c.id, c.prompt_node_key, c.context_messages),
                *(c.link_call_key, c.link_completion, c.link_exact),
            )
            .where(c.project_id == project_id, c.episode_key == episode_key, ~c.is_placeholder)
            # Most calls come after what they continue, whose paths are then there to go on from.
            .order_by(c.key)
        )
        self.calls: dict[int, Row[Any]] = {row.key: row for row in connection.execute(calls).all()}
        log = t.call.join(t.completion, (m.project_id == c.project_id) & (m.call_key == c.key))
        answers = connection.execute(
            select(m.call_key, m.completion, m.node_key)
            .select_from(log)
            .where(
                c.project_id == project_id,
                c.episode_key == episode_key,
                ~c.is_placeholder,
                m.node_key.is_not(None),
            )
            .order_by(m.call_key, m.completion)
        ).all()
        self.answers_of: dict[int, list[_Answer]] = defaultdict(list)
        self._node_of: dict[_Answer, int] = {}
        for call_key, completion, node_key in answers:
            answer = _Answer(call_key, completion)
            self.answers_of[call_key].append(answer)
            self._node_of[answer] = node_key
        n = t.node.c
        self._in_episode = (n.project_id == project_id, n.episode_key == episode_key)
        # An index holds all that is asked for.
        nodes = connection.execute(select(n.key, n.parent_key).where(*self._in_episode)).all()
        self._parents: dict[int, int | None] = dict(map(tuple, nodes))
        self.continued = {
            _Answer(row.link_call_key, row.link_completion) for row in self.calls.values() if row.link_exact
        }
        self._paths: dict[int | None, tuple[int, ...]] = {None: ()}
        self._written: dict[int, tuple[CompletionKey, ...]] = {}

    @cached_property
    def _first(self) -> dict[int, int]:
        """Spelling of a message -> the first one at its place. Few episodes need it."""
        n = t.node.c
        query = select(n.key, n.twin_of_key).where(*self._in_episode, n.twin_of_key.is_not(None))
        return dict(map(tuple, self._connection.execute(query).all()))

    def branch(self, call: Row[Any], end: _Answer | None) -> BranchPath:
        named = self._writers(call)
        if end is None:
            return BranchPath(self._path(call.prompt_node_key), named, call.id, None)
        last = (call.id, end.completion)
        path = self._path(call.prompt_node_key) + self._after(call.prompt_node_key, self._node_of[end])
        return BranchPath(path, (*named, last), call.id, last)

    def _path(self, node: int | None) -> tuple[int, ...]:
        """The path to what a call saw last."""
        path = self._paths.get(node)
        if path is None:
            new = []
            above = node
            while above not in self._paths:
                assert above is not None
                new.append(above)
                above = self._parents[above]
            path = self._paths[node] = self._paths[above] + tuple(reversed(new))
        return path

    def _after(self, node: int | None, last: int) -> tuple[int, ...]:
        """The path from behind a message to a later one."""
        new = []
        above: int | None = last
        while above != node:
            assert above is not None
            new.append(above)
            above = self._parents[above]
        return tuple(reversed(new))

    def _writers(self, call: Row[Any]) -> tuple[CompletionKey, ...]:
        """The completions that wrote messages of a call's context."""
        new = []
        while call.key not in self._written and call.link_exact and call.link_call_key in self.calls:
            new.append(call)
            call = self.calls[call.link_call_key]
        if call.key not in self._written:
            self._written[call.key] = self._writers_behind(call)
        written = self._written[call.key]
        for one in reversed(new):
            # What the parent saw, and its answer, are the beginning of what this call saw.
            author = (self.calls[one.link_call_key].id, one.link_completion)
            written = self._written[one.key] = written + (author,)  # noqa: RUF005
        return written

    def _writers_behind(self, call: Row[Any]) -> tuple[CompletionKey, ...]:
        """The same where the call did not go on word for word: those along the links that it still saw."""
        if call.link_call_key is None:
            return ()
        place = {self._first.get(node, node) for node in self._path(call.prompt_node_key)}
        found: list[CompletionKey] = []
        seen = {call.key}
        while call.link_call_key in self.calls and call.link_call_key not in seen:
            parent = self.calls[call.link_call_key]
            seen.add(parent.key)
            node = self._node_of.get(_Answer(parent.key, call.link_completion))
            if node is not None and self._first.get(node, node) in place:
                found.append((parent.id, call.link_completion))
            call = parent
        return tuple(reversed(found))
