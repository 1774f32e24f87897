"""Deletion -> tombstones at once, then rows in steps, then what nothing refers to any more.

    request   one transaction: the ids are dead from here on, for readers and for posters
    erase     steps of the committer, some rows each, between the transactions of events
    sweep     contents, and placeholders that no other episode knows

Everything that a step needs to know lies in the database, so a deletion whose process was killed goes on
where it was (`resume`), in whatever process, and a step that is done twice does nothing the second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from sqlalchemy import Connection, func, select, true, union

from tracestore.errors import TracestoreError
from tracestore.store import asked
from tracestore.store import tables as t
from tracestore.store.blobs import Blobs
from tracestore.store.chunks import chunks
from tracestore.store.erase import ROWS, Erased, erase_some
from tracestore.store.ingest import rewrite
from tracestore.store.query import find_project, require_project
from tracestore.store.replace import Scope
from tracestore.store.store import NotFound, Store
from tracestore.store.strip import stripped
from tracestore.store.sweep import Taken, sweep
from tracestore.store.transaction import Transaction

What = Literal["episode", "project", "age", "content", "blobs"]
State = Literal["erasing", "sweeping", "done"]

_ALWAYS = 2**63 - 1
"""A time before which everything was sent, nanoseconds UTC."""
_OF_EPISODES = ("episode", "content")
"""Kinds of the tombstones that a deletion of episodes, or of their content, leaves."""
_KEPT = frozenset(
    {
        *("project", "api_key", "session", "tombstone", "deletion", "deletion_export", "redaction"),
        *("export", "shard"),
    }
)
"""Tables that a deleted project keeps: its keys let whoever posts to it be told that it is gone."""


class NoDeletion(TracestoreError):
    """No deletion has this number in this project"""

    status: ClassVar[int] = 404


class OtherProject(TracestoreError):
    """This is not the project of the request"""

    status: ClassVar[int] = 403


@dataclass(frozen=True, slots=True)
class Deletion:
    """How far a deletion has come."""

    id: int
    what: What
    name: str
    """The episode, the project, or the rule that chose the episodes."""
    reason: str | None
    state: State
    requested_at: int
    finished_at: int | None
    episodes: int
    episodes_erased: int
    rows: int
    contents: int
    blobs: int
    exports: tuple[str, ...]
    """Manifest hashes of exports that may still hold what is deleted."""
    export_locations: tuple[str, ...]
    """Where those were written that the exporter registered."""


def facts(found: Deletion) -> dict[str, object]:
    """A deletion as plain values."""
    lists = {"exports": list(found.exports), "export_locations": list(found.export_locations)}
    return asdict(found) | lists


Progress = Callable[[Deletion], None]


def delete_episode(store: Store, project: str, episode_id: str, *, reason: str | None = None) -> Deletion:
    """Ask for the deletion of an episode; where it was asked for, that deletion.

    Raises:
        UnknownProject: nothing was ever posted to it.
        NotFound: no such episode.
    """
    with store.read() as connection:
        require_project(connection, project)
        project_id = find_project(connection, project) or 0
        before = _deletion_of(connection, project_id, ("episode", episode_id))
        episode = t.episode.c
        is_there = connection.execute(
            select(episode.key).where(
                episode.project_id == project_id, episode.id == episode_id, episode.first_pos.is_not(None)
            )
        ).first()
    if before is not None:
        return deletion(store, project, before)
    if is_there is None:
        raise NotFound(kind="episode", id=episode_id, project=project)
    return delete_episodes(store, project, [episode_id], what="episode", name=episode_id, reason=reason)


def delete_episodes(
    store: Store,
    project: str,
    episode_ids: Sequence[str],
    *,
    what: What,
    name: str,
    reason: str | None = None,
) -> Deletion:
    """Ask for the deletion of episodes; those that are not there are left out."""
    key = store.perform(project, lambda tx: _request(tx, episode_ids, what, name, reason)).result()
    return deletion(store, project, key)


def delete_project(store: Store, project: str, *, reason: str | None = None) -> Deletion:
    """Ask for the deletion of a project; where it was asked for, that deletion.

    Raises:
        UnknownProject: nothing was ever posted to it.
    """
    with store.read() as connection:
        require_project(connection, project)
        project_id = find_project(connection, project) or 0
        before = _deletion_of(connection, project_id, ("project", project))
    if before is None:
        before = store.perform(project, lambda tx: _request_project(tx, project, reason)).result()
    return deletion(store, project, before)


def delete_contents(store: Store, project: str, episode_ids: Sequence[str], *, name: str) -> Deletion:
    """Ask that of episodes only what is measured be kept (`store.strip`)."""
    return delete_episodes(store, project, episode_ids, what="content", name=name)


def delete_unused_blobs(store: Store, project: str, *, before: int, name: str) -> Deletion:
    """Ask for the deletion of blobs that were sent before a time (nanoseconds UTC) and no event names."""
    key = store.perform(project, lambda tx: _open(tx, "blobs", name, None, before=before)).result()
    return deletion(store, project, key)


def old_episodes(
    store: Store, project: str, *, before: int, keep_graded: bool = False, with_content: bool = False
) -> list[str]:
    """Episodes of which nothing came since a time (nanoseconds UTC, of the server's clock).

    Args:
        keep_graded: leave out those that have a reward.
        with_content: leave out those whose content is deleted.
    """
    raw, episode, reward = t.raw_event.c, t.episode.c, t.reward.c
    with store.read() as connection:
        require_project(connection, project)
        project_id = find_project(connection, project)
        old = (
            select(raw.episode_key)
            .where(raw.project_id == project_id, raw.episode_key.is_not(None))
            .group_by(raw.episode_key)
            .having(func.max(raw.received_at) < before)
        )
        query = select(episode.id).where(
            episode.project_id == project_id, episode.first_pos.is_not(None), episode.key.in_(old)
        )
        if keep_graded:
            graded = select(reward.episode_key).where(reward.project_id == project_id)
            query = query.where(episode.key.not_in(graded))
        if with_content:
            stone = t.tombstone.c
            gone = select(stone.id).where(stone.project_id == project_id, stone.kind == "content")
            query = query.where(episode.id.not_in(gone))
        return list(connection.execute(query.order_by(episode.first_pos)).scalars())


def deletion(store: Store, project: str, key: int) -> Deletion:
    """How far a deletion has come.

    Raises:
        NoDeletion: there is none of this number.
    """
    found = asked.numbered(store, project, t.deletion, _read, key)
    if found is None:
        raise NoDeletion(id=key, project=project)
    return found


def deletions(
    store: Store, project: str, *, before: int | None = None, limit: int | None = None
) -> list[Deletion]:
    """The deletions of a project, the latest first.

    Args:
        before: those that were asked for before this number.
    """
    return asked.latest(store, project, t.deletion, _read, before=before, limit=limit)


def unfinished(store: Store) -> list[tuple[str, int]]:
    """(project, number) of the deletions that are not done."""
    return asked.unfinished(store, t.deletion)


def carry_out(
    store: Store, project: str, key: int, *, blobs: Blobs | None = None, progress: Progress | None = None
) -> Deletion:
    """Do what is left of a deletion, and return when it is done.

    Args:
        blobs: where the project's payloads lie; None: only the rows that name them go.
    """
    found = deletion(store, project, key)
    while found.state != "done":
        if found.what == "blobs" or (found.what == "project" and found.state == "sweeping"):
            _collect(store, project, key, blobs)
        elif found.state == "erasing":
            store.perform(project, lambda tx: _erase(tx, key, project, blobs)).result()
        else:
            _sweep(store, project, key)
        found = deletion(store, project, key)
        if progress is not None:
            progress(found)
    return found


def resume(store: Store, *, blobs: Blobs | None = None) -> int:
    """Carry out every deletion that is not done; says how many."""
    waiting_ = unfinished(store)
    for project, key in waiting_:
        carry_out(store, project, key, blobs=blobs)
    return len(waiting_)


# --- Reading ---------------------------------------------------------------------------------------


def _read(connection: Connection, project_id: int, *where: Any, limit: int | None = None) -> list[Deletion]:
    c, stone = t.deletion.c, t.tombstone.c
    mine = (stone.project_id == c.project_id, stone.deletion_key == c.key, stone.kind.in_(_OF_EPISODES))
    count = select(func.count()).where(*mine)
    rows = connection.execute(
        select(
            t.deletion,
            count.scalar_subquery().label("episodes"),
            count.where(stone.erased_at.is_not(None)).scalar_subquery().label("episodes_erased"),
        )
        .where(c.project_id == project_id, *where)
        .order_by(c.key.desc())
        .limit(limit)
    ).all()
    held = t.deletion_export.c
    exports: dict[int, list[str]] = {}
    locations: dict[int, list[str]] = {}
    made = (t.export.c.project_id == held.project_id) & (t.export.c.manifest_hash == held.export_hash)
    for export in connection.execute(
        select(held.deletion_key, held.export_hash, t.export.c.location)
        .select_from(t.deletion_export.outerjoin(t.export, made))
        .where(held.project_id == project_id, held.deletion_key.in_([row.key for row in rows]))
        .order_by(held.export_hash)
    ):
        exports.setdefault(export.deletion_key, []).append(export.export_hash)
        if export.location is not None:
            locations.setdefault(export.deletion_key, []).append(export.location)
    return [
        Deletion(
            id=row.key,
            what=row.what,
            name=row.name,
            reason=row.reason,
            state=row.state,
            requested_at=row.requested_at,
            finished_at=row.finished_at,
            episodes=row.episodes,
            episodes_erased=row.episodes_erased,
            rows=row.num_rows,
            contents=row.num_contents,
            blobs=row.num_blobs,
            exports=tuple(exports.get(row.key, ())),
            export_locations=tuple(locations.get(row.key, ())),
        )
        for row in rows
    ]


def _deletion_of(connection: Connection, project_id: int, name: tuple[str, str]) -> int | None:
    stone = t.tombstone.c
    this = (stone.project_id == project_id, stone.kind == name[0], stone.id == name[1])
    return connection.execute(select(stone.deletion_key).where(*this)).scalar()


# --- Steps -----------------------------------------------------------------------------------------


def _request(tx: Transaction, episode_ids: Iterable[str], what: What, name: str, reason: str | None) -> int:
    key = _open(tx, what, name, reason)
    episode, stone = t.episode.c, t.tombstone.c
    kind = "content" if what == "content" else "episode"
    for chunk in chunks(sorted(set(episode_ids))):
        is_buried = select(stone.id).where(
            stone.project_id == tx.project_id, stone.kind.in_({kind, "episode"})
        )
        rows = tx.connection.execute(
            select(episode.key, episode.id, episode.first_pos).where(
                episode.project_id == tx.project_id,
                episode.id.in_(chunk),
                episode.first_pos.is_not(None),
                episode.id.not_in(is_buried.where(stone.id.in_(chunk))),
            )
        ).all()
        for row in rows:
            stone_of = {"kind": kind, "id": row.id, "first_pos": row.first_pos}
            _bury(tx, key, reason, **stone_of)
        keys = [row.key for row in rows]
        first = min((row.first_pos for row in rows), default=None)
        _name_exports(tx, key, episodes=keys, first_pos=first)
        if kind == "content":
            continue
        # Nothing lists it from here on; its rows lie there until they are erased.
        this = (episode.project_id == tx.project_id, episode.key.in_(keys))
        tx.connection.execute(t.episode.update().where(*this).values(first_pos=None))
    return key


def _request_project(tx: Transaction, project: str, reason: str | None) -> int:
    key = _open(tx, "project", project, reason)
    _bury(tx, key, reason, kind="project", id=project)
    _name_exports(tx, key, episodes=None, first_pos=0)
    return key


def _open(tx: Transaction, what: What, name: str, reason: str | None, *, before: int | None = None) -> int:
    key = tx.new_key()
    nothing = dict.fromkeys(("num_events", "num_rows", "num_contents", "num_blobs"), 0)
    row = {"project_id": tx.project_id, "key": key, "what": what, "name": name, "reason": reason}
    tx.connection.execute(
        t.deletion.insert().values(
            **row, **nothing, num_positions=1, state="erasing", requested_at=tx.now, before_at=before
        )
    )
    return key


def _bury(tx: Transaction, deletion_key: int, reason: str | None, **of: Any) -> None:
    # The position that the transaction takes in the end.
    row = {"project_id": tx.project_id, "deleted_at": tx.now, "reason": reason, "pos": tx.pos + 1}
    tx.connection.execute(t.tombstone.insert().values(**row, deletion_key=deletion_key, **of))


def _name_exports(
    tx: Transaction, key: int, *, episodes: Sequence[int] | None, first_pos: int | None
) -> None:
    """Note the exports that may hold it: those that were trained on with it, or in which it was given credit,
    and those of a later snapshot.

    Args:
        episodes: keys; None: all of the project.
        first_pos: where the first event of it lies; None: nowhere.
    """
    export, held = t.export.c, t.deletion_export.c
    known = select(held.export_hash).where(held.project_id == tx.project_id, held.deletion_key == key)
    used = [
        select(table.c.export_hash).where(
            table.c.project_id == tx.project_id,
            table.c.export_hash.not_in(known),
            true() if episodes is None else table.c.episode_key.in_(episodes),
        )
        for table in (t.consumption, t.branch_credit)
    ]
    later = select(export.manifest_hash).where(
        export.project_id == tx.project_id,
        export.manifest_hash.not_in(known),
        export.snapshot_pos >= first_pos,
    )
    found = union(*used, later)
    for hash_ in tx.connection.execute(found).scalars().all():
        row = {"project_id": tx.project_id, "deletion_key": key, "export_hash": hash_}
        tx.connection.execute(t.deletion_export.insert().values(**row))


def _erase(tx: Transaction, key: int, project: str, blobs: Blobs | None) -> None:
    """One step: some rows of the next episode, or the end of erasing."""
    stone, episode = t.tombstone.c, t.episode.c
    this = (stone.project_id == tx.project_id, stone.deletion_key == key)
    c = t.deletion.c
    what, asked_at = tx.connection.execute(
        select(c.what, c.requested_at).where(c.project_id == tx.project_id, c.key == key)
    ).one()
    if what == "project":
        _count(tx, key, _erase_project(tx, project, blobs), after="sweeping")
        return
    found = tx.connection.execute(
        select(episode.key, episode.id)
        .join(t.tombstone, (stone.project_id == episode.project_id) & (stone.id == episode.id))
        .where(*this, stone.kind.in_(_OF_EPISODES), stone.erased_at.is_(None))
        .limit(1)
    ).one_or_none()
    if found is None:
        _count(tx, key, Erased(is_done=True), after="sweeping")
        return
    if what == "content":
        rewrite(tx, Scope("episode", found.id), stripped)
        erased = Erased(is_done=True)
    else:
        erased = erase_some(tx, found.key, project=project, blobs=blobs, asked_at=asked_at)
    if erased.is_done:
        mine = (*this, stone.kind.in_(_OF_EPISODES), stone.id == found.id)
        tx.connection.execute(t.tombstone.update().where(*mine).values(erased_at=tx.now))
        erased.is_done = False
    _count(tx, key, erased, after="sweeping")


def _collect(store: Store, project: str, key: int, blobs: Blobs | None) -> None:
    """Take blobs that no event names. Whether one does is asked in the step that takes it."""
    c = t.deletion.c
    with store.read() as connection:
        project_id = find_project(connection, project)
        before = connection.execute(
            select(c.before_at).where(c.project_id == project_id, c.key == key)
        ).scalar_one()
    # Of a project that is gone, all: what comes from now on is refused.
    at = _ALWAYS if before is None else before
    names = [] if blobs is None else list(blobs.sent_before(project, at))
    for chunk in chunks(names):
        assert blobs is not None
        step = partial(_collect_some, key=key, project=project, names=chunk, blobs=blobs, sent_before=at)
        store.perform(project, step).result()
    store.perform(project, lambda tx: _count(tx, key, Erased(is_done=True), after="done")).result()


def _collect_some(
    tx: Transaction, *, key: int, project: str, names: Sequence[str], blobs: Blobs, sent_before: int
) -> None:
    c = t.blob.c
    here = select(c.hash).where(c.project_id == tx.project_id, c.hash.in_(names))
    unused = sorted(set(names) - set(tx.connection.execute(here).scalars()))
    # One that was sent again since the list was made is wanted: its event is on its way.
    taken = sum(blobs.remove(project, name, sent_before=sent_before) for name in unused)
    _count(tx, key, Erased(blobs=taken), after="done")


def _count(tx: Transaction, key: int, erased: Erased, *, after: str, contents: int = 0) -> None:
    c = t.deletion.c
    values: dict[Any, Any] = {
        c.num_positions: c.num_positions + 1,
        c.num_events: c.num_events + erased.events,
        c.num_rows: c.num_rows + erased.rows,
        c.num_contents: c.num_contents + contents,
        c.num_blobs: c.num_blobs + erased.blobs,
    }
    if erased.is_done:
        values[c.state] = after
        if after == "done":
            values[c.finished_at] = tx.now
    tx.connection.execute(
        t.deletion.update().where(c.project_id == tx.project_id, c.key == key).values(values)
    )


def _erase_project(tx: Transaction, project: str, blobs: Blobs | None) -> Erased:
    """Some rows of a project, table by table: nothing in it is to be kept for anything else."""
    for table in reversed([*t.metadata.tables.values()]):
        if table.name in _KEPT:
            continue
        names = [column.name for column in table.primary_key if column.name != "project_id"]
        columns = [table.c[name] for name in names]
        rows = tx.connection.execute(
            select(*columns).where(table.c.project_id == tx.project_id).limit(ROWS)
        ).all()
        if rows:
            return _erase_rows(tx, table, names, [tuple(row) for row in rows], project, blobs)
    return Erased(is_done=True)


def _erase_rows(
    tx: Transaction,
    table: Any,
    names: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    project: str,
    blobs: Blobs | None,
) -> Erased:
    erased = Erased(rows=len(rows))
    if table is t.raw_event:
        raw = t.raw_event.c
        positions = [row[0] for row in rows]
        for chunk in chunks(positions):
            this = (raw.project_id == tx.project_id, raw.pos.in_(chunk))
            count = select(func.count() + func.coalesce(func.sum(raw.num_replaced), 0)).where(*this)
            erased.events += int(tx.connection.execute(count).scalar_one())
    if table is t.blob:
        erased.blobs = len(rows)
        for (hash_,) in rows:
            if blobs is not None:
                blobs.remove(project, hash_, sent_before=_ALWAYS)
    tx.buffer.delete(table, rows if len(names) > 1 else [row[0] for row in rows])
    return erased


def _sweep(store: Store, project: str, key: int) -> None:
    def counted(tx: Transaction, taken: Taken) -> None:
        _count(tx, key, Erased(rows=taken.rows), after="done", contents=taken.contents)

    sweep(store, project, counted)
    store.perform(project, lambda tx: _count(tx, key, Erased(is_done=True), after="done")).result()
