"""Which groups and episodes a project has, now or at an older snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Text, bindparam, func, select

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.fields import union
from tracestore.store.load import SnapshotGone, came_at, snapshot_gone
from tracestore.store.tombstones import deleted_between

_NAMED_PROJECTS = 10


class UnknownProject(TracestoreError):
    """Nothing was ever posted to this project"""

    status = 404


@dataclass(frozen=True, slots=True)
class GroupRef:
    """The episodes that share one task prompt, or one episode on its own."""

    group_id: str | None
    """None: an episode that names no group is a group of one."""
    episode_ids: tuple[str, ...]
    """In the order in which they first came."""
    ended: bool = False
    """Whether an end event of the group has come; the merged group no longer tells it from a whole one."""


def find_project(connection: Connection, name: str) -> int | None:
    """The number of a project; None where nothing was ever posted to it."""
    return connection.execute(_PROJECT, {"name": name}).scalar()


# Made once: every read begins with it, and to make it takes longer than to ask.
_PROJECT = select(t.project.c.project_id).where(t.project.c.name == bindparam("name", type_=Text))


def require_project(connection: Connection, name: str) -> None:
    """Refuse a project that is not there.

    Raises:
        UnknownProject: nothing was ever posted to it; the hint names those there are.
    """
    if find_project(connection, name) is not None:
        return
    query = select(t.project.c.name).order_by(t.project.c.name).limit(_NAMED_PROJECTS + 1)
    names = list(connection.execute(query).scalars())
    shown = ", ".join(names[:_NAMED_PROJECTS]) + (", ..." if len(names) > _NAMED_PROJECTS else "")
    raise UnknownProject(
        project=name, hint=f"projects in this database: {shown}" if names else "this database holds none"
    )


def snapshot(connection: Connection, project: str) -> int:
    """Position of the last committed event; 0 for a project to which nothing was posted."""
    position = connection.execute(select(t.project.c.commit_seq).where(t.project.c.name == project)).scalar()
    return position or 0


def groups(connection: Connection, project: str, *, at: int) -> Iterator[GroupRef]:
    """Every group with an episode at snapshot `at`, in the order in which their first episode came.

    Raises:
        SnapshotGone: an event of the project had come at the snapshot and was replaced after it.
    """
    project_id = find_project(connection, project)
    if project_id is None:
        return
    _require_snapshot(connection, project_id, at)
    group_of = _groups_named(connection, project_id, at)
    members: dict[tuple[str, int], list[str]] = defaultdict(list)
    raw, episode = t.raw_event.c, t.episode.c
    here = (
        select(episode.key, episode.id)
        .select_from(
            t.episode.join(
                t.raw_event, (raw.project_id == episode.project_id) & (raw.episode_key == episode.key)
            )
        )
        # One that is being deleted has no first position any more.
        .where(episode.project_id == project_id, episode.first_pos.is_not(None), raw.pos <= at)
        .group_by(episode.key, episode.id)
        .order_by(func.min(came_at()))
    )
    for key, id_ in connection.execute(here):
        named = group_of.get(key)
        members[("group", named) if named is not None else ("episode", key)].append(id_)
    group = t.task_group.c
    rows = connection.execute(select(group.key, group.id).where(group.project_id == project_id))
    ids = {row.key: row.id for row in rows}
    ended = _ended_groups(connection, project_id, at)
    for (kind, key), episode_ids in members.items():
        if kind == "group":
            yield GroupRef(ids[key], tuple(episode_ids), ended=key in ended)
        else:
            yield GroupRef(None, tuple(episode_ids))


def episodes(
    connection: Connection,
    project: str,
    *,
    ids: Sequence[str] = (),
    group_ids: Sequence[str] = (),
    statuses: Sequence[str] = (),
) -> list[str]:
    """The episodes of a project in the order in which they first came: those alone of these ids, groups and
    statuses, where any are named."""
    e, g = t.episode.c, t.task_group.c
    wanted = [(e.id, ids), (g.id, group_ids), (e.status, statuses)]
    found = (
        select(e.id)
        .select_from(
            t.episode.join(t.project, t.project.c.project_id == e.project_id).outerjoin(
                t.task_group, (g.project_id == e.project_id) & (g.key == e.group_key)
            )
        )
        # One that is being deleted has no first position any more.
        .where(t.project.c.name == project, e.first_pos.is_not(None))
        .where(*(column.in_(values) for column, values in wanted if values))
        .order_by(e.first_pos)
    )
    return list(connection.execute(found).scalars())


def forks(connection: Connection, project: str, *, origin: str | None = None) -> list[tuple[str, str]]:
    """(origin, fork) of the episodes that say what they forked from, in the order in which the forks first
    came.

    Args:
        origin: only its forks; None: those of every episode.
    """
    fork, other = t.episode.alias("fork"), t.episode.alias("origin")
    is_origin = (other.c.project_id == fork.c.project_id) & (other.c.key == fork.c.forked_from_episode_key)
    found = (
        select(other.c.id, fork.c.id)
        .select_from(fork.join(t.project, t.project.c.project_id == fork.c.project_id).join(other, is_origin))
        .where(t.project.c.name == project, fork.c.first_pos.is_not(None))
        .order_by(fork.c.first_pos)
    )
    if origin is not None:
        found = found.where(other.c.id == origin)
    return [(origin_id, fork_id) for origin_id, fork_id in connection.execute(found)]


def _require_snapshot(connection: Connection, project_id: int, at: int) -> None:
    """Refuse a snapshot of which something was replaced or deleted; reads what came after it, and no more."""
    gone = deleted_between(connection, project_id, at)
    if gone is not None:
        hint = "it was deleted after this snapshot; read the latest snapshot"
        raise SnapshotGone(snapshot=at, kind=gone.kind, id=gone.id, hint=hint)
    raw = t.raw_event.c
    replaced = connection.execute(
        select(raw.kind, raw.entity_key)
        .where(raw.project_id == project_id, raw.pos > at, raw.first_pos <= at)
        .order_by(raw.pos)
        .limit(1)
    ).first()
    if replaced is not None:
        raise snapshot_gone(at, connection, project_id, replaced)


def _ended_groups(connection: Connection, project_id: int, at: int, *which: ColumnElement[bool]) -> set[int]:
    """Groups whose end had come by then."""
    raw, group = t.raw_event.c, t.task_group.c
    ends = (group.project_id == project_id, raw.phase == "end", raw.pos <= at, *which)
    log = t.task_group.join(t.raw_event, (raw.project_id == group.project_id) & (raw.entity_key == group.key))
    return set(connection.execute(select(group.key).select_from(log).where(*ends)).scalars())


def ended_groups(connection: Connection, project_id: int, at: int, keys: Sequence[int]) -> set[int]:
    """Those of some groups whose end had come by then."""
    found: set[int] = set()
    for chunk in chunks(keys):
        found |= _ended_groups(connection, project_id, at, t.task_group.c.key.in_(chunk))
    return found


def _groups_named(
    connection: Connection, project_id: int, at: int, *which: ColumnElement[bool]
) -> dict[int, int]:
    """Episode -> its group, where the episode's own events had said so by then."""
    raw, episode, names = t.raw_event.c, t.episode.c, t.field_set.c
    rows = connection.execute(
        select(episode.key, episode.group_key, names.fields)
        .select_from(
            t.episode.join(
                t.raw_event, (raw.project_id == episode.project_id) & (raw.entity_key == episode.key)
            ).join(t.field_set, (names.project_id == raw.project_id) & (names.key == raw.field_set_key))
        )
        .where(
            episode.project_id == project_id,
            raw.pos <= at,
            episode.group_key.is_not(None),
            *which,
        )
    )
    return {key: group_key for key, group_key, fields in rows if union([fields]).get("group_id")}


def groups_named(
    connection: Connection, project_id: int, at: int, column: ColumnElement[int], keys: Sequence[int]
) -> dict[int, int]:
    """Episode -> its group, of the episodes with one of these keys in a column of theirs."""
    found: dict[int, int] = {}
    for chunk in chunks(keys):
        found |= _groups_named(connection, project_id, at, column.in_(chunk))
    return found
