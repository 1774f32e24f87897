"""Exports that were made of a project: a deletion names those that may hold what is gone.

To register one takes no commit position, or each export would make a new snapshot of the same events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.engine import writer
from tracestore.store.query import find_project
from tracestore.store.store import NotFound, Store
from tracestore.store.tombstones import deletions_since, gone_since, require_not_deleted


@dataclass(frozen=True, slots=True)
class Made:
    """What is kept of an export."""

    manifest_hash: str
    location: str
    """Where it was written, in the words of whoever wrote it."""
    spec: str
    snapshot: int
    sampled_tokens: int
    trained_tokens: int
    shards: Sequence[Mapping[str, Any]]
    """Of one that goes on: those since it was last noted. Columns of each: file, num_rows, num_tokens,
    trained_tokens, sha256, content_hash."""


def register(store: Store, project: str, made: Made) -> None:
    """Note an export; one of the same manifest hash is the same, wherever it was written first.

    One that goes on is noted again with each entry.
    """
    p, e, s = t.project.c, t.export.c, t.shard.c
    with writer(store.engine).begin() as connection:
        project_id, key = connection.execute(
            select(p.project_id, p.next_key).where(p.name == project).with_for_update()
        ).one()
        query = select(e.key, e.snapshot_pos).where(
            e.project_id == project_id, e.manifest_hash == made.manifest_hash
        )
        before = connection.execute(query).one_or_none()
        # Of one snapshot there may be two entries: a group that was left a while needs no later one.
        if before is not None and before.snapshot_pos > made.snapshot:
            return
        grown = {
            "snapshot_pos": made.snapshot,
            "sampled_tokens": made.sampled_tokens,
            "trained_tokens": made.trained_tokens,
        }
        export_key, known = key, set[str]()
        if before is None:
            names = {"manifest_hash": made.manifest_hash, "location": made.location, "spec": made.spec}
            row = {"project_id": project_id, "key": key, "created_at": time.time_ns()}
            connection.execute(t.export.insert().values(**row, **names, **grown))
        else:
            export_key = before.key
            mine = (e.project_id == project_id, e.key == export_key)
            connection.execute(t.export.update().where(*mine).values(**grown))
            here = (s.project_id == project_id, s.export_key == export_key)
            for chunk in chunks([shard["file"] for shard in made.shards]):
                known.update(connection.execute(select(s.file).where(*here, s.file.in_(chunk))).scalars())
        for place, shard in enumerate(made.shards, start=1):
            if shard["file"] not in known:
                row = {"project_id": project_id, "key": key + place, "export_key": export_key}
                connection.execute(t.shard.insert().values(**row, **shard))
        this = t.project.update().where(p.project_id == project_id)
        connection.execute(this.values(next_key=key + len(made.shards) + 1))
        _name_in_deletions(connection, project_id, made)


def _name_in_deletions(connection: Connection, project_id: int, made: Made) -> None:
    """Note the export in the deletions that were asked for while it was made: none knew of it then."""
    held = t.deletion_export.c
    known = select(held.deletion_key).where(
        held.project_id == project_id, held.export_hash == made.manifest_hash
    )
    keys = deletions_since(connection, project_id, made.snapshot) - set(connection.execute(known).scalars())
    for key in sorted(keys):
        row = {"project_id": project_id, "deletion_key": key, "export_hash": made.manifest_hash}
        connection.execute(t.deletion_export.insert().values(**row))


@dataclass(frozen=True, slots=True)
class Registered:
    """An export that the store knows of."""

    id: int
    """Later exports have larger ones."""
    manifest_hash: str
    location: str
    """Where it was written first."""
    snapshot: int
    sampled_tokens: int
    trained_tokens: int
    created_at: int
    """Nanoseconds UTC."""


def exports(
    store: Store, project: str, *, before: int | None = None, limit: int | None = None
) -> list[Registered]:
    """The exports of a project, the latest first.

    Args:
        before: those that were registered before this one.
    """
    e = t.export.c
    with store.read() as connection:
        project_id = _live_project(connection, project)
        chosen = select(*_COLUMNS).where(e.project_id == project_id).order_by(e.key.desc()).limit(limit)
        if before is not None:
            chosen = chosen.where(e.key < before)
        return [Registered(*row) for row in connection.execute(chosen)]


def registered(store: Store, project: str, manifest_hash: str) -> Registered:
    """The export with this manifest hash.

    Raises:
        NotFound: the project has none.
    """
    e = t.export.c
    with store.read() as connection:
        project_id = _live_project(connection, project)
        chosen = select(*_COLUMNS).where(e.project_id == project_id, e.manifest_hash == manifest_hash)
        row = connection.execute(chosen).first()
    if row is None:
        hint = "GET /v1/exports lists those of the project"
        raise NotFound(kind="export", id=manifest_hash, project=project, hint=hint)
    return Registered(*row)


def _live_project(connection: Connection, project: str) -> int | None:
    """The project's number. Raises Deleted for one that was deleted."""
    project_id = find_project(connection, project)
    if project_id is not None:
        require_not_deleted(connection, project_id, "project", project)
    return project_id


_COLUMNS = (
    t.export.c.key,
    t.export.c.manifest_hash,
    t.export.c.location,
    t.export.c.snapshot_pos,
    t.export.c.sampled_tokens,
    t.export.c.trained_tokens,
    t.export.c.created_at,
)


def gone(store: Store, project: str, *, snapshot: int) -> list[tuple[str, str]]:
    """(kind, id) of what was there at a snapshot and was deleted or redacted after it."""
    p = t.project.c
    with store.read() as connection:
        project_id = connection.execute(select(p.project_id).where(p.name == project)).scalar()
        return [] if project_id is None else gone_since(connection, project_id, snapshot)
