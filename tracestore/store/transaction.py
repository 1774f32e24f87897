"""One transaction of one project: its rows, its keys, its next commit position."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table, select

from tracestore.store import tables as t
from tracestore.store.buffer import Buffer
from tracestore.store.contents import Contents, Interned
from tracestore.store.dictionary import NewRows
from tracestore.store.doomed import SWEPT, rescue
from tracestore.store.fields import PLACEHOLDERS, TABLES
from tracestore.store.lookup import look_up
from tracestore.store.requests import Piece
from tracestore.store.rules import NO_RULES, Rules, read_rules
from tracestore.store.runs import RunCodec, RunIds, Unpacked
from tracestore.wire.arrays import Logprobs
from tracestore.wire.events import AnyEvent

FIRST_KEY = 1
_CACHED_ENTITIES = 50_000
_CACHED_STATES = 64
_CACHED_EVENTS = 500


@dataclass(slots=True)
class Entity:
    """A row that others may refer to."""

    key: int
    is_placeholder: bool
    first_pos: int | None = None
    """Of an episode: the first event that lies in it."""


@dataclass(slots=True)
class Memory:
    """What the committer remembers of a project between transactions. Dropped when another writer wrote."""

    project_id: int
    commit_seq: int
    contents: Contents
    run_ids: RunIds
    run_codec: RunCodec
    entities: dict[tuple[str, str], Entity] = field(default_factory=dict)
    field_sets: dict[str, int] = field(default_factory=dict)
    parents: dict[int, int | None] = field(default_factory=dict)
    """Key of a call or agent -> key of the parent it names."""
    states: dict[int, Any] = field(default_factory=dict)
    """Key of an episode -> its `EpisodeState`, the one used last at the end."""
    parameters: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Key of a skeleton -> the sampling parameters in it, as columns."""
    blobs: set[str] = field(default_factory=set)
    """Hashes of blobs that have a row."""
    open_events: dict[tuple[str, str], AnyEvent] = field(default_factory=dict)
    """Events whose other half has not come."""
    has_tombstones: bool = False
    is_deleted: bool = False
    """Whether the project itself is."""
    rules: Rules = NO_RULES
    """The project's rules of redaction."""
    has_doomed: bool = False
    """Whether rows wait to be swept away, from which they are saved by being looked up."""

    @classmethod
    def of(cls, project_id: int, commit_seq: int) -> Memory:
        return cls(project_id, commit_seq, Contents(project_id), RunIds(project_id), RunCodec(project_id))

    def learn_life(self, connection: Connection) -> None:
        """What of the project is being deleted or redacted. It stays true: every step of that drops this
        memory."""
        tombstone, doomed = t.tombstone.c, t.doomed.c
        kinds, names = ("project", "episode", "content", "agent", "call"), [table.name for table in SWEPT]
        stones = select(tombstone.id).where(
            tombstone.project_id == self.project_id, tombstone.kind.in_(kinds)
        )
        waiting = select(doomed.key).where(doomed.project_id == self.project_id, doomed.name.in_(names))
        self.has_tombstones = connection.execute(stones.limit(1)).first() is not None
        whole = stones.where(tombstone.kind == "project")
        self.is_deleted = self.has_tombstones and connection.execute(whole).first() is not None
        self.has_doomed = self.contents.has_doomed = connection.execute(waiting.limit(1)).first() is not None
        self.rules = rules_of(connection, self.project_id)

    def trim(self) -> None:
        """Forget what was used longest ago. Only between transactions: within one, all is needed."""
        self.contents.trim()
        if len(self.entities) > _CACHED_ENTITIES:
            self.entities.clear()
        if len(self.parameters) > _CACHED_EVENTS:
            self.parameters.clear()
        if len(self.blobs) > _CACHED_ENTITIES:
            self.blobs.clear()
        if len(self.parents) > _CACHED_ENTITIES:
            self.parents.clear()
        while len(self.states) > _CACHED_STATES:
            del self.states[next(iter(self.states))]
        while len(self.open_events) > _CACHED_EVENTS:
            del self.open_events[next(iter(self.open_events))]


def rules_of(connection: Connection, project_id: int) -> Rules:
    """The rules of redaction of a project, in the order in which they came."""
    c = t.redaction.c
    rows = connection.execute(
        select(c.rules, c.ended_at).where(c.project_id == project_id).order_by(c.key)
    ).all()
    if not rows:
        return NO_RULES
    return Rules(
        active=tuple(read_rules(row.rules) for row in rows if row.ended_at is None),
        known=tuple(read_rules(row.rules) for row in rows),
    )


class Transaction:
    """Rows go to `buffer`; `pos` is the position of the event in hand."""

    def __init__(self, connection: Connection, memory: Memory, *, next_key: int, now: int) -> None:
        self.connection = connection
        self.memory = memory
        self.project_id = memory.project_id
        self.buffer = Buffer(memory.project_id)
        self.now = now
        self.pos = memory.commit_seq
        self._next_key = next_key
        self._looked_up: set[tuple[str, str]] = set()
        self._to_pack: list[Unpacked] = []
        # (kind, id) -> phase -> what is stored of it. One for all posts of the transaction: rows of the posts
        # before are still in the buffer, where no query sees them.
        self.seen: defaultdict[tuple[str, str], dict[str, Any]] = defaultdict(dict)

    def new_key(self) -> int:
        self._next_key += 1
        return self._next_key - 1

    def intern(self, piece: Piece) -> Interned:
        """The row of a content."""
        contents = self.memory.contents
        found = contents.known.get(piece.label)
        if found is not None:
            return found
        return contents.intern(piece, connection=self.connection, buffer=self.buffer, new_key=self.new_key)

    def insert_run(self, row: dict[str, Any], ids: bytes, logprobs: Logprobs | None) -> None:
        """A new row of token_run; `ids` are its own, little-endian int32."""
        self.buffer.insert(t.token_run, row)
        self._to_pack.append(Unpacked(row, ids, logprobs))

    def update_run(self, key: int, row: dict[str, Any], ids: bytes, logprobs: Logprobs | None) -> None:
        """The same for a row that is there."""
        self.memory.run_codec.pack([Unpacked(row, ids, logprobs)], self._new_rows())
        self.buffer.update(t.token_run, key, row)

    def update_logprobs(self, key: int, logprobs: Logprobs) -> None:
        """The logprobs of a run that came without them."""
        row: dict[str, Any] = {}
        self.memory.run_codec.pack_logprobs([(row, logprobs)], self._new_rows())
        self.buffer.update(t.token_run, key, row)

    def _new_rows(self) -> NewRows:
        return NewRows(self.connection, self.buffer, self.new_key, self.now)

    def field_set(self, shape: str) -> int:
        """Key of the row that lists these field names."""
        memory = self.memory
        key = memory.field_sets.get(shape)
        if key is None:
            if not memory.field_sets:
                rows = self.connection.execute(
                    select(t.field_set.c.fields, t.field_set.c.key).where(
                        t.field_set.c.project_id == self.project_id
                    )
                )
                memory.field_sets.update({row.fields: row.key for row in rows})
            key = memory.field_sets.get(shape)
        if key is None:
            key = memory.field_sets[shape] = self.new_key()
            self.buffer.insert(t.field_set, {"key": key, "fields": shape})
        return key

    def prefetch_entities(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Look up rows by (kind, id), in a few statements."""
        by_kind: dict[str, set[str]] = {}
        for name in wanted:
            if name not in self.memory.entities and name not in self._looked_up:
                self._looked_up.add(name)
                by_kind.setdefault(name[0], set()).add(name[1])
        for kind, ids in by_kind.items():
            table = TABLES[kind]
            columns = ("id", "key", "is_placeholder", *(("first_pos",) if kind == "episode" else ()))
            rows = look_up(
                self.connection, table, columns, by="id", values=sorted(ids), project_id=self.project_id
            )
            found = []
            for id_, key, is_placeholder, *first_pos in rows:
                self.memory.entities[kind, id_] = Entity(key, bool(is_placeholder), *first_pos)
                found.append(key)
            if self.memory.has_doomed:
                rescue(self.connection, table, found, project_id=self.project_id)

    def ids_of_keys(self, kind: str, ids: Sequence[str]) -> dict[int, str]:
        """The ids, of those given, that have a row, by its key."""
        if kind not in PLACEHOLDERS:
            rows = look_up(
                *(self.connection, TABLES[kind], ("key", "id")),
                by="id",
                values=ids,
                project_id=self.project_id,
            )
            return dict(rows)
        self.prefetch_entities((kind, id_) for id_ in ids)
        found = ((self.memory.entities.get((kind, id_)), id_) for id_ in ids)
        return {entity.key: id_ for entity, id_ in found if entity is not None}

    def find(self, kind: str, id_: str) -> Entity | None:
        """The row of an id, if there is one."""
        name = kind, id_
        found = self.memory.entities.get(name)
        if found is None and name not in self._looked_up:
            self.prefetch_entities([name])
            found = self.memory.entities.get(name)
        return found

    def entity(self, kind: str, id_: str) -> Entity:
        """The row of an id; a placeholder is made where there is none."""
        found = self.find(kind, id_)
        if found is None:
            found = self.memory.entities[kind, id_] = Entity(self.new_key(), True)
            self.buffer.insert(TABLES[kind], {"key": found.key, "id": id_, "is_placeholder": True})
        return found

    def value(self, table: Table, key: int, column: str) -> Any:
        """One column of a row, written or not."""
        row = self.buffer.pending(table, key)
        if row is not None and column in row:
            return row[column]
        if self.buffer.fresh(table, key) is not None:
            return None
        return self.connection.execute(
            select(table.c[column]).where(table.c.project_id == self.project_id, table.c.key == key)
        ).scalar()

    def flush(self) -> None:
        """Write the rows gathered so far, so that they can be read."""
        self.memory.contents.compress(self._new_rows())
        self.memory.run_codec.pack(self._to_pack, self._new_rows())
        self._to_pack.clear()
        self.buffer.flush(self.connection)
        self.memory.run_ids.fresh.clear()

    def finish(self) -> None:
        """Write the rows and raise the counters. The caller commits."""
        self.flush()
        self.connection.execute(
            t.project.update()
            .where(t.project.c.project_id == self.project_id)
            .values(commit_seq=self.pos, next_key=self._next_key)
        )
