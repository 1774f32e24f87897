"""Rows -> events. The inverse of store.ingest; verify() checks that the two agree.

An entity comes back whole: its phases merged, every field that was named and no other, opaque JSON byte for
byte. At an older snapshot it comes back as it was then: only the phases that had come. What a phase said
before a higher revision replaced it is not kept, so a snapshot that would need it is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, Select, Text, bindparam, func, select

from tracestore.errors import TracestoreError
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.codec import decompress_all
from tracestore.store.dictionary import Dictionaries
from tracestore.store.fields import TABLES, Shape, columns_of, item_shape, nested_model, union
from tracestore.store.lookup import driver_rows, look_up
from tracestore.store.runs import RunRow, read_chains, spell
from tracestore.store.skeleton import fill
from tracestore.store.types import unescape
from tracestore.wire.arrays import TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.call import Attempt
from tracestore.wire.candidate_set import Member, MemberScore
from tracestore.wire.completion import CompletionBody, CompletionFields, VersionRun
from tracestore.wire.events import MODELS, AnyEvent


class SnapshotGone(TracestoreError):
    """What stood here at this snapshot has been replaced or deleted since"""

    status = 410


class Content(NamedTuple):
    data: bytes
    role: str


def read_contents(connection: Connection, project_id: int, keys: Iterable[int]) -> dict[int, Content]:
    """The bytes of contents, by key."""
    columns = ("key", "role", "codec", "data", "dictionary_key")
    wanted = sorted(set(keys))
    found: dict[int, Content] = {}
    packed: dict[int | None, list[tuple[int, str, bytes]]] = defaultdict(list)
    for key, role, codec, data, dictionary_key in look_up(
        connection, t.content, columns, by="key", values=wanted, project_id=project_id
    ):
        if codec == "raw":
            found[key] = Content(data, unescape(role))
        else:
            packed[dictionary_key].append((key, role, data))
    dictionaries = Dictionaries(connection, project_id)
    for dictionary_key, rows in packed.items():
        plain = decompress_all((data for *_, data in rows), dictionary=dictionaries.get(dictionary_key))
        for (key, role, _), data in zip(rows, plain, strict=True):
            found[key] = Content(data.tobytes(), unescape(role))
    return found


def load_events(
    connection: Connection,
    project_id: int,
    episode_key: int,
    *,
    kinds: Sequence[str] | None = None,
    snapshot: int | None = None,
) -> list[AnyEvent]:
    """The events of an episode and its group, merged, in the order in which they first came.

    Raises:
        SnapshotGone: one of them had come at the snapshot and was replaced after it.
    """
    raw = t.raw_event.c
    query = _raw_events(project_id).where(raw.episode_key == episode_key)
    if kinds is not None:
        query = query.where(raw.kind.in_(kinds))
    loader = _Loader(connection, project_id)
    loader.add(_up_to(snapshot, connection, project_id, query))
    if kinds is None:
        _add_group(loader, connection, project_id, episode_key, snapshot=snapshot)
    return loader.events()


def load_head(connection: Connection, project_id: int, episode_key: int, *, most: int) -> list[AnyEvent]:
    """What `load_events` gives of the first `most` events of an episode, and of its own wherever they lie."""
    raw = t.raw_event.c
    of_episode = (raw.project_id == project_id, raw.episode_key == episode_key)
    last = connection.execute(
        select(raw.pos).where(*of_episode).order_by(raw.pos).offset(most - 1).limit(1)
    ).scalar()
    if last is None:
        return load_events(connection, project_id, episode_key)
    loader = _Loader(connection, project_id)
    loader.add(
        connection.execute(_raw_events(project_id).where(raw.episode_key == episode_key, raw.pos <= last))
    )
    own = _raw_events(project_id).where(raw.entity_key == episode_key, raw.pos > last)
    loader.add(connection.execute(own))
    _add_group(loader, connection, project_id, episode_key)
    return loader.events()


def load_call(connection: Connection, project_id: int, call_key: int) -> list[AnyEvent]:
    """The events of one call: its own, its completions', its tool calls'."""
    raw, answer, said, tool = t.raw_event.c, t.completion.c, t.completion_event.c, t.tool_call.c
    answers = (
        select(said.key)
        .join(t.completion, (answer.project_id == said.project_id) & (answer.key == said.completion_key))
        .where(answer.project_id == project_id, answer.call_key == call_key)
    )
    tools = select(tool.key).where(
        tool.project_id == project_id, tool.call_key == call_key, tool.id.is_not(None)
    )
    keys = [call_key, *connection.execute(answers).scalars(), *connection.execute(tools).scalars()]
    loader = _Loader(connection, project_id)
    rows = [
        row
        for chunk in chunks(keys)
        for row in connection.execute(_raw_events(project_id).where(raw.entity_key.in_(chunk)))
    ]
    loader.add(sorted(rows, key=lambda row: row.first_pos or row.pos))
    return loader.events()


def _add_group(
    loader: _Loader, connection: Connection, project_id: int, episode_key: int, *, snapshot: int | None = None
) -> None:
    """Add the group that the episode's own events name."""
    group_key = loader.group_key(episode_key)
    if group_key is not None:
        group = _raw_events(project_id).where(t.raw_event.c.entity_key == group_key)
        loader.add(_up_to(snapshot, connection, project_id, group))


def load_entity(
    connection: Connection, project_id: int, kind: str, id_: str, *, phase: str | None = None
) -> AnyEvent | None:
    """One entity, its phases merged, or one phase of it; None where nothing of it has come."""
    raw, entity = t.raw_event.c, TABLES[kind].c
    key = select(entity.key).where(entity.project_id == project_id, entity.id == id_).scalar_subquery()
    query = _raw_events(project_id).where(raw.entity_key == key)
    loader = _Loader(connection, project_id)
    loader.add(connection.execute(query if phase is None else query.where(raw.phase == phase)))
    return next(iter(loader.events()), None)


def load_phases(
    connection: Connection, project_id: int, *where: ColumnElement[bool]
) -> list[tuple[Row[Any], AnyEvent]]:
    """Events one by one as they came, nothing merged, each with its row of the log and its `fields`.

    Args:
        where: which rows of the log.
    """
    raw = t.raw_event.c
    query = _raw_events(project_id).add_columns(raw.text_hash, raw.received_at, raw.num_replaced)
    rows = connection.execute(query.where(*where)).all()
    loader = _Loader(connection, project_id)
    loader.add_apart(rows)
    return list(zip(rows, loader.events(), strict=True))


def load_merged(
    connection: Connection, project_id: int, rows: Iterable[Any]
) -> Iterator[tuple[int, int | None, AnyEvent]]:
    """(key of the entity, key of its episode, the event with its phases merged) of rows of the log.

    Args:
        rows: with `kind`, `phase`, `revision`, `entity_key`, `episode_key`, and the `fields` they named.
    """
    loader = _Loader(connection, project_id)
    loader.add(rows)
    for entity, event in zip(loader.entities(), loader.events(), strict=True):
        yield entity.key, entity.episode_key, event


def load_answer(
    connection: Connection, project_id: int, call_key: int, index: int
) -> CompletionFields | None:
    """One completion with all that its call and its own events say of it."""
    loader = _Loader(connection, project_id)
    return loader.answer(call_key, index)


def _raw_events(project_id: int) -> Select[Any]:
    raw, names = t.raw_event.c, t.field_set.c
    return (
        select(
            *(raw.kind, raw.phase, raw.revision, raw.pos, raw.first_pos),
            *(raw.entity_key, raw.episode_key, names.fields),
        )
        .select_from(
            t.raw_event.join(
                t.field_set, (names.project_id == raw.project_id) & (names.key == raw.field_set_key)
            )
        )
        .where(raw.project_id == project_id)
        .order_by(came_at())
    )


def came_at() -> ColumnElement[int]:
    """The position at which a phase first came, in whatever revision."""
    return func.coalesce(t.raw_event.c.first_pos, t.raw_event.c.pos)


def _up_to(
    snapshot: int | None, connection: Connection, project_id: int, query: Select[Any]
) -> list[Row[Any]]:
    """The rows of the log that had come at a snapshot."""
    if snapshot is None:
        return list(connection.execute(query))
    rows = connection.execute(query.where(came_at() <= snapshot)).all()
    for row in rows:
        if row.pos > snapshot:
            raise snapshot_gone(snapshot, connection, project_id, row)
    return list(rows)


def snapshot_gone(snapshot: int, connection: Connection, project_id: int, raw_event: Any) -> SnapshotGone:
    """The error for an event that was replaced after a snapshot, by its row of the log."""
    kind, entity = raw_event.kind, TABLES[raw_event.kind].c
    id_ = connection.execute(
        select(entity.id).where(entity.project_id == project_id, entity.key == raw_event.entity_key)
    ).scalar()
    hint = "its source was read again when it had grown; read the latest snapshot"
    return SnapshotGone(snapshot=snapshot, kind=kind, id=id_, hint=hint)


@dataclass(slots=True)
class _Entity:
    """What came of one entity."""

    kind: str
    key: int
    episode_key: int | None
    phases: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    revisions: list[int] = field(default_factory=list)
    """Those that were stated."""

    def add(self, raw_event: Row[Any]) -> None:
        self.phases.append(raw_event.phase)
        self.shapes.append(raw_event.fields)
        if raw_event.revision is not None:
            self.revisions.append(raw_event.revision)


class _Loader:
    """Reads every table once for all entities, then puts the events together."""

    def __init__(self, connection: Connection, project_id: int) -> None:
        self._connection = connection
        self._project_id = project_id
        self._entities: dict[tuple[int, str], _Entity] = {}
        self._rows: dict[str, dict[int, Row[Any]]] = {}
        self._ids: dict[str, dict[int, str]] = defaultdict(dict)
        self._contents: dict[int, Content] = {}

    def add(self, raw_events: Iterable[Row[Any]]) -> None:
        """Events to come back merged."""
        for row in raw_events:
            self._entity(row, (row.entity_key, "")).add(row)

    def add_apart(self, raw_events: Iterable[Row[Any]]) -> None:
        """Events to come back each on its own."""
        for row in raw_events:
            self._entity(row, (row.entity_key, row.phase)).add(row)

    def _entity(self, row: Row[Any], name: tuple[int, str]) -> _Entity:
        if name not in self._entities:
            self._entities[name] = _Entity(row.kind, row.entity_key, row.episode_key)
        return self._entities[name]

    def group_key(self, episode_key: int) -> int | None:
        """The group that the episode's own events name, as far as they are added."""
        own = (one for one in self._entities.values() if one.kind == "episode" and one.key == episode_key)
        if not any(union(entity.shapes).get("group_id") for entity in own):
            return None
        episode = t.episode.c
        return self._connection.execute(
            select(episode.group_key).where(
                episode.project_id == self._project_id, episode.key == episode_key
            )
        ).scalar()

    def entities(self) -> Iterable[_Entity]:
        """What came of each entity, in the order in which it first came."""
        return self._entities.values()

    # --- Reading ----------------------------------------------------------------------------------

    def _read(self, table: Any, column: Any, keys: Iterable[int]) -> list[Row[Any]]:
        """Whole rows of a table whose column is one of the keys."""
        rows: list[Row[Any]] = []
        for chunk in chunks(sorted(set(keys))):
            query = select(table).where(table.c.project_id == self._project_id, column.in_(chunk))
            rows += self._connection.execute(query).all()
        return rows

    def _parts(self, table: Any, owner: Any, keys: Iterable[int]) -> dict[int, list[Row[Any]]]:
        """Rows by the row that owns them, in their own order."""
        found: dict[int, list[Row[Any]]] = defaultdict(list)
        order = [column.name for column in table.primary_key.columns]
        rows = self._read(table, owner, keys)
        for row in sorted(rows, key=lambda row: [row._mapping[name] for name in order]):
            found[row._mapping[owner]].append(row)
        return found

    def events(self) -> list[AnyEvent]:
        by_kind: dict[str, list[_Entity]] = defaultdict(list)
        for entity in self._entities.values():
            by_kind[entity.kind].append(entity)
        for kind, entities in by_kind.items():
            table = TABLES[kind]
            rows = self._read(table, table.c.key, (entity.key for entity in entities))
            self._rows[kind] = {row.key: row for row in rows}
        self._read_answers()
        self._read_lists()
        self._read_contexts()
        self._read_references()
        return [self._event(entity) for entity in self._entities.values()]

    def _keys(self, kind: str) -> list[int]:
        return list(self._rows.get(kind, ()))

    def _read_answers(self) -> None:
        c = t.completion.c
        rows = self._read(t.completion, c.call_key, self._keys("call"))
        own = (row.completion_key for row in self._rows.get("completion", {}).values())
        rows += self._read(t.completion, c.key, own)
        self._answers = {row.key: row for row in rows}
        self._answers_of: dict[int, dict[int, Row[Any]]] = defaultdict(dict)
        for row in rows:
            self._answers_of[row.call_key][row.completion] = row
        self._versions = self._parts(t.version_run, t.version_run.c.completion_key, self._answers)
        runs = [row.run_key for row in rows if row.run_key is not None]
        runs += [
            row.prompt_run_key
            for row in self._rows.get("call", {}).values()
            if row.prompt_run_key is not None
        ]
        self._runs: dict[int, RunRow] = read_chains(self._connection, self._project_id, set(runs))

    def _read_lists(self) -> None:
        attempt, member = t.call_attempt, t.candidate_member
        choice, edited = t.candidate_choice, t.context_edit_member
        self._attempts = self._parts(attempt, attempt.c.call_key, self._keys("call"))
        self._members = self._parts(member, member.c.candidate_set_key, self._keys("candidate_set"))
        selections = self._keys("candidate_selection")
        self._choices = self._parts(choice, choice.c.candidate_selection_key, selections)
        self._edited = self._parts(edited, edited.c.context_edit_key, self._keys("context_edit"))

    def _read_contexts(self) -> None:
        """Content keys of the messages that each request spells out."""
        calls = self._rows.get("call", {})
        pending = self._parts(t.pending_message, t.pending_message.c.call_key, calls)
        self._own: dict[int, list[int]] = {
            key: [row.content_key for row in rows] for key, rows in pending.items()
        }
        placed = {
            key: row
            for key, row in calls.items()
            if row.own_messages and row.prompt_node_key is not None and key not in self._own
        }
        nodes = read_paths(
            self._connection, self._project_id, [row.prompt_node_key for row in placed.values()]
        )
        for key, row in placed.items():
            self._own[key] = path_contents(nodes, row.prompt_node_key, row.own_messages)

    def _read_references(self) -> None:
        """Ids of the rows that rows refer to, and the contents they need."""
        for kind, wanted in self._referred_rows().items():
            table = TABLES[kind]
            for chunk in chunks(sorted(wanted)):
                query = select(table.c.key, table.c.id).where(
                    table.c.project_id == self._project_id, table.c.key.in_(chunk)
                )
                self._ids[kind].update({row.key: row.id for row in self._connection.execute(query)})
        contents = set().union(*self._own.values())
        for kind, rows in self._rows.items():
            names = [column.column for column in columns_of(kind) if column.how == "content"]
            contents |= _values(rows.values(), *names)
        contents |= _values(self._rows.get("call", {}).values(), "skeleton_key", "tools_key")
        contents |= _values(self._answers.values(), "message_key", "top_logprobs_key")
        self._contents = read_contents(self._connection, self._project_id, contents)

    def _referred_rows(self) -> dict[str, set[int]]:
        keys: dict[str, set[int]] = defaultdict(set)
        for kind, rows in self._rows.items():
            for column in columns_of(kind):
                if column.how == "ref" and column.kind is not None:
                    keys[column.kind] |= _values(rows.values(), column.column)
        keys["episode"] |= {one.episode_key for one in self._entities.values() if one.episode_key is not None}
        keys["call"] |= _values(self._answers.values(), "call_key")
        for row in (row for rows in self._edited.values() for row in rows):
            keys["call"].add(row.call_key)
        members = [row for rows in self._members.values() for row in rows]
        keys["call"] |= _values(members, "call_key")
        keys["agent"] |= _values(members, "agent_key")
        return keys

    def _raw(self, key: int) -> Raw:
        return Raw(self._contents[key].data)

    # --- Putting together -------------------------------------------------------------------------

    def _event(self, entity: _Entity) -> AnyEvent:
        shape = union(entity.shapes)
        row = self._rows[entity.kind][entity.key]
        values = self._plain_fields(entity.kind, row, shape)
        special = _SPECIAL.get(entity.kind)
        if special is not None:
            values |= special(self, entity, row, shape)
        if shape.get("revision"):
            values["revision"] = max(entity.revisions)
        values |= {name: None for name, named in shape.items() if named == 0}
        fields_set = set(shape) | {"kind", "id"}
        if "phase" in MODELS[entity.kind].model_fields:
            whole = "whole" in entity.phases or len(entity.phases) > 1
            values["phase"] = "whole" if whole else entity.phases[0]
            if len(entity.phases) > 1:
                fields_set.discard("phase")
        values.pop("v", None)
        return MODELS[entity.kind].model_construct(_fields_set=fields_set, id=row.id, **values)

    def _plain_fields(self, kind: str, row: Row[Any], shape: Shape) -> dict[str, Any]:
        values: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {}
        for column in columns_of(kind):
            name, *rest = column.path
            named = shape.get(name, 0)
            if named == 0:
                continue
            value = row._mapping[column.column]
            if value is not None and column.how == "content":
                value = self._raw(value)
            elif value is not None and column.how == "ref" and column.kind is not None:
                value = self._ids[column.kind][value]
            if not rest:
                values[name] = value
            else:
                # A nested object may name no field at all, which is not null.
                inner = nested.setdefault(name, {})
                if rest[0] in named:
                    inner[rest[0]] = value if named[rest[0]] else None
        for name, inner in nested.items():
            model = nested_model(kind, name)
            values[name] = model.model_construct(_fields_set=set(shape[name]), **inner)
        return values

    def _call(self, entity: _Entity, row: Row[Any], shape: Shape) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if shape.get("request"):
            own = [self._contents[key].data for key in self._own.get(entity.key, ())]
            tools = None if row.tools_key is None else self._contents[row.tools_key].data
            values["request"] = Raw(fill(self._contents[row.skeleton_key].data, own, tools))
        if shape.get("prompt_token_ids"):
            values["prompt_token_ids"] = TokenIds(spell(self._runs, row.prompt_run_key))
        if shape.get("prompt_token_ids_delta"):
            values["prompt_token_ids_delta"] = TokenIds(self._runs[row.prompt_run_key].ids)
        if shape.get("attempts"):
            values["attempts"] = tuple(
                _model(Attempt, part, item_shape(shape["attempts"], part.position))
                for part in self._attempts.get(entity.key, ())
            )
        if shape.get("completions"):
            answers = self._answers_of.get(entity.key, {})
            values["completions"] = tuple(
                self._body(CompletionBody, answers[index], item_shape(shape["completions"], index))
                for index in range(row.num_completions)
            )
        return values

    def _completion_event(self, entity: _Entity, row: Row[Any], shape: Shape) -> dict[str, Any]:
        answer = self._answers[row.completion_key]
        assert entity.episode_key is not None
        return {
            **self._answer_values(answer, shape),
            "episode_id": self._ids["episode"][entity.episode_key],
            "call_id": self._ids["call"][answer.call_key],
            "index": answer.completion,
        }

    def _body(self, model: type[CompletionFields], row: Row[Any], shape: Shape) -> CompletionFields:
        return model.model_construct(_fields_set=set(shape), **self._answer_values(row, shape))

    def _answer_values(self, row: Row[Any], shape: Shape) -> dict[str, Any]:
        named = {name for name in CompletionFields.model_fields if shape.get(name)}
        values: dict[str, Any] = {
            name: row._mapping[name] for name in named & {"finish_reason", "partial", "stop_token_stripped"}
        }
        if "message" in named:
            values["message"] = self._raw(row.message_key)
        if "top_logprobs" in named:
            values["top_logprobs"] = self._raw(row.top_logprobs_key)
        if "token_ids" in named:
            values["token_ids"] = TokenIds(self._runs[row.run_key].ids)
        if "logprobs" in named:
            values["logprobs"] = self._runs[row.run_key].logprobs
        if "versions" in named:
            values["versions"] = tuple(
                VersionRun.model_construct(start=run.start, name=run.name, version=run.version)
                for run in self._versions.get(row.key, ())
            )
        return values

    def answer(self, call_key: int, index: int) -> CompletionFields | None:
        rows = self._read(t.completion, t.completion.c.call_key, [call_key])
        row = next((row for row in rows if row.completion == index), None)
        if row is None:
            return None
        self._versions = self._parts(t.version_run, t.version_run.c.completion_key, [row.key])
        runs = [] if row.run_key is None else [row.run_key]
        self._runs = read_chains(self._connection, self._project_id, runs)
        keys = [key for key in (row.message_key, row.top_logprobs_key) if key is not None]
        self._contents = read_contents(self._connection, self._project_id, keys)
        run = self._runs.get(row.run_key)
        known = {
            "message": row.message_key,
            "top_logprobs": row.top_logprobs_key,
            "token_ids": run,
            "logprobs": None if run is None else run.logprobs,
            "versions": self._versions.get(row.key),
            "finish_reason": row.finish_reason,
            "partial": row.partial,
            "stop_token_stripped": row.stop_token_stripped,
        }
        shape = {name: 1 for name, value in known.items() if value is not None}
        return self._body(CompletionFields, row, shape)

    def _members_of(self, entity: _Entity, row: Row[Any], shape: Shape) -> dict[str, Any]:
        calls, agents = self._ids["call"], self._ids["agent"]
        return {
            "members": tuple(
                Member.model_construct(
                    _fields_set=set(item_shape(shape["members"], part.member)),
                    call_id=None if part.call_key is None else calls[part.call_key],
                    completion=part.completion or 0,
                    agent_id=None if part.agent_key is None else agents[part.agent_key],
                    score=part.score,
                )
                for part in self._members.get(entity.key, ())
            )
        }

    def _choices_of(self, entity: _Entity, row: Row[Any], shape: Shape) -> dict[str, Any]:
        parts: dict[str, list[Row[Any]]] = defaultdict(list)
        for choice in self._choices.get(entity.key, ()):
            parts[choice.part].append(choice)
        values: dict[str, Any] = {
            name: tuple(choice.member for choice in parts[name])
            for name in ("selected", "continued")
            if shape.get(name)
        }
        if shape.get("scores"):
            values["scores"] = tuple(
                MemberScore.model_construct(member=choice.member, score=choice.score)
                for choice in parts["score"]
            )
        return values

    def _edited_calls(self, entity: _Entity, row: Row[Any], shape: Shape) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for part, name in (("replaced", "replaced_call_ids"), ("kept", "kept_call_ids")):
            if shape.get(name):
                rows = (one for one in self._edited.get(entity.key, ()) if one.part == part)
                values[name] = tuple(self._ids["call"][one.call_key] for one in rows)
        return values

    def _shape_of_blob(self, entity: _Entity, row: Row[Any], shape: Shape) -> dict[str, Any]:
        if not shape.get("shape"):
            return {}
        return {"shape": tuple(int(size) for size in row.shape.split(",") if size)}


_SPECIAL = {
    "call": _Loader._call,
    "completion": _Loader._completion_event,
    "candidate_set": _Loader._members_of,
    "candidate_selection": _Loader._choices_of,
    "context_edit": _Loader._edited_calls,
    "blob": _Loader._shape_of_blob,
}


def _values(rows: Iterable[Row[Any]], *names: str) -> set[int]:
    """The values that stand in some columns."""
    return {value for row in rows for name in names if (value := row._mapping[name]) is not None}


def _model(model: Any, row: Row[Any], shape: Shape) -> Any:
    values = {name: row._mapping[name] if named else None for name, named in shape.items()}
    return model.model_construct(_fields_set=set(shape), **values)


# --- Contexts ----------------------------------------------------------------------------------------


class PathNode(NamedTuple):
    """A row of node, as paths need it."""

    parent_key: int | None
    content_key: int


def read_paths(connection: Connection, project_id: int, keys: Iterable[int]) -> dict[int, PathNode]:
    """Every node on the paths from the roots to these nodes, by key."""
    node = t.node
    found: dict[int, PathNode] = {}
    for chunk in chunks(sorted(set(keys))):
        columns = (node.c.key, node.c.parent_key, node.c.content_key)
        path = (
            select(*columns)
            .where(node.c.project_id == project_id, node.c.key.in_(chunk))
            .cte("path", recursive=True)
        )
        above = select(*columns).where(node.c.project_id == project_id, node.c.key == path.c.parent_key)
        rows = connection.execute(select(path.union(above)))
        found.update({key: PathNode(parent_key, content_key) for key, parent_key, content_key in rows})
    return found


def path_contents(nodes: Mapping[int, PathNode], key: int | None, count: int | None = None) -> list[int]:
    """Content keys of the last `count` messages (None: all) of the path to a node, in order."""
    contents: list[int] = []
    while key is not None and (count is None or len(contents) < count):
        node = nodes[key]
        contents.append(node.content_key)
        key = node.parent_key
    contents.reverse()
    return contents


def load_context(connection: Connection, project_id: int, call_id: str) -> list[Raw] | None:
    """The messages a call saw; None where the call, or what its context begins with, has not come."""
    row = connection.execute(_PLACE_OF_CALL, {"project_id": project_id, "call_id": call_id}).one_or_none()
    if row is None or row.context_messages is None:
        return None
    if row.prompt_node_key is None:
        return []
    return path_messages(connection, project_id, row.prompt_node_key)


def path_messages(connection: Connection, project_id: int, node_key: int) -> list[Raw]:
    """The messages on the path to a node, root first."""
    parameters = {"project_id": project_id, "node_key": node_key}
    # One statement, so that a context of a thousand messages costs what reading their bytes costs. In order
    # only here: a database would sort the bytes along.
    rows = sorted(driver_rows(connection, _CONTENTS_OF_PATH, parameters), key=itemgetter(0))
    packed: dict[int | None, list[bytes]] = defaultdict(list)
    for _, codec, data, dictionary_key in rows:
        if codec == "zstd":
            packed[dictionary_key].append(data)
    dictionaries = Dictionaries(connection, project_id)
    unpacked = {
        key: map(Raw, decompress_all(frames, dictionary=dictionaries.get(key)))
        for key, frames in packed.items()
    }
    return [Raw(data) if codec == "raw" else next(unpacked[key]) for _, codec, data, key in rows]


_PROJECT_ID = bindparam("project_id", type_=BigInteger)
_PLACE_OF_CALL = select(t.call.c.prompt_node_key, t.call.c.context_messages).where(
    t.call.c.project_id == _PROJECT_ID, t.call.c.id == bindparam("call_id", type_=Text)
)


def _contents_of_path() -> Select[Any]:
    """The bytes of the messages on the path to one node, each with its depth."""
    node, content = t.node.c, t.content.c
    columns = (node.parent_key, node.content_key, node.depth)
    path = (
        select(*columns)
        .where(node.project_id == _PROJECT_ID, node.key == bindparam("node_key", type_=BigInteger))
        .cte("path", recursive=True)
    )
    above = select(*columns).where(node.project_id == _PROJECT_ID, node.key == path.c.parent_key)
    path = path.union_all(above)
    bytes_of = (content.project_id == _PROJECT_ID) & (content.key == path.c.content_key)
    return select(path.c.depth, content.codec, content.data, content.dictionary_key).select_from(
        path.join(t.content, bytes_of)
    )


_CONTENTS_OF_PATH = _contents_of_path()
