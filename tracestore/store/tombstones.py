"""What was deleted: whoever asks for it is told so, and that it does not come back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    Table,
    Text,
    bindparam,
    cast,
    literal,
    select,
    union_all,
)

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.chunks import chunks


class Deleted(TracestoreError):
    """This was deleted"""

    status: ClassVar[int] = 410


_OF_AN_EPISODE: dict[str, Table] = {"call": t.call, "agent": t.agent}


def require_not_deleted(connection: Connection, project_id: int, kind: str, id_: str) -> None:
    """Refuse to look for what was deleted, by itself or with its project.

    Raises:
        Deleted: it has a tombstone.
    """
    parameters = {"project_id": project_id, "kind": kind, "id": id_}
    found = connection.execute(_stone_of(_OF_AN_EPISODE.get(kind)), parameters).one_or_none()
    if found is not None:
        raise Deleted(
            **{name: value for name, value in found._mapping.items() if value is not None},
            hint="a deleted id is never used again; /v1/deletions says what was deleted",
        )


@cache
def _stone_of(table: Table | None) -> Select[Any]:
    """The tombstone of a thing, or of what held it. Kept: to make it takes longer than to ask.

    Args:
        table: where the thing lies, if in an episode.
    """
    project_id = bindparam("project_id", type_=BigInteger)
    kind, id_ = bindparam("kind", type_=Text), bindparam("id", type_=Text)
    stone = t.tombstone.c
    this = (stone.kind == "project") | ((stone.kind == kind) & (stone.id == id_))
    if table is not None:
        # Until it is erased, it has no tombstone but that of its episode.
        own, episode = table.c, t.episode.c
        holder = (
            select(episode.id)
            .join(table, (own.project_id == episode.project_id) & (own.episode_key == episode.key))
            .where(own.project_id == project_id, own.id == id_)
        )
        this |= (stone.kind == "episode") & (stone.id == holder.scalar_subquery())
    return (
        select(stone.kind, stone.id, stone.deleted_at, stone.reason, stone.deletion_key)
        .where(stone.project_id == project_id, this)
        .limit(1)
    )


def require_content(connection: Connection, project_id: int, call_id: str) -> None:
    """Refuse to look for what a call read and answered where only its measures are kept.

    Raises:
        Deleted: the content of its episode was.
    """
    parameters = {"project_id": project_id, "call_id": call_id}
    found = connection.execute(_STONE_OF_CONTENT, parameters).one_or_none()
    if found is not None:
        raise Deleted(**found._mapping, hint="its measures are kept: usage, times, statuses, rewards")


def _stone_of_content() -> Select[Any]:
    stone, call, episode = t.tombstone.c, t.call.c, t.episode.c
    rows = t.call.join(
        t.episode, (episode.project_id == call.project_id) & (episode.key == call.episode_key)
    ).join(t.tombstone, (stone.project_id == episode.project_id) & (stone.id == episode.id))
    this = (call.project_id == bindparam("project_id", type_=BigInteger)) & (
        call.id == bindparam("call_id", type_=Text)
    )
    return (
        select(stone.kind, stone.id, stone.deleted_at, stone.deletion_key)
        .select_from(rows)
        .where(this, stone.kind == "content")
    )


_STONE_OF_CONTENT = _stone_of_content()


def deleted_names(
    connection: Connection, project_id: int, names: Iterable[tuple[str, str]]
) -> set[tuple[str, str]]:
    """Which of these (kind, id) have a tombstone."""
    stone = t.tombstone.c
    ids: dict[str, set[str]] = {}
    for kind, id_ in names:
        ids.setdefault(kind, set()).add(id_)
    found = set()
    for kind, some in ids.items():
        for chunk in chunks(sorted(some)):
            rows = connection.execute(
                select(stone.id).where(
                    stone.project_id == project_id, stone.kind == kind, stone.id.in_(chunk)
                )
            )
            found |= {(kind, id_) for id_ in rows.scalars()}
    return found


def deleted_between(connection: Connection, project_id: int, at: int) -> Any:
    """What was there at a snapshot and was deleted after it: an episode, the project, or text that rules
    took; None: nothing."""
    return connection.execute(_gone_since(project_id, at).limit(1)).first()


def gone_since(connection: Connection, project_id: int, at: int) -> list[tuple[str, str]]:
    """(kind, id) of all of that."""
    found = _gone_since(project_id, at).subquery()
    rows = connection.execute(select(found.c.kind, found.c.id).order_by(found.c.kind, found.c.id))
    return [(row.kind, row.id) for row in rows]


def deletions_since(connection: Connection, project_id: int, at: int) -> set[int]:
    """Numbers of the deletions that took any of that; what rules took is in none."""
    key = t.tombstone.c.deletion_key
    rows = connection.execute(select(key).where(*_buried_since(project_id, at), key.is_not(None)).distinct())
    return set(rows.scalars())


def _buried_since(project_id: int, at: int) -> tuple[ColumnElement[bool], ...]:
    stone = t.tombstone.c
    of_episode = stone.kind.in_(("episode", "content")) & (stone.first_pos <= at)
    return stone.project_id == project_id, stone.pos > at, (stone.kind == "project") | of_episode


def _gone_since(project_id: int, at: int) -> CompoundSelect[Any]:
    stone, redaction = t.tombstone.c, t.redaction.c
    deleted = select(stone.kind, stone.id).where(*_buried_since(project_id, at))
    redacted = select(literal("redaction").label("kind"), cast(redaction.key, Text).label("id")).where(
        redaction.project_id == project_id, redaction.last_pos > at, redaction.first_pos <= at
    )
    return union_all(deleted, redacted)


def tombstones(connection: Connection, project_id: int, *, at: int) -> tuple[dict[str, Any], ...]:
    """The episodes of a project that are deleted at a snapshot, or their content, as manifests list them."""
    stone = t.tombstone.c
    rows = connection.execute(
        select(stone.kind, stone.id, stone.pos)
        .where(stone.project_id == project_id, stone.pos <= at, stone.kind.in_(("episode", "content")))
        .order_by(stone.pos, stone.id)
    )
    return tuple(dict(row._mapping) for row in rows)
