"""What has come to a project since a commit position, without looking at what was there before.

Positions are assigned under a lock of the project, so nothing comes below one that was read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, exists, func, select

from tracestore.store import query
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.store import Store

_ERASED = ("episode", "content")


@dataclass(frozen=True, slots=True)
class Changes:
    """What came up to `snapshot`."""

    snapshot: int
    latest: int
    """The commit position of the project; above `snapshot` where more had come than was asked for."""
    kinds: dict[str, set[str]] = field(default_factory=dict)
    """Episode -> kinds of the events that came."""
    groups: frozenset[str] = frozenset()
    """Groups of which an event of their own came."""
    replaced: frozenset[tuple[str, str]] = frozenset()
    """("episode" or "group", id) of which an event that had come before was replaced by a higher revision."""
    deleted: tuple[dict[str, Any], ...] = ()
    """Tombstones of episodes and of their content: kind, id, pos."""
    stripping: frozenset[str] = frozenset()
    """Episodes whose content is to be deleted, and still there."""
    is_deleted: bool = False
    """Whether the project is."""
    redactions: tuple[tuple[int, int], ...] = ()
    """(first, last position) of redactions that took something out and look at no more events."""


def changes(
    store: Store, project: str, *, after: int, most: int | None = None, ignored: Collection[str] = ()
) -> Changes:
    """What came after a position.

    Args:
        most: look at so many commit positions, and no further; None: at all there are.
        ignored: kinds of events that do not matter.
    """
    with store.read() as connection:
        project_id = query.find_project(connection, project)
        latest = query.snapshot(connection, project)
        if project_id is None or latest == after:
            return Changes(latest, latest)
        snapshot = latest if most is None else min(latest, after + most)
        came = _Came(connection, project_id, after, snapshot)
        stone = t.tombstone.c
        buried = select(stone.id).where(stone.project_id == project_id, stone.kind == "project")
        stones = (
            select(stone.kind, stone.id, stone.pos)
            .where(stone.project_id == project_id, came.between(stone.pos), stone.kind.in_(_ERASED))
            .order_by(stone.pos, stone.id)
        )
        content = select(stone.id).where(
            stone.project_id == project_id, stone.kind == "content", stone.erased_at.is_(None)
        )
        return Changes(
            snapshot=snapshot,
            latest=latest,
            kinds=_kinds(came, ignored),
            groups=_groups(came),
            replaced=_replaced(came),
            deleted=tuple(dict(row._mapping) for row in connection.execute(stones)),
            stripping=frozenset(connection.execute(content).scalars()),
            is_deleted=connection.execute(buried).first() is not None,
            redactions=_redactions(connection, project_id, after),
        )


@dataclass(frozen=True, slots=True)
class _Came:
    """What is looked at."""

    connection: Connection
    project_id: int
    after: int
    up_to: int

    def between(self, pos: ColumnElement[int]) -> ColumnElement[bool]:
        return (pos > self.after) & (pos <= self.up_to)


def _kinds(came: _Came, ignored: Collection[str]) -> dict[str, set[str]]:
    raw, episode = t.raw_event.c, t.episode.c
    rows = came.connection.execute(
        select(episode.id, raw.kind)
        .select_from(
            t.raw_event.join(
                t.episode, (episode.project_id == raw.project_id) & (episode.key == raw.episode_key)
            )
        )
        .where(raw.project_id == came.project_id, came.between(raw.pos), raw.kind.not_in(ignored))
        .distinct()
    )
    found: dict[str, set[str]] = defaultdict(set)
    for id_, kind in rows:
        found[id_].add(kind)
    return dict(found)


def _groups(came: _Came) -> frozenset[str]:
    raw, group = t.raw_event.c, t.task_group.c
    log = t.raw_event.join(t.task_group, (group.project_id == raw.project_id) & (group.key == raw.entity_key))
    rows = select(group.id).select_from(log).where(raw.project_id == came.project_id, came.between(raw.pos))
    return frozenset(came.connection.execute(rows.where(raw.kind == "group")).scalars())


def _replaced(came: _Came) -> frozenset[tuple[str, str]]:
    raw, episode, group = t.raw_event.c, t.episode.c, t.task_group.c
    log = t.raw_event.outerjoin(
        t.episode, (episode.project_id == raw.project_id) & (episode.key == raw.episode_key)
    ).outerjoin(t.task_group, (group.project_id == raw.project_id) & (group.key == raw.entity_key))
    rows = came.connection.execute(
        select(episode.id.label("episode_id"), group.id.label("group_id"))
        .select_from(log)
        .where(raw.project_id == came.project_id, came.between(raw.pos), raw.first_pos <= came.after)
        .distinct()
    )
    return frozenset(
        ("episode", row.episode_id) if row.episode_id is not None else ("group", row.group_id) for row in rows
    )


def _redactions(connection: Connection, project_id: int, after: int) -> tuple[tuple[int, int], ...]:
    c = t.redaction.c
    rows = select(c.first_pos, c.last_pos).where(
        c.project_id == project_id, c.first_pos <= after, c.last_pos.is_not(None), c.state != "redacting"
    )
    return tuple((row.first_pos, row.last_pos) for row in connection.execute(rows.order_by(c.key)))


def are_untouched(
    store: Store, project: str, episode_ids: Iterable[str], *, after: int, snapshot: int
) -> bool:
    """Whether all that took a position after one, up to another, are events of other episodes.

    Deletions, redactions and revisions may leave positions empty, whomever they are of: then it is not known,
    and the answer is no.
    """
    with store.read() as connection:
        project_id = query.find_project(connection, project)
        if project_id is None:
            return False
        raw, keys = t.raw_event.c, _keys(connection, project_id, t.episode, episode_ids)
        others = select(func.count()).where(
            raw.project_id == project_id,
            raw.pos > after,
            raw.pos <= snapshot,
            raw.episode_key.not_in(sorted(keys)),
        )
        return int(connection.execute(others).scalar_one()) == snapshot - after


def groups_with(
    store: Store, project: str, *, episode_ids: Iterable[str], group_ids: Iterable[str], snapshot: int
) -> list[query.GroupRef]:
    """Groups with all their episodes: those with these ids, and those in which these episodes are.

    What `Store.groups` gives, of some of them.
    """
    with store.read() as connection:
        project_id = query.find_project(connection, project)
        if project_id is None:
            return []
        keys = _keys(connection, project_id, t.episode, episode_ids)
        named = query.groups_named(connection, project_id, snapshot, t.episode.c.key, keys)
        groups = {*named.values(), *_keys(connection, project_id, t.task_group, group_ids)}
        members = query.groups_named(connection, project_id, snapshot, t.episode.c.group_key, sorted(groups))
        alone = set(keys) - set(named)
        ids = _ids_here(connection, project_id, sorted({*members, *alone}), snapshot)
        ended = query.ended_groups(connection, project_id, snapshot, sorted(groups))
        by_group: dict[int, list[str]] = defaultdict(list)
        for key, group_key in members.items():
            if key in ids:
                by_group[group_key].append(ids[key])
        names = _names(connection, project_id, sorted(by_group))
        found = [
            query.GroupRef(names[key], tuple(sorted(episodes)), ended=key in ended)
            for key, episodes in by_group.items()
        ]
        return found + [query.GroupRef(None, (ids[key],)) for key in sorted(alone) if key in ids]


def going_on(
    store: Store,
    project: str,
    *,
    after: int,
    episode_ids: Iterable[str],
    group_ids: Iterable[str],
    ignored: Collection[str] = (),
) -> tuple[set[str], set[str]]:
    """(those of the episodes, those of the groups) of which something came after a position already."""
    raw, episode, group = t.raw_event.c, t.episode.c, t.task_group.c
    of_episode = (episode.project_id == raw.project_id) & (episode.key == raw.episode_key)
    in_group = (group.project_id == episode.project_id) & (group.key == episode.group_key)
    of_group = (group.project_id == raw.project_id) & (group.key == raw.entity_key)
    with store.read() as connection:
        project_id = query.find_project(connection, project)
        came = (raw.project_id == project_id, raw.pos > after, raw.kind.not_in(ignored))
        episodes, groups = set[str](), set[str]()
        for chunk in chunks(sorted(set(episode_ids))):
            rows = select(episode.id).select_from(t.raw_event.join(t.episode, of_episode))
            episodes |= set(connection.execute(rows.where(*came, episode.id.in_(chunk))).scalars())
        for chunk in chunks(sorted(set(group_ids))):
            named = (*came, group.id.in_(chunk))
            inside = t.raw_event.join(t.episode, of_episode).join(t.task_group, in_group)
            rows = select(group.id).select_from(inside).where(*named)
            groups |= set(connection.execute(rows.distinct()).scalars())
            own = select(group.id).select_from(t.raw_event.join(t.task_group, of_group))
            groups |= set(connection.execute(own.where(*named, raw.kind == "group")).scalars())
    return episodes, groups


def _keys(connection: Connection, project_id: int, table: Any, ids: Iterable[str]) -> list[int]:
    found: list[int] = []
    for chunk in chunks(sorted(set(ids))):
        rows = select(table.c.key).where(table.c.project_id == project_id, table.c.id.in_(chunk))
        found += connection.execute(rows).scalars()
    return found


def _names(connection: Connection, project_id: int, keys: Sequence[int]) -> dict[int, str]:
    group = t.task_group.c
    found: dict[int, str] = {}
    for chunk in chunks(keys):
        rows = select(group.key, group.id).where(group.project_id == project_id, group.key.in_(chunk))
        found.update({row.key: row.id for row in connection.execute(rows)})
    return found


def _ids_here(connection: Connection, project_id: int, keys: Sequence[int], at: int) -> dict[int, str]:
    """Those of the episodes that are there at a snapshot."""
    raw, episode = t.raw_event.c, t.episode.c
    came = exists().where(raw.project_id == episode.project_id, raw.episode_key == episode.key, raw.pos <= at)
    found: dict[int, str] = {}
    for chunk in chunks(keys):
        rows = select(episode.key, episode.id).where(
            episode.project_id == project_id, episode.key.in_(chunk), episode.first_pos.is_not(None), came
        )
        found.update({row.key: row.id for row in connection.execute(rows)})
    return found


def consumed(store: Store, project: str, episode_ids: Iterable[str]) -> dict[str, set[str]]:
    """Training run -> those of the episodes of which it trained something."""
    used, episode = t.consumption.c, t.episode.c
    trained = t.episode.join(
        t.consumption, (used.project_id == episode.project_id) & (used.episode_key == episode.key)
    )
    found: dict[str, set[str]] = defaultdict(set)
    with store.read() as connection:
        project_id = query.find_project(connection, project)
        for chunk in chunks(sorted(set(episode_ids))):
            rows = (
                select(used.run, episode.id)
                .select_from(trained)
                .where(episode.project_id == project_id, episode.id.in_(chunk))
                .distinct()
            )
            for run, id_ in connection.execute(rows):
                found[run].add(id_)
    return dict(found)
