"""Stored events of a trace -> what its next spans need to know of those before.

Nothing of it is in memory alone: `Trace.take` learns it from the events themselves, so a server that was
restarted, or another one, goes on where the last one was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tracestore.importers import exact
from tracestore.importers.chat_shapes import Spoken, results_in, uses_of
from tracestore.importers.items import safe_id
from tracestore.importers.spans import Kind, Span
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent
from tracestore.wire.gap import Gap
from tracestore.wire.tool_call import ToolCall

FORMAT = "otlp"
"""Under which name `meta` keeps what has no place."""
SUPERSEDED = "superseded"
"""Cause of a gap that is none any more."""
WRAPPER = "wrapper"
"""Purpose of a call that turned out to be around another."""
UNPLACED = "span_without_place"
LOST_TOOL = "tool_without_call"
TOLD = "told_by_a_request"
"""Marks the second half of a tool call that no span tells."""
_REMOTE = 0x300
"""Flags of a span: it is known whether its parent is in another process, and it is."""

Load = Callable[[str, str], AnyEvent]
"""(kind, id) -> the event as it is stored, its phases merged."""


class Use(NamedTuple):
    """A tool use of an answer."""

    id: str
    """Of its tool call."""
    span_id: str
    """Of the model call."""
    spoken: Spoken


class Place(NamedTuple):
    """Where an agent stands in the tree."""

    parent_agent_id: str | None
    role: str | None
    spawned_by_call_id: str | None
    spawned_by_tool_call_id: str | None


@dataclass(frozen=True, slots=True)
class Known:
    """What the other spans of a trace need to know of one, and what is stored of it."""

    span_id: str
    kind: Kind
    parent_id: str | None
    is_remote: bool
    """Whether its parent is in another process."""
    started_at: int | None = None
    uses: tuple[Use, ...] = ()
    has_answer: bool = False
    tool: Spoken | None = None
    told: frozenset[str] = frozenset()
    """Tool uses whose results its request carries, and which no call here has asked for."""
    home: str | None = None
    """Of a call that is stored: its agent."""
    is_emptied: bool = False
    """Whether it is a wrapper that was stored as a call."""
    place: Place | None = None
    """Of an agent: what its second half says."""
    executes: str | None = None
    """Of a tool: its tool call."""
    asked_by: str | None = None
    """Of a tool: the model call of that."""
    is_gap: bool = False
    """Whether a gap stands for it."""


@dataclass
class Trace:
    """What is stored of a trace.

    Args:
        load: reads an event that is stored.
    """

    id: str
    load: Load
    known: dict[str, Known] = field(default_factory=dict)
    edits: dict[str, ContextEdit] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    """Tool calls whose results a request tells, and no span."""
    superseded: set[str] = field(default_factory=set)
    """Gaps that are none any more."""
    mains: set[str] = field(default_factory=set)
    """Agents that stand for the root of the trace."""
    episode: Episode | None = None

    @property
    def episode_id(self) -> str:
        return safe_id(self.id)

    def name(self, *parts: str) -> str:
        """An id inside the trace."""
        return safe_id("/".join((self.episode_id, *parts)))

    def take(self, event: AnyEvent) -> None:
        """Learn what a stored event says: all of it, or a half."""
        if isinstance(event, Episode):
            self.episode = event if self.episode is None or event.phase != "start" else self.episode
        elif isinstance(event, ContextEdit):
            self.edits[event.id] = event
        elif isinstance(event, (Agent, Call, ToolCall, Gap)):
            for one in self._known_of(event):
                self.known[one.span_id] = one

    def take_all(self, events: Iterable[AnyEvent]) -> None:
        """Learn what stored events say, in any order."""
        # What a gap says of a span holds until another event stands for it.
        for event in sorted(events, key=lambda event: (event.kind != "gap", event.kind == "tool_call")):
            self.take(event)
        self.prune()

    def prune(self) -> None:
        """Forget results of which it is known who asked for them."""
        asked = {use.spoken.id for one in self.known.values() for use in one.uses}
        for one in [one for one in self.known.values() if one.told & asked]:
            self.known[one.span_id] = dataclasses.replace(one, told=one.told - asked)

    def of_span(self, span: Span) -> Known:
        """The same of a span that is not stored yet."""
        is_call = span.kind == "call"
        return Known(
            span.span_id,
            span.kind,
            span.parent_id,
            _is_remote(span.rest),
            span.started_at,
            uses=self._uses(span.span_id, [one.message for one in span.exchange.answers if is_call]),
            has_answer=bool(span.exchange.answers),
            tool=spoken_of(span) if span.kind == "tool" else None,
            told=frozenset(use_id for use_id, _ in results_in(span.exchange.request if is_call else None)),
        )

    def _uses(self, span_id: str, messages: Iterable[Any]) -> tuple[Use, ...]:
        return tuple(
            Use(self.name(span_id, "tool", f"{completion}.{place}"), span_id, spoken)
            for completion, message in enumerate(messages)
            for place, spoken in enumerate(uses_of(message))
        )

    def _known_of(self, event: Agent | Call | ToolCall | Gap) -> Iterator[Known]:
        """What a stored event says of the span that it was made of."""
        record = record_of(event.meta)
        span_id = event.id.removeprefix(f"{self.episode_id}/")
        if isinstance(event, ToolCall):
            yield from self._of_tool_call(event, record)
            return
        if span_id == event.id:
            return  # it came by another door
        is_gap = isinstance(event, Gap)
        own = span_id.removesuffix("/span") if is_gap else span_id
        at = event.at if isinstance(event, Gap) else event.started_at
        base = Known(own, "other", record.get("parent_id"), _is_remote(record), at, is_gap=is_gap)
        if isinstance(event, Call):
            yield self._of_call(event, base)
        elif isinstance(event, Agent):
            yield from self._of_agent(event, base)
        elif event.cause == SUPERSEDED:
            self.superseded.add(event.id)
        elif own != span_id:
            yield dataclasses.replace(
                base,
                kind=record["kind"],
                tool=Spoken(*record["tool"]) if event.cause == LOST_TOOL else None,
                told=frozenset(use_id for use_id, _ in results_in(request_of(record))),
            )

    def _of_call(self, event: Call, base: Known) -> Known:
        answers = event.completions or ()
        messages = [None if one.message is None else exact.loads(one.message) for one in answers]
        request = None if event.request is None else exact.loads(event.request)
        before = self.known.get(base.span_id)
        if event.purpose == WRAPPER and before is not None:
            # The gap that stands for it says the rest.
            return dataclasses.replace(before, home=event.agent_id, is_emptied=True)
        return dataclasses.replace(
            base,
            kind="call",
            uses=self._uses(base.span_id, messages),
            has_answer=bool(answers),
            told=frozenset(use_id for use_id, _ in results_in(request)),
            home=event.agent_id,
        )

    def _of_agent(self, event: Agent, base: Known) -> Iterator[Known]:
        before = self.known.get(base.span_id)
        if event.id == self.name("main") or (before is not None and before.is_gap):
            self.mains.add(event.id)
            return
        place = Place(*(getattr(event, name) for name in Place._fields))
        if event.phase == "end":
            # What is stored of its first half was learnt before.
            yield dataclasses.replace(before or base, kind="agent", place=place)
        else:
            yield dataclasses.replace(base, kind="agent", place=place if event.phase == "whole" else None)

    def _of_tool_call(self, event: ToolCall, record: dict[str, Any]) -> Iterator[Known]:
        if TOLD in record:
            self.told.add(event.id)
        if not isinstance(record.get("span_id"), str):
            return
        self.told.discard(event.id)
        spoken = Spoken(*record.get("executed", (event.tool_call_id, event.name, event.arguments)))
        call = self.known.get(event.call_id.removeprefix(f"{self.episode_id}/"))
        if event.phase == "end" and "executed" not in record and call is not None:
            # The first half says it.
            spoken = next((use.spoken for use in call.uses if use.id == event.id), spoken)
        yield Known(
            record["span_id"],
            "tool",
            record.get("parent_id"),
            _is_remote(record),
            event.started_at,
            tool=spoken,
            executes=event.id,
            asked_by=event.call_id,
        )


def _is_remote(rest: dict[str, Any]) -> bool:
    flags = rest.get("flags")
    return isinstance(flags, int) and flags & _REMOTE == _REMOTE


def record_of(meta: Raw | None) -> dict[str, Any]:
    """What an event's `meta` says of the span that it was made of."""
    value = exact.loads(meta) if meta is not None else None
    found = value.get(FORMAT) if isinstance(value, dict) else None
    first = found[0] if isinstance(found, list) and found else found
    return first if isinstance(first, dict) else {}


def request_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """The request of a call around another one, of which a gap is made."""
    call = record.get("call")
    return call.get("request") if isinstance(call, dict) else None


def spoken_of(span: Span) -> Spoken:
    """The tool use that a tool's span names."""
    return span.tool if span.tool is not None else Spoken(None, span.name, None)
