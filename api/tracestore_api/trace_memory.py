"""Spans of one trace -> a store: what came before is remembered, and read again where memory is old.

The memory is a shortcut. It holds for as long as nobody else has written to the trace: another server process
on the same database, an import, a post of events. That is asked before and after each request, and what is
stored decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from sqlalchemy import func, select

from tracestore.importers.notes import Notes
from tracestore.importers.span_known import FORMAT, Trace
from tracestore.importers.span_parts import Part, parts
from tracestore.importers.spans import Span, events
from tracestore.store import query
from tracestore.store import tables as t
from tracestore.store.load import load_entity
from tracestore.store.store import NotFound, Store
from tracestore.wire.events import AnyEvent
from tracestore.wire.limits import Limits

MAX_SPANS = 200_000
"""Spans remembered, over all traces; beyond that the traces that waited longest are read again."""
_TRACE_SIZE = 5
"""What a trace takes beside its spans, in spans."""
_WAITING_SIZE = 100
"""What a span takes that is remembered with all it says."""
_MAX_WAITING_CHARACTERS = 64 * 1024
"""Of one such span; a longer one is not remembered."""
_ATTEMPTS = 5
"""How often another writer may come between before what it wrote is left to the next request."""
_LOCKS = 64
_KINDS = ("episode", "agent", "call", "tool_call", "context_edit", "gap")
"""Events that say where spans are."""


@dataclass(slots=True)
class _Remembered:
    trace: Trace
    last_pos: int
    """Of the events that the trace has learnt."""
    waiting: list[Span] = field(default_factory=list)
    """Spans of a trace that has no agent, call or tool so far: they are not stored."""
    counted: int = 0
    """Its share of what is remembered, when that was last reckoned."""

    @property
    def size(self) -> int:
        return _TRACE_SIZE + len(self.trace.known) + _WAITING_SIZE * len(self.waiting)

    def wait_for_more(self, told: Sequence[Span]) -> int:
        """Keep spans until their trace has a model call; the number of those that have to wait."""
        others = {span.span_id: span for span in told if span.kind == "other"}
        for one in self.waiting:
            others.pop(one.span_id, None)
        self.waiting += [one for one in others.values() if len(str(one)) <= _MAX_WAITING_CHARACTERS]
        return sum(span.kind == "other" for span in told)


class Refusal(NamedTuple):
    """A span that is not stored."""

    span_id: str
    """The event's, where our exporter wrote it."""
    problem: str


@dataclass(slots=True)
class Stored:
    """What became of spans."""

    refused: list[Refusal] = field(default_factory=list)
    num_waiting: int = 0
    """Spans that are not kept: nothing of their trace is an agent, a call or a tool so far."""


class TraceMemory:
    """The traces of one server; any number of threads may store."""

    def __init__(self, store: Store, *, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        # The one that was asked for last stands last.
        self._traces: dict[tuple[str, str], _Remembered] = {}
        self._size = 0
        self._lock = Lock()
        self._locks = [Lock() for _ in range(_LOCKS)]

    def store(self, project: str, trace_id: str, spans: Sequence[Span], *, notes: Notes) -> Stored:
        """Store spans of one trace, and return when they are on disk."""
        if any(span.own for span in spans):
            return self._store_written(project, spans, notes)
        name = (project, trace_id)
        with self._locks[hash(name) % _LOCKS]:
            found = Stored()
            told = list(spans)
            for _ in range(_ATTEMPTS):
                one = self._current(name)
                new = parts(one.trace, [*one.waiting, *told], notes=notes, limits=self._limits)
                if not new and not one.trace.known:
                    found.num_waiting = one.wait_for_more(told)
                    self._remember(name, one)
                    break
                is_settled = self._ingest(project, one, new, found)
                told = []
                if is_settled:
                    self._remember(name, one)
                    break
                self._forget(name)
            return found

    def _store_written(self, project: str, spans: Sequence[Span], notes: Notes) -> Stored:
        """Store a trace that our exporter wrote, which is whole and names its events itself."""
        items = list(events(spans, format=FORMAT, notes=notes))
        outcomes = self._store.ingest(project, items)
        return Stored(
            [
                Refusal(outcome.id, f"{outcome.kind} {outcome.id}: {outcome.problem}")
                for outcome in outcomes
                if outcome.status not in ("stored", "duplicate")
            ]
        )

    def _ingest(self, project: str, one: _Remembered, new: Sequence[Part], found: Stored) -> bool:
        """Store events; False where another writer came between."""
        outcomes = self._store.ingest(project, [part.item for part in new])
        num_stored = 0
        is_settled = True
        refused: dict[str, str] = {}
        for part, outcome in zip(new, outcomes, strict=True):
            event = part.item.event
            if outcome.status == "stored":
                one.trace.take(event)
                num_stored += event.kind in _KINDS
            elif outcome.status == "duplicate" or (outcome.status == "conflict" and event.revision):
                is_settled = False
            else:
                refused.setdefault(part.span_id, f"{event.kind} {event.id}: {outcome.problem}")
        found.refused += [Refusal(*item) for item in refused.items()]
        one.trace.prune()
        one.waiting.clear()
        one.last_pos, num_since = self._since(project, one.trace.episode_id, one.last_pos)
        return is_settled and num_since == num_stored

    # --- What came before ---------------------------------------------------------------------------------

    def _current(self, name: tuple[str, str]) -> _Remembered:
        project, trace_id = name
        with self._lock:
            one = self._traces.get(name)
        trace = Trace(trace_id, lambda kind, id_: self._load(project, kind, id_))
        last_pos, _ = self._since(project, trace.episode_id, 0)
        if one is not None and one.last_pos == last_pos:
            return one
        if last_pos:
            trace.take_all(self._events(project, trace.episode_id))
        fresh = _Remembered(trace, last_pos, [] if one is None else one.waiting)
        self._remember(name, fresh)
        return fresh

    def _events(self, project: str, episode_id: str) -> list[AnyEvent]:
        try:
            return self._store.load(project, episode_id)
        except NotFound:
            return []

    def _since(self, project: str, episode_id: str, last_pos: int) -> tuple[int, int]:
        """(last position of an event of the trace, number of those after a position)."""
        raw, episode = t.raw_event.c, t.episode.c
        with self._store.read() as connection:
            project_id = query.find_project(connection, project)
            key = select(episode.key).where(episode.project_id == project_id, episode.id == episode_id)
            of_trace = (
                raw.project_id == project_id,
                raw.episode_key == key.scalar_subquery(),
                raw.kind.in_(_KINDS),
                raw.pos > last_pos,
            )
            counted = select(func.max(raw.pos), func.count()).where(*of_trace)
            latest, number = connection.execute(counted).one()
        return latest or last_pos, number

    def _load(self, project: str, kind: str, id_: str) -> AnyEvent:
        with self._store.read() as connection:
            project_id = query.find_project(connection, project)
            assert project_id is not None
            event = load_entity(connection, project_id, kind, id_)
        assert event is not None, f"{kind} {id_} was stored"
        return event

    def _remember(self, name: tuple[str, str], one: _Remembered) -> None:
        with self._lock:
            self._drop(name)
            one.counted = one.size
            self._size += one.counted
            self._traces[name] = one
            while self._size > MAX_SPANS and len(self._traces) > 1:
                self._drop(next(iter(self._traces)))

    def _forget(self, name: tuple[str, str]) -> None:
        with self._lock:
            self._drop(name)

    def _drop(self, name: tuple[str, str]) -> None:
        one = self._traces.pop(name, None)
        self._size -= 0 if one is None else one.counted
