"""Graph events -> rows. The inverse of load: `build(load(ingest(events))) == build(events)`.

One event is applied in two steps: first everything that may refuse it (a duplicate, a conflict, a cycle),
which changes nothing, then its rows, which nothing refuses. So a bad event costs its neighbours nothing, and
one transaction takes a whole batch.

An event that replaces an older revision of itself waits until the others are applied, and with it whatever
else comes of its episode. Then the newest events of the episode are written again (`store.replace`), once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from tracestore.graph.merge import FieldConflict, merge, merge_phases
from tracestore.graph.model import CompletionKey
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.fields import PLACEHOLDERS, TABLES, columns_of, plan_of, shape_text
from tracestore.store.load import load_answer, load_entity
from tracestore.store.lookup import look_up
from tracestore.store.parts import Parts
from tracestore.store.prepare import Prepared, content_pieces, prepare
from tracestore.store.replace import Log, Logged, PhaseName, Scope, forget, read_log
from tracestore.store.requests import RequestMemory
from tracestore.store.rules import PROMPT, Change, spread, without_ids
from tracestore.store.spelled import Spelled, SpelledIds, call_of
from tracestore.store.strip import stripped
from tracestore.store.tombstones import deleted_names
from tracestore.store.transaction import Entity, Transaction
from tracestore.wire.agent import Agent
from tracestore.wire.base import PhasedEvent
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSet
from tracestore.wire.canonical import canonical
from tracestore.wire.completion import Completion, CompletionFields
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent, episode_id_of, phase_of, revision_of
from tracestore.wire.tool_call import ToolCall

Status = Literal["stored", "duplicate", "conflict", "error", "deleted"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one event."""

    index: int
    """Its place among the events given to `Store.ingest`."""
    kind: str
    id: str
    status: Status
    problem: str | None = None
    redacted: int = 0
    """Pieces of text that the project's rules took out of it."""


class Refused(Exception):
    """The event is not stored; says why."""

    def __init__(self, status: Status, problem: str) -> None:
        super().__init__(problem)
        self.status = status


class _Seen(NamedTuple):
    """A phase that is stored."""

    text_hash: bytes
    revision: int
    entity_key: int | None
    """None: its entity has no row yet."""


def apply(tx: Transaction, batch: Sequence[Prepared]) -> list[Outcome]:
    """Apply events in order; the rows are written when the transaction finishes."""
    writer = _Writer(tx)
    batch = [writer.by_rules(prepared) for prepared in batch]
    writer.prefetch(batch)
    outcomes: dict[int, Outcome] = {}
    waiting: dict[Scope, list[int]] = {}
    for index, prepared in enumerate(batch):
        if writer.is_deleted(prepared):
            outcomes[index] = _outcome(index, prepared, partial(writer.refuse_deleted, prepared))
        elif writer.changes_others(prepared) or (waiting and Scope.of(prepared.event) in waiting):
            waiting.setdefault(Scope.of(prepared.event), []).append(index)
        else:
            outcomes[index] = _outcome(index, prepared, partial(writer.apply, prepared))
    for scope, indexes in waiting.items():
        with writer.writing_again(scope) as log:
            for index in indexes:
                take = partial(writer.take, log, batch[index])
                outcomes[index] = _outcome(index, batch[index], take)
    writer.parts.finish()
    return [outcomes[index] for index in range(len(batch))]


class Rewritten(NamedTuple):
    """What became of the events of a scope."""

    events: int
    """Phases that changed."""
    values: int
    """Pieces of text that were replaced in them."""
    first_pos: int
    """The lowest position of one that changed."""


def rewrite(tx: Transaction, scope: Scope, change: Change) -> Rewritten | None:
    """Write the events of a scope again as `change` makes them, each where it was; None where it makes no
    others of them. What they no longer refer to is noted for a sweep."""
    writer = _Writer(tx)
    done = writer.rewrite(scope, change)
    writer.parts.finish()
    return done


def _outcome(index: int, prepared: Prepared, applied: Callable[[], Status]) -> Outcome:
    event, problem = prepared.event, None
    try:
        status = applied()
    except Refused as refused:
        status, problem = refused.status, str(refused)
    redacted = 0 if prepared.redacted is None else prepared.redacted.values
    return Outcome(index, event.kind, event.id, status, problem, redacted)


class _Writer:
    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.parts = Parts(tx)
        self._seen: dict[tuple[str, str], dict[str, _Seen]] = tx.seen
        self._deleted: set[tuple[str, str]] = set()
        self._spelled = SpelledIds(tx)

    def by_rules(self, prepared: Prepared) -> Prepared:
        """An event without what the project's rules name, whatever rules its poster knew of."""
        rules = self._tx.memory.rules
        if prepared.rules is rules or prepared.rules.active == rules.active:
            return prepared
        again = prepare(prepared.event, b"", requests=RequestMemory(), rules=rules)
        if again.redacted is None:
            return prepared
        if prepared.redacted is not None:
            again = again._replace(redacted=again.redacted.after(prepared.redacted))
        return again._replace(size=prepared.size)

    def prefetch(self, batch: Sequence[Prepared]) -> None:
        """Look up, in a few statements, everything the batch may refer to."""
        if self._tx.memory.has_tombstones:
            names = (name for one in batch for name in (*_belongs_to(one.event), *_content_of(one.event)))
            self._deleted = deleted_names(self._tx.connection, self._tx.project_id, names)
        self._prefetch_rows(batch)
        ids: dict[str, set[str]] = defaultdict(set)
        for one in batch:
            event = one.event
            # What others refer to has its row, or nothing came of it.
            if event.kind not in PLACEHOLDERS or self._tx.find(event.kind, event.id) is not None:
                ids[event.kind].add(event.id)
        for kind in sorted(ids):
            self._prefetch_seen(kind, sorted(ids[kind]))

    def _prefetch_rows(self, batch: Sequence[Prepared]) -> None:
        tx = self._tx
        tx.prefetch_entities(name for one in batch for name in _names(one))
        tx.memory.contents.prefetch(tx.connection, (piece for one in batch for piece in one.pieces()))

    def _prefetch_seen(self, kind: str, ids: list[str]) -> None:
        by_key = self._tx.ids_of_keys(kind, ids)
        rows = look_up(
            self._tx.connection,
            t.raw_event,
            ("entity_key", "phase", "text_hash", "revision"),
            by="entity_key",
            values=sorted(by_key),
            project_id=self._tx.project_id,
        )
        for key, phase, text_hash, revision in rows:
            self._seen[kind, by_key[key]][phase] = _Seen(bytes(text_hash), revision or 0, key)

    # --- One event --------------------------------------------------------------------------------

    def apply(self, prepared: Prepared) -> Status:
        prepared, spelled = self._as_kept(prepared)
        event = prepared.event
        phases = self._seen[event.kind, event.id]
        same = phases.get(prepared.phase)
        if same is not None:
            self._check_repeats(prepared, same)
            return "duplicate"
        earlier = self._earlier(event) if phases else None
        merged = event if earlier is None else _merged(earlier, event)
        self._check_parents(event)
        self._check_episode(event)
        self._check_answers(event)
        self._tx.pos += 1
        self._note_spelled(event, spelled)
        key = self._write(prepared, merged, earlier)
        self._log(Logged.of(prepared, pos=self._tx.pos, now=self._tx.now), key)
        self._remember(merged)
        return "stored"

    def is_deleted(self, prepared: Prepared) -> bool:
        """Whether the event belongs to something that was deleted."""
        return self._tx.memory.is_deleted or (
            bool(self._deleted) and not self._deleted.isdisjoint(_belongs_to(prepared.event))
        )

    def refuse_deleted(self, prepared: Prepared) -> Status:
        gone = [
            f"{kind} {id_!r}" for kind, id_ in _belongs_to(prepared.event) if (kind, id_) in self._deleted
        ]
        what = "the project" if self._tx.memory.is_deleted else f"the {gone[0]}"
        raise Refused("deleted", f"{what} was deleted; a deleted id is never used again")

    def changes_others(self, prepared: Prepared) -> bool:
        """Whether an older revision of the event is stored, or token ids that it shows not to be kept."""
        event = prepared.event
        same = self._seen[event.kind, event.id].get(prepared.phase)
        is_newer = same is not None and revision_of(event) > same.revision
        return is_newer or (bool(self._tx.memory.rules.known) and self._spells_stored_ids(prepared))

    def _spells_stored_ids(self, prepared: Prepared) -> bool:
        event, spelled = prepared.event, self._spelled.news(prepared)
        call_id, episode_id = call_of(event), episode_id_of(event)
        if not spelled or call_id is None or episode_id is None or self._tx.find("call", call_id) is None:
            return False
        episode = self._tx.find("episode", episode_id)
        if episode is None:
            return False
        state = self.parts.state(episode.key)
        return (
            (PROMPT in spelled and bool(self._seen["call", call_id]))
            or any((call_id, index) in state.completion_keys for index in spelled)
            or bool(state.children.get(call_id))
        )

    def _as_kept(self, prepared: Prepared) -> tuple[Prepared, Spelled]:
        """An event without what is not kept of it, and which token ids of its call it adds to that."""
        if self._deleted and not self._deleted.isdisjoint(_content_of(prepared.event)):
            found = stripped(prepared.event)
            if found is not None:
                text = encode(found.event, arrays="base64")
                prepared = prepare(found.event, text, requests=RequestMemory())
        if not self._tx.memory.rules.known:
            return prepared, frozenset()
        return self._spelled.without(prepared), self._spelled.news(prepared)

    def _note_spelled(self, event: AnyEvent, spelled: Spelled) -> None:
        call_id = call_of(event)
        if spelled and call_id is not None:
            self._spelled.note(call_id, spelled)

    def _earlier(self, event: AnyEvent) -> AnyEvent:
        """What the other phases of the event say, merged."""
        known = self._tx.memory.open_events.get((event.kind, event.id))
        if known is not None:
            return known
        self._tx.flush()
        earlier = load_entity(self._tx.connection, self._tx.project_id, event.kind, event.id)
        assert earlier is not None
        return earlier

    def _check_repeats(self, prepared: Prepared, same: _Seen, first: AnyEvent | None = None) -> None:
        """Refuse an event whose id, phase and revision are stored with another JSON value.

        Args:
            first: what is stored; None: it lies in its rows.
        """
        event, phase = prepared.event, prepared.phase
        if same.text_hash == prepared.text_hash or revision_of(event) < same.revision:
            return
        if first is None:
            self._tx.flush()
            first = load_entity(self._tx.connection, self._tx.project_id, event.kind, event.id, phase=phase)
            assert first is not None
        event = self._as_stored(event)
        if canonical(encode(first)) == canonical(encode(event)):
            return
        differing = [
            name
            for name in type(event).model_fields.keys() - {"kind", "id"}
            if (name in first.model_fields_set) != (name in event.model_fields_set)
            or getattr(first, name) != getattr(event, name)
        ]
        if not differing and _unsigned(first) == _unsigned(event):
            return
        problem = "an event with this id and another value is stored; the first is kept"
        raise Refused("conflict", f"{problem} (they differ in: {', '.join(sorted(differing))})")

    def _as_stored(self, event: AnyEvent) -> AnyEvent:
        """What redactions left of an event that came before them."""
        rules = self._tx.memory.rules
        if not rules.known:
            return event
        event, call_id = rules.redact_by_all(event), call_of(event)
        return event if call_id is None else without_ids(event, self._spelled.of([call_id]).get(call_id, ()))

    def _remember(self, merged: AnyEvent) -> None:
        name = merged.kind, merged.id
        if isinstance(merged, PhasedEvent):
            # Only halves are asked for again in the usual course of things.
            if merged.phase == "whole":
                self._tx.memory.open_events.pop(name, None)
            else:
                self._tx.memory.open_events[name] = merged

    # --- Events that replace others ---------------------------------------------------------------

    @contextmanager
    def writing_again(self, scope: Scope) -> Iterator[Log]:
        """The newest events of a scope, to `take` others into; at the end they are written again."""
        log = read_log(self._tx, scope)
        last = self._tx.pos
        yield log
        if self._tx.pos > last:
            self._cover(log)
            self._write_again(scope, log)

    def take(self, log: Log, prepared: Prepared) -> Status:
        """Take an event into the log of its scope; its rows follow later.

        It must agree with the other phases and completions as they are now, so what two events both tell
        cannot change in later revisions of both: the first of them would contradict the other one still.
        """
        prepared, spelled = self._as_kept(prepared)
        event = prepared.event
        phases = self._seen[event.kind, event.id]
        same = phases.get(prepared.phase)
        stored = log.get(event.kind, event.id, prepared.phase)
        if same is not None and revision_of(event) <= same.revision:
            self._check_repeats(prepared, same, None if stored is None else stored.event)
            return "duplicate"
        if any(log.get(event.kind, event.id, phase) is None for phase in phases):
            raise Refused("conflict", "episode_id: what came of it before lies in another episode")
        self._check_parents(event)
        self._check_episode(event)
        try:
            log.check(event)
        except FieldConflict as conflict:
            raise Refused("conflict", str(conflict)) from None
        self._tx.pos += 1
        self._note_spelled(event, spelled)
        log.put(Logged.of(prepared, pos=self._tx.pos, now=self._tx.now, replaces=stored))
        key = None if stored is None else stored.entity_key
        phases[prepared.phase] = _Seen(prepared.text_hash, revision_of(event), key)
        self.parts.know_parent(log.merged(event.kind, event.id))
        return "stored"

    def rewrite(self, scope: Scope, change: Change) -> Rewritten | None:
        """Write the events of a scope again as `change` makes them."""
        log, values, changed = read_log(self._tx, scope), 0, set[PhaseName]()
        for one in log.all():
            found = change(one.event)
            if found is not None:
                changed.add(one.name)
                values += found.values
                self._note_spelled(one.event, found.spelled)
                log.put(one.of_event(found.event))
        if not changed:
            return None
        changed |= self._cover(log)
        places = [one.first_pos or one.pos for one in log.all() if one.name in changed]
        self._write_again(scope, log, note_contents=True)
        return Rewritten(len(changed), values, min(places))

    def _cover(self, log: Log) -> set[PhaseName]:
        """Take out of a log the token ids that are not kept; says of which events."""
        if not self._tx.memory.rules.known:
            return set()
        events = [one.event for one in log.all()]
        known = self._spelled.of(filter(None, map(call_of, events)))
        spelled = spread(events, known)
        changed = set()
        for one in log.all():
            call_id = call_of(one.event)
            if call_id not in spelled:
                continue
            self._note_spelled(one.event, spelled[call_id])
            event = without_ids(one.event, spelled[call_id])
            if event is not one.event:
                changed.add(one.name)
                log.put(one._replace(event=event, shape=shape_text(event)))
        return changed

    def _write_again(self, scope: Scope, log: Log, *, note_contents: bool = False) -> None:
        last = self._tx.pos
        state = forget(self._tx, scope, log, note_contents=note_contents)
        if state is not None:
            self._tx.memory.states[state.episode_key] = state
        requests = RequestMemory()
        for entities in chunks(log.entities()):
            merged = [merge_phases([one.event for one in phases]) for phases in entities]
            batch = [prepare(event, b"", requests=requests) for event in merged]
            self._prefetch_rows(batch)
            for prepared, phases in zip(batch, entities, strict=True):
                self._write_entity(prepared, phases)
        self._tx.pos = last

    def _write_entity(self, prepared: Prepared, phases: Sequence[Logged]) -> None:
        """The rows of an entity and of all its phases, where nothing is left of it but its key."""
        merged = prepared.event
        self._tx.pos = phases[0].pos
        self._check_answers(merged)
        key = self._write(prepared, merged, None, known=phases[0].entity_key)
        ends = [
            one.pos for one in phases if isinstance(one.event, PhasedEvent) and one.event.phase != "start"
        ]
        if ends:
            self._tx.buffer.update(TABLES[merged.kind], key, {"end_pos": ends[-1]})
        for one in phases:
            self._log(one, key)
        self._remember(merged)

    # --- Refusals ---------------------------------------------------------------------------------

    def _check_parents(self, event: AnyEvent) -> None:
        if isinstance(event, Call):
            self._check_parent("call", event.id, event.parent_call_id, "parent_call_id")
        elif isinstance(event, Agent):
            self._check_parent("agent", event.id, event.parent_agent_id, "parent_agent_id")

    def _check_parent(self, kind: str, id_: str, parent_id: str | None, field: str) -> None:
        if parent_id == id_:
            raise Refused("error", f"{field}: the {kind} {id_!r} is its own parent")
        # Only what somebody already names can be an ancestor of anything.
        own = None if parent_id is None else self._tx.find(kind, id_)
        parent = None if own is None or parent_id is None else self._tx.find(kind, parent_id)
        if own is None or parent is None:
            return
        current: int | None = parent.key
        while current is not None and current != own.key:
            current = self._parent_of(kind, current)
        if current is not None:
            raise Refused(
                "error",
                f"{field}: {parent_id!r} descends from {id_!r}, so the parents go round in a circle",
            )

    def _parent_of(self, kind: str, key: int) -> int | None:
        parents = self._tx.memory.parents
        if key not in parents:
            parents[key] = self._tx.value(TABLES[kind], key, f"parent_{kind}_key")
        return parents[key]

    def _check_episode(self, event: AnyEvent) -> None:
        """A call and its completions lie in one episode."""
        if isinstance(event, Call):
            call_id, problem = event.id, "completions of this call were posted in another episode"
        elif isinstance(event, Completion):
            call_id, problem = event.call_id, f"the call {event.call_id!r} lies in another episode"
        else:
            return
        call = self._tx.find("call", call_id)
        episode_key = None if call is None else self._tx.value(t.call, call.key, "episode_key")
        if episode_key is None:
            return
        episode = self._tx.find("episode", event.episode_id)
        if episode is None or episode.key != episode_key:
            raise Refused("conflict", f"episode_id: {problem}")

    def _check_answers(self, event: AnyEvent) -> None:
        """What is posted of a completion agrees with what is stored of it."""
        self.parts.agreed.clear()
        for (call_id, index), body in _answers(event):
            call = self._tx.find("call", call_id)
            if call is not None:
                self._check_agrees(call.key, call_id, index, body)

    def _check_agrees(self, call_key: int, call_id: str, index: int, body: CompletionFields) -> None:
        stored = self._stored_answer(call_key, call_id, index)
        if stored is not None:
            try:
                self.parts.agreed[call_id, index] = (stored, _agreed(call_id, index, stored, body))
            except FieldConflict as conflict:
                raise Refused("conflict", str(conflict)) from None

    def _stored_answer(self, call_key: int, call_id: str, index: int) -> CompletionFields | None:
        episode_key = self._tx.value(t.call, call_key, "episode_key")
        if episode_key is None or (call_id, index) not in self.parts.state(episode_key).completion_keys:
            return None
        self._tx.flush()
        return load_answer(self._tx.connection, self._tx.project_id, call_key, index)

    # --- Rows -------------------------------------------------------------------------------------

    def _write(
        self, prepared: Prepared, merged: AnyEvent, earlier: AnyEvent | None, *, known: int | None = None
    ) -> int:
        """The rows of an event that is accepted; returns the key of its own.

        Args:
            known: the key that its row had, where it is written again.
        """
        event = prepared.event
        news = _news(merged, earlier)
        self._come_into_episode(event)
        if isinstance(event, Completion):
            return self.parts.completion_event(event, prepared.answers[0])
        if isinstance(merged, Call) and earlier is not None:
            self.parts.unsettles(merged, earlier)
        key, is_new = self._own_key(event, earlier, known)
        row = self._columns(prepared, merged, news)
        row |= self.parts.columns(merged)
        if event.kind in PLACEHOLDERS:
            row["is_placeholder"] = False
        if earlier is None:
            row["pos"] = self._tx.pos
        if isinstance(event, PhasedEvent) and event.phase != "start":
            row["end_pos"] = self._tx.pos
        if is_new:
            row["key"], row["id"] = key, event.id
            self._tx.buffer.insert(TABLES[event.kind], row)
        else:
            self._tx.buffer.update(TABLES[event.kind], key, row)
        self.parts.write(prepared, merged, news, key=key, is_first=earlier is None)
        return key

    def _own_key(self, event: AnyEvent, earlier: AnyEvent | None, known: int | None) -> tuple[int, bool]:
        """The key of the event's row, and whether the row is yet to be made."""
        kind = event.kind
        if kind in PLACEHOLDERS:
            entity = self._tx.find(kind, event.id)
            is_new = entity is None
            if entity is None:
                entity = self._tx.memory.entities[kind, event.id] = Entity(self._tx.new_key(), False)
            entity.is_placeholder = False
            return entity.key, is_new
        if earlier is not None:
            key = next(iter(self._seen[kind, event.id].values())).entity_key
            assert key is not None, "what came earlier is written"
            return key, False
        if isinstance(event, ToolCall):
            sampled = self.parts.sampled_tool_call(event)
            if sampled is not None:
                self._tx.buffer.update(t.tool_call, sampled, {"id": event.id})
                return sampled, False
        return self._tx.new_key() if known is None else known, True

    def _columns(self, prepared: Prepared, merged: AnyEvent, news: Set[str]) -> dict[str, Any]:
        """Columns of the fields that the event is the first to name."""
        shape, pieces = prepared.shape, prepared.others
        if merged is not prepared.event:
            shape, pieces = shape_text(merged), content_pieces(merged)
        plan = plan_of(merged.kind, shape)
        row = dict(zip(plan.plain, plan.values(merged), strict=True))
        for field in plan.contents:
            row[field.column] = self._tx.intern(pieces[field.path[0]]).key
        for column, kind, id_of in plan.references:
            row[column] = self._tx.entity(kind, id_of(merged)).key
        if merged is not prepared.event:
            old = {field.column for field in columns_of(merged.kind) if field.path[0] not in news}
            row = {column: value for column, value in row.items() if column not in old}
        return row

    def _come_into_episode(self, event: AnyEvent) -> None:
        episode_id = episode_id_of(event)
        if episode_id is None:
            return
        episode = self._tx.entity("episode", episode_id)
        if episode.first_pos is None:
            episode.first_pos = self._tx.pos
            self._tx.buffer.update(t.episode, episode.key, {"first_pos": self._tx.pos})

    def _log(self, one: Logged, key: int) -> None:
        event, phase = one.event, phase_of(one.event)
        episode_id = episode_id_of(event)
        self._seen[event.kind, event.id][phase] = _Seen(one.text_hash, revision_of(event), key)
        row = {
            "kind": event.kind,
            "phase": phase,
            "text_hash": one.text_hash,
            "pos": one.pos,
            "entity_key": key,
            "field_set_key": self._tx.field_set(one.shape),
            "received_at": one.received_at,
        }
        if episode_id is not None:
            row["episode_key"] = self._tx.entity("episode", episode_id).key
        if event.revision is not None:
            row["revision"] = event.revision
        if one.num_replaced is not None:
            row["first_pos"], row["num_replaced"] = one.first_pos, one.num_replaced
        self._tx.buffer.insert(t.raw_event, row)


def _belongs_to(event: AnyEvent) -> Iterable[tuple[str, str]]:
    """(kind, id) of what an event is or lies in; what it refers to elsewhere may be gone."""
    if event.kind in ("episode", "agent", "call"):
        yield event.kind, event.id
    episode_id = episode_id_of(event)
    if episode_id is not None:
        yield "episode", episode_id
    if isinstance(event, Completion):
        yield "call", event.call_id
    elif isinstance(event, Call):
        yield "agent", event.agent_id


def _content_of(event: AnyEvent) -> Iterable[tuple[str, str]]:
    """(kind, id) of the tombstone of an episode that keeps its measures alone."""
    episode_id = episode_id_of(event)
    if episode_id is not None:
        yield "content", episode_id


def _names(prepared: Prepared) -> Iterable[tuple[str, str]]:
    """(kind, id) of every entity that an event is or refers to."""
    event = prepared.event
    if event.kind in PLACEHOLDERS:
        yield event.kind, event.id
    for _, kind, id_of in plan_of(event.kind, prepared.shape).references:
        yield kind, id_of(event)
    if isinstance(event, Completion):
        yield "episode", event.episode_id
        yield "call", event.call_id
    elif isinstance(event, CandidateSet):
        for member in event.members:
            yield ("call", member.call_id) if member.call_id is not None else ("agent", member.agent_id or "")
    elif isinstance(event, ContextEdit):
        for call_id in (*(event.replaced_call_ids or ()), *(event.kept_call_ids or ())):
            yield "call", call_id


def _answers(event: AnyEvent) -> Iterable[tuple[CompletionKey, CompletionFields]]:
    """The completions that an event tells of."""
    if isinstance(event, Completion):
        yield (event.call_id, event.index), event
    elif isinstance(event, Call):
        for index, body in enumerate(event.completions or ()):
            yield (event.id, index), body


def _unsigned(event: AnyEvent) -> bytes:
    """Its JSON value with 0.0 for -0.0: of a number in a column, SQLite keeps no sign of a zero."""
    return canonical(encode(event).replace(b":-0.0", b":0.0"))


def _merged(earlier: AnyEvent, event: AnyEvent) -> AnyEvent:
    try:
        return merge_phases([earlier, event])
    except FieldConflict as conflict:
        raise Refused("conflict", str(conflict)) from None


def _news(merged: AnyEvent, earlier: AnyEvent | None) -> Set[str]:
    """Fields that nothing named before, or of which more is known from now on."""
    if earlier is None:
        return merged.model_fields_set
    return {
        name
        for name in merged.model_fields_set
        if name not in earlier.model_fields_set or getattr(merged, name) != getattr(earlier, name)
    }


def _agreed(call_id: str, index: int, stored: CompletionFields, body: CompletionFields) -> CompletionFields:
    """One completion out of two posts of it; FieldConflict where they differ."""
    posts = [_as_event(name, call_id, index, fields) for name, fields in (("stored", stored), ("new", body))]
    return merge(posts).completions[call_id, index]


def _as_event(id_: str, call_id: str, index: int, body: CompletionFields) -> Completion:
    named = {name: getattr(body, name) for name in CompletionFields.model_fields}
    return Completion.model_construct(
        id=id_, episode_id="", call_id=call_id, index=index, _fields_set=set(named), **named
    )
