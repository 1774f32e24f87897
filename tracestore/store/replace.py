"""Revisions -> the newest of each event, and a clean place for them among the rows.

A later revision may change anything: fewer messages, other answers, another parent, other members. So nothing
is patched. What came from the events of its episode is forgotten, and the newest of them are written again
(`store.ingest`) the way they were the first time, each at its own position:

    log       c0 (pos 1), c1 (pos 2), c1 of revision 2 comes as pos 3
    again     c0 (pos 1), c1 (pos 3, first_pos 2)

This costs as much as the episode is long, once for all that a post replaces of it. What stays behind:

- The rows of entities, as placeholders until they are written again: other episodes and exports know them by
  their keys. One that only an older revision named stays a placeholder.
- Contents that only an older revision had. They are shared by the whole project, so that finding out that
  nothing refers to one any more would cost more than its bytes; after a redaction a sweep does
  (`note_contents`).
- Token runs that nothing refers to any more, without their ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from sqlalchemy import ColumnElement, Select, Table, select

from tracestore.graph.merge import merge, merge_phases
from tracestore.graph.model import CompletionKey
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.digest import sha256_of
from tracestore.store.doomed import note, references_of
from tracestore.store.fields import shape_text
from tracestore.store.load import load_phases
from tracestore.store.prepare import Prepared
from tracestore.store.state import EpisodeState
from tracestore.store.transaction import Transaction
from tracestore.wire.completion import Completion
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent, episode_id_of, phase_of

PhaseName = tuple[str, str, str]
"""(kind, id, phase)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is written again together: the events of one episode, or of one group."""

    kind: Literal["episode", "group"]
    id: str

    @classmethod
    def of(cls, event: AnyEvent) -> Self:
        episode_id = episode_id_of(event)
        return cls("group", event.id) if episode_id is None else cls("episode", episode_id)


class Logged(NamedTuple):
    """An event and its row of the log."""

    event: AnyEvent
    text_hash: bytes
    shape: str
    pos: int
    received_at: int
    first_pos: int | None = None
    num_replaced: int | None = None
    entity_key: int | None = None
    """None: its entity has no row yet."""

    @classmethod
    def of(cls, prepared: Prepared, *, pos: int, now: int, replaces: Logged | None = None) -> Self:
        """An event that comes at a position, in the place of an older revision or of nothing."""
        one = cls(prepared.event, prepared.text_hash, prepared.shape, pos, now)
        if replaces is None:
            return one
        return one._replace(
            first_pos=replaces.first_pos or replaces.pos,
            num_replaced=(replaces.num_replaced or 0) + 1,
            entity_key=replaces.entity_key,
        )

    def of_event(self, event: AnyEvent) -> Self:
        """What was made of the event, in its place."""
        text = encode(event, arrays="base64")
        return self._replace(event=event, shape=shape_text(event), text_hash=sha256_of(text)[:16])

    @property
    def name(self) -> PhaseName:
        return (self.event.kind, self.event.id, phase_of(self.event))


class Log:
    """The newest of every event of a scope."""

    def __init__(self, phases: Iterable[Logged]) -> None:
        self._phases: dict[PhaseName, Logged] = {}
        self._units: dict[tuple[str, str], dict[PhaseName, AnyEvent]] = defaultdict(dict)
        for one in phases:
            self.put(one)

    def get(self, kind: str, id_: str, phase: str) -> Logged | None:
        return self._phases.get((kind, id_, phase))

    def put(self, one: Logged) -> None:
        """Take an event in, instead of the one of its name."""
        before = self._phases.get(one.name)
        if before is not None:
            del self._units[_unit(before.event)][one.name]
        self._phases[one.name] = one
        self._units[_unit(one.event)][one.name] = one.event

    def check(self, event: AnyEvent) -> None:
        """Refuse an event that, instead of the one of its name, would not agree with the others.

        Raises:
            FieldConflict: it names a field otherwise than another phase or completion does.
        """
        name = (event.kind, event.id, phase_of(event))
        merge({**self._units[_unit(event)], name: event}.values())

    def merged(self, kind: str, id_: str) -> AnyEvent:
        """An entity with all its phases."""
        phases = (self.get(kind, id_, phase) for phase in ("whole", "start", "end"))
        return merge_phases([one.event for one in phases if one is not None])

    def all(self) -> list[Logged]:
        return list(self._phases.values())

    def entities(self) -> list[list[Logged]]:
        """The phases of every entity in the order in which they came, and so the entities."""
        found: dict[tuple[str, str], list[Logged]] = defaultdict(list)
        for one in sorted(self._phases.values(), key=lambda one: one.pos):
            found[one.event.kind, one.event.id].append(one)
        return list(found.values())


def _unit(event: AnyEvent) -> tuple[str, str]:
    """What must agree with an event: the phases of its entity; a call and all its completions."""
    if isinstance(event, Completion):
        return ("call", event.call_id)
    return (event.kind, event.id)


def read_log(tx: Transaction, scope: Scope) -> Log:
    """The events of a scope as they are stored up to here."""
    raw = t.raw_event.c
    found = tx.find(scope.kind, scope.id)
    if found is None:
        return Log(())
    where = (raw.episode_key if scope.kind == "episode" else raw.entity_key) == found.key
    tx.flush()
    return Log(
        Logged(
            event,
            row.text_hash,
            row.fields,
            row.pos,
            row.received_at,
            row.first_pos,
            row.num_replaced,
            row.entity_key,
        )
        for row, event in load_phases(tx.connection, tx.project_id, where)
    )


# --- Forgetting --------------------------------------------------------------------------------------


def forget(tx: Transaction, scope: Scope, log: Log, *, note_contents: bool = False) -> EpisodeState | None:
    """Take back every row that came from the events of a scope; returns the empty state of an episode.

    Args:
        note_contents: leave what they refer to for a sweep (`store.doomed`), which takes what stays behind.
    """
    # Rows are taken back where they lie, so first they must lie there.
    key = tx.entity(scope.kind, scope.id).key
    tx.flush()
    for phases in log.entities():
        entity = tx.memory.entities.get((phases[0].event.kind, phases[0].event.id))
        if entity is not None:
            entity.is_placeholder = True
    rows = _Rows(tx, note_contents=note_contents)
    if scope.kind == "group":
        rows.delete(t.raw_event, t.raw_event.c.entity_key == key)
        rows.blank(t.task_group, t.task_group.c.key == key)
        return None
    state = EpisodeState(key)
    state.run_keys = rows.run_keys(key)
    rows.empty_runs(state.run_keys.values())
    tx.memory.run_ids.forget(state.run_keys.values())
    rows.forget_episode(key)
    return state


class _Rows:
    """Statements over rows of one project that are written."""

    def __init__(self, tx: Transaction, *, note_contents: bool) -> None:
        self._tx = tx
        self._run = tx.connection.execute
        self._here = tx.project_id
        self._note_contents = note_contents

    def _note(self, table: Table, *where: ColumnElement[bool]) -> None:
        for column, target in references_of(table) if self._note_contents else ():
            if target is t.content:
                this = (table.c.project_id == self._here, *where)
                note(self._tx.connection, column, target, *this, pos=self._tx.pos + 1)

    def delete(self, table: Table, *where: ColumnElement[bool]) -> None:
        self._note(table, *where)
        self._run(table.delete().where(table.c.project_id == self._here, *where))

    def blank(self, table: Table, *where: ColumnElement[bool], keep: frozenset[str] = frozenset()) -> None:
        """Make placeholders of rows."""
        self._note(table, *where)
        keep |= {"project_id", "key", "id", "is_placeholder"}
        nothing = {column.name: None for column in table.columns if column.name not in keep}
        this = table.update().where(table.c.project_id == self._here, *where)
        self._run(this.values(**nothing, is_placeholder=True))

    def keys(self, table: Table, *where: ColumnElement[bool]) -> Select[tuple[int]]:
        return select(table.c.key).where(table.c.project_id == self._here, *where)

    def forget_episode(self, key: int) -> None:
        """What refers goes before what is referred to: SQLite looks for references to every row that goes."""
        calls = self.keys(t.call, t.call.c.episode_key == key)
        completions = self.keys(t.completion, t.completion.c.call_key.in_(calls))
        for table, column, kind in _LISTS:
            self.delete(table, table.c[column].in_(self.keys(kind, kind.c.episode_key == key)))
        for table in (t.version_run, t.completion_event):
            self.delete(table, table.c.completion_key.in_(completions))
        for table in _BY_EPISODE:
            self.delete(table, table.c.episode_key == key)
        self.delete(t.completion, t.completion.c.call_key.in_(calls))
        for table in (t.call, t.agent, t.snapshot, t.candidate_set):
            self.blank(table, table.c.episode_key == key)
        # Where it stands among the episodes does not change.
        self.blank(t.episode, t.episode.c.key == key, keep=frozenset({"first_pos"}))
        self.delete(t.node, t.node.c.episode_key == key)

    def run_keys(self, key: int) -> dict[str | CompletionKey, int]:
        """The rows of the token runs of an episode's calls and completions."""
        call, answer = t.call.c, t.completion.c
        here = (call.project_id == self._here, call.episode_key == key)
        prompts = select(call.id, call.prompt_run_key).where(*here, call.prompt_run_key.is_not(None))
        answers = (
            select(call.id, answer.completion, answer.run_key)
            .select_from(
                t.call.join(
                    t.completion, (answer.project_id == call.project_id) & (answer.call_key == call.key)
                )
            )
            .where(*here, answer.run_key.is_not(None))
        )
        found: dict[str | CompletionKey, int] = {row.id: row.prompt_run_key for row in self._run(prompts)}
        found.update({(row.id, row.completion): row.run_key for row in self._run(answers)})
        return found

    def empty_runs(self, keys: Iterable[int]) -> None:
        """Take their ids from token runs. No index tells what refers to one, so the rows themselves stay."""
        run = t.token_run.c
        for chunk in chunks(sorted(keys)):
            this = t.token_run.update().where(run.project_id == self._here, run.key.in_(chunk))
            self._run(this.values(**_NO_IDS))


_NO_IDS: dict[str, Any] = {
    "base_key": None,
    "base_length": 0,
    "num_tokens": None,
    "ids": b"",
    "packed_ids": b"",
    "num_ids": 0,
    "dictionary_key": None,
    "logprobs_dictionary_key": None,
    "logprobs": None,
    "logprobs_dtype": None,
    "logprobs_nulls": None,
}

_LISTS = (
    (t.context_edit_member, "context_edit_key", t.context_edit),
    (t.candidate_choice, "candidate_selection_key", t.candidate_selection),
    (t.candidate_member, "candidate_set_key", t.candidate_set),
    (t.call_attempt, "call_key", t.call),
    (t.pending_message, "call_key", t.call),
)
"""Tables of lists, the column that names the row a list is of, and the table of that."""

_BY_EPISODE = (
    *(t.raw_event, t.edge, t.context_edit, t.candidate_selection, t.reward, t.gap, t.blob_ref, t.consumption),
    t.tool_call,
)
"""Tables of what nothing else refers to, once the lists are gone."""
