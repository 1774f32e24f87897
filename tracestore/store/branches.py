"""Rows -> branches, without the messages: what `graph.branches` finds, from three narrow reads an episode.

A path is made once for each message and shared by what goes on from it, so that many branches cost what they
differ in. One episode is held at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Select, bindparam, select

from tracestore.graph.model import CompletionKey
from tracestore.store import tables as t
from tracestore.store.lookup import driver_columns


class BranchPath(NamedTuple):
    """A path from a root to an end."""

    messages: tuple[int, ...]
    """Keys of nodes, root first."""
    completions: tuple[CompletionKey, ...]
    """The completions that wrote messages of it, first to last."""
    end_call_id: str
    end: CompletionKey | None
    """The completion it ends with; None for a call that no message came back from."""


class _Call(NamedTuple):
    key: int
    id: str
    prompt_node_key: int | None
    context_messages: int | None
    link_call_key: int | None
    link_completion: int | None
    link_exact: bool | None


def branch_paths(connection: Connection, project_id: int, episode_key: int) -> Iterator[BranchPath]:
    """Every branch of one episode, in the order of the calls they end with. Pending calls are on none."""
    episode = _Episode(connection, project_id, episode_key)
    for call in episode.calls.values():
        if call.context_messages is None:
            continue
        answers = episode.answers_of.get(call.key)
        if answers is None:
            yield BranchPath(episode.path(call.prompt_node_key), episode.writers(call), call.id, None)
            continue
        for index, node in answers:
            if (call.key, index) not in episode.continued:
                end = (call.id, index)
                path = episode.path(call.prompt_node_key) + episode.after(call.prompt_node_key, node)
                yield BranchPath(path, (*episode.writers(call), end), call.id, end)


class _Episode:
    """Calls, answers and places of messages of one episode, and the paths found so far."""

    def __init__(self, connection: Connection, project_id: int, episode_key: int) -> None:
        self._connection = connection
        self._here = {"project_id": project_id, "episode_key": episode_key}
        # Most calls come after what they continue, whose paths are then there to go on from.
        calls = sorted(zip(*self._columns(_CALLS), strict=True))
        self.calls = {row[0]: _Call._make(row) for row in calls}
        self.continued = {
            (call.link_call_key, call.link_completion) for call in self.calls.values() if call.link_exact
        }
        self.answers_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Call -> its answers that have a message, in order: (index, node of its message)."""
        for call_key, index, node in sorted(zip(*self._columns(_ANSWERS), strict=True)):
            self.answers_of[call_key].append((index, node))
        self._parents: dict[int, int | None] = dict(zip(*self._columns(_NODES), strict=True))
        self._paths: dict[int | None, tuple[int, ...]] = {None: ()}
        self._written: dict[int, tuple[CompletionKey, ...]] = {}

    def _columns(self, query: Select[Any]) -> list[list[Any]]:
        return driver_columns(self._connection, query, self._here)

    @cached_property
    def _first(self) -> dict[int, int]:
        """Spelling of a message -> the first one at its place. Few episodes need it."""
        return dict(zip(*self._columns(_TWINS), strict=True))

    def path(self, node: int | None) -> tuple[int, ...]:
        """The path to what a call saw last."""
        path = self._paths.get(node)
        if path is None:
            new = []
            above = node
            while above not in self._paths:
                assert above is not None
                new.append(above)
                above = self._parents[above]
            new.reverse()
            path = self._paths[node] = self._paths[above] + tuple(new)
        return path

    def after(self, node: int | None, last: int) -> tuple[int, ...]:
        """The path from behind a message to a later one."""
        above = self._parents[last]
        if above == node:
            return (last,)
        new = [last]
        while above != node:
            assert above is not None
            new.append(above)
            above = self._parents[above]
        new.reverse()
        return tuple(new)

    def writers(self, call: _Call) -> tuple[CompletionKey, ...]:
        """The completions that wrote messages of a call's context."""
        written = self._written.get(call.key)
        if written is not None:
            return written
        new = []
        while written is None and call.link_exact and call.link_call_key in self.calls:
            new.append(call)
            call = self.calls[call.link_call_key]
            written = self._written.get(call.key)
        if written is None:
            written = self._written[call.key] = self._writers_behind(call)
        for one in reversed(new):
            # What the parent saw, and its answer, are the beginning of what this call saw.
            written = self._written[one.key] = (*written, self._author(one))
        return written

    def _author(self, call: _Call) -> CompletionKey:
        """The completion that a call continues."""
        assert call.link_call_key is not None
        assert call.link_completion is not None
        return (self.calls[call.link_call_key].id, call.link_completion)

    def _writers_behind(self, call: _Call) -> tuple[CompletionKey, ...]:
        """The same where the call did not go on word for word: those along the links that it still saw."""
        if call.link_call_key is None:
            return ()
        place = {self._first.get(node, node) for node in self.path(call.prompt_node_key)}
        found: list[CompletionKey] = []
        seen = {call.key}
        while call.link_call_key in self.calls and call.link_call_key not in seen:
            author = self._author(call)
            parent = self.calls[call.link_call_key]
            seen.add(parent.key)
            node = dict(self.answers_of.get(parent.key, ())).get(author[1])
            if node is not None and self._first.get(node, node) in place:
                found.append(author)
            call = parent
        return tuple(reversed(found))


# Made once: to make one takes as long as to read a hundred rows.
_c, _m, _n = t.call.c, t.completion.c, t.node.c
_PROJECT_ID, _EPISODE_KEY = (bindparam(name, type_=BigInteger) for name in ("project_id", "episode_key"))
_IS_HERE = (_c.project_id == _PROJECT_ID, _c.episode_key == _EPISODE_KEY, ~_c.is_placeholder)
_CALLS: Select[Any] = select(*(_c[name] for name in _Call._fields)).where(*_IS_HERE)
_ANSWERS: Select[Any] = (
    select(_m.call_key, _m.completion, _m.node_key)
    .select_from(t.call.join(t.completion, (_m.project_id == _c.project_id) & (_m.call_key == _c.key)))
    .where(*_IS_HERE, _m.node_key.is_not(None))
)
# An index holds all that is asked for.
_NODES: Select[Any] = select(_n.key, _n.parent_key).where(
    _n.project_id == _PROJECT_ID, _n.episode_key == _EPISODE_KEY
)
_TWINS: Select[Any] = select(_n.key, _n.twin_of_key).where(
    _n.project_id == _PROJECT_ID, _n.episode_key == _EPISODE_KEY, _n.twin_of_key.is_not(None)
)
