"""Views -> Parquet: DIR/VIEW/project-N/part-*.parquet, of which a later run writes only what has changed.

A part is a range of episodes, in the order in which they were first heard of, so that all rows of an episode
lie in one part of each view. The manifest keeps a fingerprint of what each part was made of: the events of
its episodes, and the credit of them. A part whose fingerprint is another one is written anew, whole; the
others are left alone.

A part at a time is read through SQLAlchemy in one transaction, on SQLite and PostgreSQL alike, and given to a
DuckDB that lives in memory and never opens the database: `views.sql` runs there, over the rows of the part
alone. So memory is bounded by a part (or by one episode that is larger), the views that walk contexts cost
what they cost within it, and no second library touches the file of a live store.

Files appear by rename, and the manifest is written after the files that it speaks of: killed at any moment,
the next run writes again what was in hand.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Double,
    LargeBinary,
    Select,
    Table,
    Text,
    exists,
    func,
    select,
    true,
    type_coerce,
)

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.blobs.uploads import sync_folder
from tracestore.store.chunks import chunks
from tracestore.store.schema import view_statements
from tracestore.store.store import Store

EVENTS_PER_PART = 20_000
"""A new part begins where this many events are in one; one that has grown to twice as many is divided."""
_MEMORY_MB = 1024
_AT_ONCE = 5000
_FORMAT = 1
_MANIFEST = "manifest.json"

_OWNERS = {
    "completion": (t.completion.c.call_key, t.call),
    "completion_event": (t.completion_event.c.completion_key, t.completion),
    "version_run": (t.version_run.c.completion_key, t.completion),
    "call_attempt": (t.call_attempt.c.call_key, t.call),
    "pending_message": (t.pending_message.c.call_key, t.call),
    "context_edit_member": (t.context_edit_member.c.context_edit_key, t.context_edit),
    "candidate_member": (t.candidate_member.c.candidate_set_key, t.candidate_set),
    "candidate_choice": (t.candidate_choice.c.candidate_selection_key, t.candidate_selection),
}
"""Tables of which each row lies in the episode of another one."""


class NotOurFolder(TracestoreError):
    """This is no folder, or holds something other than a Parquet export"""

    exit_code = 2


class ExportInHand(TracestoreError):
    """Another process is writing this export now"""


class EpisodeState(NamedTuple):
    """What an episode's rows are made of: they are the same as long as this is."""

    key: int
    num_events: int
    last_pos: int
    group_pos: int
    """Positions of its group's events, added up: a group may come later and name the task."""
    last_credit: int = 0
    """Key of the last credit that was kept of it, which takes no position; 0: there is none."""


class Part(NamedTuple):
    """Episodes of which the key is at least `start` and below `stop`."""

    start: int
    stop: int | None

    @property
    def name(self) -> str:
        return f"part-{self.start:013d}.parquet"


@dataclass(slots=True)
class Written:
    """What a run did."""

    parts_written: int = 0
    parts_kept: int = 0
    parts_removed: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    """Of each view, over all parts, those that were kept included."""
    positions: dict[str, int] = field(default_factory=dict)
    """Project -> commit position: every event up to it is in the files."""


Heard = Callable[[int, int], None]
"""Told (parts that are done, parts there are) of one project."""


def export_parquet(
    store: Store,
    folder: Path,
    *,
    projects: Sequence[str] | None = None,
    events_per_part: int = EVENTS_PER_PART,
    heard: Heard = lambda done, total: None,
) -> Written:
    """Bring a folder of Parquet files up to date with every view of these projects.

    Each part is as of one moment; parts that are written later may be as of a later one.

    Args:
        projects: None: all of them, and what is left of those that are gone is removed.

    Raises:
        NotOurFolder: it is not empty, and no export.
        ExportInHand: another process is at it.
    """
    written = Written()
    with _manifest(folder) as manifest:
        with store.read() as connection:
            there = _projects(connection)
        asked = sorted({*there, *manifest.projects}) if projects is None else projects
        for name in asked:
            if name not in there:
                written.parts_removed += manifest.forget(name)
        for name in [name for name in asked if name in there]:
            _Project(store, manifest, name, there[name]).write(
                written, events_per_part=events_per_part, heard=heard
            )
    return written


class _Known(NamedTuple):
    number: int
    created_at: int


def _projects(connection: Connection) -> dict[str, _Known]:
    """The projects that are not deleted, by name."""
    c, stone = t.project.c, t.tombstone.c
    is_deleted = exists().where(stone.project_id == c.project_id, stone.kind == "project")
    rows = connection.execute(select(c.name, c.project_id, c.created_at).where(~is_deleted))
    return {name: _Known(number, created_at) for name, number, created_at in rows}


class _Project:
    def __init__(self, store: Store, manifest: _Manifest, name: str, known: _Known) -> None:
        self._store = store
        self._manifest = manifest
        self._name = name
        self._number, self._created_at = known
        self._parts = manifest.parts(name, folder=f"project-{self._number}")

    def write(self, written: Written, *, events_per_part: int, heard: Heard) -> None:
        with self._store.read() as connection:
            position = self._position(connection)
            states = list(_states(connection, self._number, Part(0, None)))
        parts = plan(states, [int(start) for start in self._parts], limit=events_per_part)
        names = {part.name for part in parts}
        written.parts_removed += self._manifest.keep_only(self._name, names)
        for done, part in enumerate(parts):
            heard(done, len(parts))
            is_new = self._write(part)
            written.parts_written += is_new
            written.parts_kept += not is_new
            for view, rows in self._parts[str(part.start)]["rows"].items():
                written.rows[view] = written.rows.get(view, 0) + rows
        heard(len(parts), len(parts))
        written.positions[self._name] = position
        self._manifest.done(self._name, position)

    def _position(self, connection: Connection) -> int:
        query = select(t.project.c.commit_seq).where(t.project.c.project_id == self._number)
        return int(connection.execute(query).scalar_one())

    def _write(self, part: Part) -> bool:
        """Whether the part had to be written."""
        with self._store.read() as connection:
            fingerprint = self._fingerprint(connection, part)
            if self._parts.get(str(part.start), {}).get("fingerprint") == fingerprint:
                return False
            self._manifest.begin(self._name, part)
            rows = _read_part(connection, self._number, part)
        counts = _write_views(rows, part, self._manifest.folder, self._folder_name, self._name)
        self._manifest.end(self._name, part, fingerprint=fingerprint, rows=counts)
        return True

    @property
    def _folder_name(self) -> str:
        return f"project-{self._number}"

    def _fingerprint(self, connection: Connection, part: Part) -> str:
        hashed = sha256(f"{self._created_at} {_redactions(connection, self._number)}".encode())
        for state in _states(connection, self._number, part):
            hashed.update(" ".join(map(str, ("", *state))).encode())
        return hashed.hexdigest()


# Which episodes lie in which part


def plan(states: Sequence[EpisodeState], starts: Sequence[int], *, limit: int) -> list[Part]:
    """The parts, given where they began before: they stay where they are, so that files stay as they are.

    A part of more than twice `limit` events is divided, the last one already above `limit`, for new episodes
    come to it. An episode is never divided.

    Example: episodes 5, 6, 7 of 3 events each, none before, limit 6 -> [0, 7), [7, ...)
    """
    known = sorted({0, *starts})
    found: list[int] = []
    for index, group in groupby(states, key=lambda state: bisect_right(known, state.key) - 1):
        members = list(group)
        found.append(known[index])
        total = sum(state.num_events for state in members)
        if total > (limit if index == len(known) - 1 else 2 * limit):
            found += _cuts(members, limit=limit)
    return [Part(start, stop) for start, stop in pairwise([*found, None]) if start is not None]


def _cuts(members: Sequence[EpisodeState], *, limit: int) -> Iterator[int]:
    """Where a part has to end for the next episode not to make it too large."""
    inside = 0
    for state in members:
        if inside and inside + state.num_events > limit:
            yield state.key
            inside = 0
        inside += state.num_events


def _states(connection: Connection, project_id: int, part: Part) -> Iterator[EpisodeState]:
    """Every episode of a part of which something has come and that is not deleted, in order."""
    raw, e, g, k = t.raw_event.c, t.episode.c, t.task_group.c, t.branch_credit.c
    events = (
        select(raw.episode_key, func.count().label("num_events"), func.max(raw.pos).label("last_pos"))
        .where(raw.project_id == project_id, *_within(raw.episode_key, part))
        .group_by(raw.episode_key)
        .subquery()
    )
    of_event = (e.project_id == project_id) & (e.key == events.c.episode_key)
    in_group = (g.project_id == project_id) & (g.key == e.group_key)
    query = (
        select(
            events.c.episode_key,
            events.c.num_events,
            events.c.last_pos,
            func.coalesce(g.pos, 0) + func.coalesce(g.end_pos, 0),
            select(func.coalesce(func.max(k.key), 0))
            .where(k.project_id == project_id, k.episode_key == events.c.episode_key)
            .scalar_subquery(),
        )
        .select_from(events.join(t.episode, of_event).outerjoin(t.task_group, in_group))
        # What is being deleted has none from the first step on (see views.sql).
        .where(e.first_pos.is_not(None))
        .order_by(events.c.episode_key)
    )
    for row in connection.execute(query.execution_options(yield_per=_AT_ONCE)):
        yield EpisodeState(*row)


def _redactions(connection: Connection, project_id: int) -> int:
    """A redaction changes rows without an event, in whatever episodes the content stands: its steps, by which
    it can be told how far it had come."""
    steps = func.coalesce(func.sum(t.redaction.c.num_positions), 0)
    query = select(steps).where(t.redaction.c.project_id == project_id)
    return int(connection.execute(query).scalar_one())


def _within(column: ColumnElement[int] | Column[Any], part: Part) -> list[ColumnElement[bool]]:
    return [column >= part.start, column < part.stop if part.stop is not None else true()]


# Rows of a part


class _Rows:
    """The narrow columns of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns = [column for column in table.columns if not isinstance(column.type, LargeBinary)]
        # As the database holds it: text that it cannot hold stays escaped, as in its own views.
        self.selected = [
            type_coerce(column, Text).label(column.name) if _is_text(column) else column
            for column in self.columns
        ]
        self.schema = pa.schema([(column.name, _arrow_type(column)) for column in self.columns])
        self.batches: list[pa.RecordBatch] = []
        self.keys: set[int] = set()

    def add(self, connection: Connection, query: Select[Any]) -> None:
        for rows in connection.execute(query.execution_options(yield_per=_AT_ONCE)).partitions():
            values = zip(*rows, strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(values, self.schema.types, strict=True)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
            self.batches.append(batch)
            if "key" in self.schema.names:
                self.keys.update(batch.column("key").to_pylist())

    def named(self, column: str, *, since: int) -> set[int]:
        """The keys that a column names, in the batches from `since` on."""
        return {
            value
            for batch in self.batches[since:]
            for value in batch.column(column).unique().to_pylist()
            if value is not None
        }

    def arrow(self) -> pa.Table:
        return pa.Table.from_batches(self.batches, self.schema)


def _is_text(column: Column[Any]) -> bool:
    return not isinstance(column.type, (BigInteger, Boolean, Double))


def _arrow_type(column: Column[Any]) -> pa.DataType:
    kinds = ((BigInteger, pa.int64()), (Boolean, pa.bool_()), (Double, pa.float64()))
    return next((arrow for kind, arrow in kinds if isinstance(column.type, kind)), pa.string())


def _read_part(connection: Connection, project_id: int, part: Part) -> dict[str, pa.Table]:
    """What the views read of a part's episodes, and what their rows name outside of them."""
    found = {table.name: _Rows(table) for table in _tables_of_views()}
    for rows in found.values():
        where = _lies_in(rows.table, project_id, part)
        if where is not None:
            rows.add(connection, select(*rows.selected).where(*where))
    since = dict.fromkeys(found, 0)
    for _ in range(2):  # a tool call may name a call of another episode, and that one an agent
        ends = {name: len(rows.batches) for name, rows in found.items()}
        for name, keys in _named_outside(found, since).items():
            rows = found[name]
            for chunk in chunks(sorted(keys - rows.keys)):
                where = [rows.table.c.project_id == project_id, rows.table.c.key.in_(chunk)]
                rows.add(connection, select(*rows.selected).where(*where))
        since = ends
    return {name: rows.arrow() for name, rows in found.items()}


def _lies_in(table: Table, project_id: int, part: Part) -> list[ColumnElement[bool]] | None:
    """Which rows of a table lie in the episodes of a part; None: they are looked up by what names them."""
    here = table.c.project_id == project_id
    if table is t.project:
        return [here]
    if table is t.episode:
        return [here, *_within(table.c.key, part)]
    if table is t.blob:
        inside = _lies_in(t.blob_ref, project_id, part)
        assert inside is not None, "a reference lies in an episode"
        return [here, table.c.hash.in_(select(t.blob_ref.c.hash).where(*inside))]
    if "episode_key" in table.c:
        return [here, *_within(table.c.episode_key, part)]
    if table.name not in _OWNERS:
        return None
    column, owner = _OWNERS[table.name]
    inside = _lies_in(owner, project_id, part)
    assert inside is not None, "an owner lies in an episode"
    return [here, column.in_(select(owner.c.key).where(*inside))]


def _named_outside(found: Mapping[str, _Rows], since: Mapping[str, int]) -> dict[str, set[int]]:
    """The keys that rows name, by table."""
    named: dict[str, set[int]] = {}
    for name, rows in found.items():
        for key in rows.table.foreign_keys:
            target = key.column.table.name
            if key.column.name == "key" and target in found:
                named.setdefault(target, set()).update(rows.named(key.parent.name, since=since[name]))
    return named


def _tables_of_views() -> list[Table]:
    words = {word for sql in view_statements().values() for word in re.findall(r"\w+", sql)}
    return [table for table in t.metadata.tables.values() if table.name in words]


# Views of a part, in files


def _write_views(
    tables: Mapping[str, pa.Table], part: Part, folder: Path, project_folder: str, project: str
) -> dict[str, int]:
    """Write the file of each view; its rows."""
    counts = {}
    spill = folder / ".spill"
    with duckdb.connect() as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY_MB}MB'")
        connection.execute("SET threads = 2")
        connection.execute("SET temp_directory = ?", [str(spill)])
        for name, table in tables.items():
            connection.register("given", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
            connection.unregister("given")
        for sql in view_statements().values():
            connection.execute(sql)
        for view in view_statements():
            place = folder / view / project_folder
            place.mkdir(parents=True, exist_ok=True)
            counts[view] = _copy_view(connection, view, part, place / part.name)
    return counts


def _copy_view(connection: duckdb.DuckDBPyConnection, view: str, part: Part, file: Path) -> int:
    # A sum of integers is a HUGEINT, which Parquet would round to a double.
    columns = ", ".join(
        f'CAST("{name}" AS BIGINT) AS "{name}"' if kind == "HUGEINT" else f'"{name}"'
        for name, kind, *_ in connection.execute(f"DESCRIBE {view}").fetchall()
    )
    inside = f"SELECT id FROM episode WHERE key >= {part.start}"
    if part.stop is not None:
        inside += f" AND key < {part.stop}"
    partial = file.with_name(f".{file.name}.partial")
    quoted = str(partial).replace("'", "''")
    done = connection.execute(
        f"COPY (SELECT {columns} FROM {view} WHERE episode_id IN ({inside})) "
        f"TO '{quoted}' (FORMAT parquet, COMPRESSION zstd)"
    ).fetchone()
    assert done is not None
    with partial.open("rb") as opened:
        os.fsync(opened.fileno())
    os.rename(partial, file)
    sync_folder(file.parent)
    return int(done[0])


# The manifest


class _Manifest:
    """What the files were made of: {"projects": {name: {"folder", "position", "parts": {start: ...}}}}."""

    def __init__(self, folder: Path, projects: dict[str, Any]) -> None:
        self.folder = folder
        self.projects = projects

    def parts(self, project: str, *, folder: str) -> dict[str, Any]:
        """The parts of a project by where they begin; none, where another project lay in this folder."""
        known = self.projects.setdefault(project, {"folder": folder, "position": None, "parts": {}})
        if known["folder"] != folder:
            self.forget(project)
            return self.parts(project, folder=folder)
        parts: dict[str, Any] = known["parts"]
        return parts

    def begin(self, project: str, part: Part) -> None:
        """From now on the files of a part are of no moment."""
        if self.projects[project]["parts"].pop(str(part.start), None) is not None:
            self.save()

    def end(self, project: str, part: Part, *, fingerprint: str, rows: Mapping[str, int]) -> None:
        self.projects[project]["parts"][str(part.start)] = {"fingerprint": fingerprint, "rows": dict(rows)}
        self.save()

    def done(self, project: str, position: int) -> None:
        self.projects[project]["position"] = position
        self.save()

    def keep_only(self, project: str, names: set[str]) -> int:
        """Remove the files of parts that are no more, and what a killed run left; how many parts went."""
        known = self.projects[project]
        gone = [start for start in known["parts"] if Part(int(start), None).name not in names]
        for start in gone:
            del known["parts"][start]
        if gone:
            self.save()
        views = view_statements()
        for file in self.folder.glob(f"*/{known['folder']}/*part-*"):
            if file.name not in names or file.parent.parent.name not in views:
                file.unlink()
        return len(gone)

    def forget(self, project: str) -> int:
        """Remove a project, if it is known; how many parts it had."""
        known = self.projects.pop(project, None)
        if known is None:
            return 0
        self.save()
        for place in self.folder.glob(f"*/{known['folder']}"):
            shutil.rmtree(place)
        return len(known["parts"])

    def save(self) -> None:
        facts = {"format": _FORMAT, "schema": _schema_hash(), "projects": self.projects}
        partial = self.folder / f".{_MANIFEST}.partial"
        with partial.open("w", encoding="utf-8") as file:
            json.dump(facts, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, self.folder / _MANIFEST)
        sync_folder(self.folder)


@contextmanager
def _manifest(folder: Path) -> Iterator[_Manifest]:
    """The manifest of a folder that no other process writes to meanwhile; a new one in an empty folder."""
    refusal = NotOurFolder(folder=str(folder), hint="name an empty folder, or one that `db parquet` made")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise refusal from None
    path = folder / _MANIFEST
    if not path.exists() and any(file.name != ".lock" for file in folder.iterdir()):
        raise refusal
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExportInHand(folder=str(folder), hint="wait for it to end") from None
        manifest = _Manifest(folder, _read_projects(path))
        manifest.save()
        try:
            yield manifest
        finally:
            shutil.rmtree(folder / ".spill", ignore_errors=True)


def _read_projects(path: Path) -> dict[str, Any]:
    """What is known of the files; of other columns or views than today's, only where they lie."""
    if not path.exists():
        return {}
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        projects: dict[str, Any] = facts["projects"]
        is_current = (facts["format"], facts["schema"]) == (_FORMAT, _schema_hash())
    except (ValueError, KeyError, TypeError) as error:
        raise NotOurFolder(file=str(path), error=str(error), hint="this is no manifest of ours") from error
    if not is_current:
        for known in projects.values():
            for part in known["parts"].values():
                part["fingerprint"] = None
    return projects


def _schema_hash() -> str:
    return sha256("\n".join(view_statements().values()).encode()).hexdigest()
