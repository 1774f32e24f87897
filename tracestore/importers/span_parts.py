"""Spans of a trace that come in parts -> events: each speaks for itself, and what another one says is linked.

`spans` reads a trace that is whole. An exporter sends it in pieces, children before their parents, and each
piece is stored and acknowledged as it comes. So

- A span makes its own events from what it says alone, under ids made of its trace's and its own.
- What only another span can tell goes into the other half of an event (`start`, `end`): where an agent stands
  in the tree, what came of a tool use, how the episode ended. A half is posted once it is certain, and no
  event that is there has to be written again.
- A call must name its agent at once. Below a span that has not come it is the agent that this one would be.
  When the way up to an agent, or to the root, is there and leads to another one, the call is posted again
  under a higher revision: once, for the way up ends only once. Where no agent is on it the root stands for
  one, and so does, until its parent comes, a span whose parent is in another process.
- A span that is no agent, call or tool makes a gap that keeps all it says. It also tells those below it where
  they are. A trace that has nothing else so far is not kept.
- A tool span without a call waits as a gap, and becomes the execution of its tool use when that comes.

Any order and any division into parts ends in the same graph, except for these facts:

- revisions, which count how often an event was posted;
- a call that came before the call inside it (a wrapper, see `spans`) stays without its content, under the
  purpose `wrapper`, and so do its tool uses; a gap of a tool that came before its call stays as `superseded`;
- a tool span without a call id, or with one that the trace uses several times, is given once, by what had
  come: to the latest use before it by the clock, or, where answers are not recorded, to the latest call;
- of two spans with one id that differ the first holds, and of several records of one tool result that differ
  the first that came;
- spans whose way up is never complete stay with the agents that the spans above them would be;
- the depth of agents, which would need everything above them, is left to their parents' ids.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from tracestore.importers import exact, spans
from tracestore.importers.carried import values_of
from tracestore.importers.chat_shapes import Spoken, results_in
from tracestore.importers.guard import WRONG_SHAPE, problem_of
from tracestore.importers.items import Item, left, made, raw
from tracestore.importers.notes import Notes
from tracestore.importers.span_known import (
    FORMAT,
    LOST_TOOL,
    SUPERSEDED,
    TOLD,
    UNPLACED,
    WRAPPER,
    Known,
    Place,
    Trace,
    Use,
    record_of,
    request_of,
    spoken_of,
)
from tracestore.importers.spans import Span, shown
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.decode import decode_event
from tracestore.wire.episode import Episode
from tracestore.wire.errors import EventError
from tracestore.wire.events import AnyEvent, revision_of
from tracestore.wire.gap import Gap
from tracestore.wire.limits import Limits
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

DROPPED = "attributes_dropped"
_NOT_SPOKEN = Spoken(None, None, None)
"""Of a tool use in an answer that is not recorded."""


class Part(NamedTuple):
    """An event to store."""

    item: Item
    span_id: str
    """Of the span that tells it."""


class _Way(NamedTuple):
    """Where the way up from the inside of a span leads."""

    home: str | None = None
    """The agent; None where it ends at a span that has not come."""
    is_agent: bool = False
    """Whether that is a span of its own."""
    is_root: bool = False
    """Whether it stands for the root of the trace."""


def parts(trace: Trace, told: Sequence[Span], *, notes: Notes, limits: Limits) -> list[Part]:
    """The events that spans add to what is stored of their trace.

    Args:
        told: those that are known are passed over.
        notes: learns what was refused, each with the span's place, and what looks wrong.
        limits: of one event.

    Returns:
        Nothing where neither the trace nor the spans have an agent, a call or a tool.
    """
    fresh: dict[str, tuple[Span, list[Item]]] = {}
    for span in _distinct(told):
        if span.span_id not in trace.known:
            items = _read(span, trace, notes, limits)
            if items is not None:
                fresh[span.span_id] = (span, items)
    if not trace.known and all(span.kind == "other" for span, _ in fresh.values()):
        return []
    return list(_Step(trace, fresh, notes).parts())


def _distinct(told: Sequence[Span]) -> list[Span]:
    """Spans that say where they stand. Of several with one id the fullest holds."""
    found: dict[str, Span] = {}
    for span in told:
        other = found.get(span.span_id)
        if other is None or (span.size, str(shown(span))) > (other.size, str(shown(other))):
            found[span.span_id] = span
    return [dataclasses.replace(span, rest=_beside(span) | span.rest) for span in found.values()]


def _beside(span: Span) -> dict[str, Any]:
    """What an event has no field for, and other spans or the reader of `meta` want to know."""
    told = {"parent_id": span.parent_id, "model": span.model if span.kind == "tool" else None}
    return {name: one for name, one in told.items() if one}


def _read(span: Span, trace: Trace, notes: Notes, limits: Limits) -> list[Item] | None:
    """The events that a span makes when it is read alone; None where it cannot be stored."""
    # The scores of a span that is neither are read as an agent's are.
    judged = dataclasses.replace(span, kind="agent") if span.scores and span.kind != "call" else span
    own = Notes()
    try:
        items = list(spans.events([judged], format=FORMAT, notes=own))
        # What is not made until other spans are there fails here if it can fail.
        checked = [Item(event, text) for event, text in items if event.kind != "episode"]
        if span.kind == "tool":
            checked.append(_execution(trace, span, Use(trace.name(span.span_id), "", _NOT_SPOKEN), None))
        elif span.kind == "other":
            checked.append(_gap(trace, span))
        for item in checked:
            decode_event(item.text, limits=limits)
    except (EventError, RecursionError, *WRONG_SHAPE) as error:
        is_deep = isinstance(error, RecursionError)
        own.refuse("", "it is nested too deeply" if is_deep else _problem(error))
    if own.num_refused:
        notes.refuse(span.place, own.refused[0].removeprefix(f"{span.place}: ").removeprefix(": "))
        return None
    return items


def _problem(error: BaseException) -> str:
    return error.problem if isinstance(error, EventError) else problem_of(error)  # type: ignore[arg-type]


def again(event: AnyEvent, **changes: Any) -> Item:
    """An event with other fields; None leaves one out."""
    return made(type(event), **{name: getattr(event, name) for name in event.model_fields_set} | changes)


class _Step:
    """The events that new spans add to a trace.

    Args:
        fresh: the new spans, each with what it says alone.
    """

    def __init__(self, trace: Trace, fresh: dict[str, tuple[Span, list[Item]]], notes: Notes) -> None:
        self._trace = trace
        self._notes = notes
        self._alone = {span_id: items for span_id, (_, items) in fresh.items()}
        self._fresh = {span_id: span for span_id, (span, _) in fresh.items()}
        self._known = trace.known | {span.span_id: trace.of_span(span) for span in self._fresh.values()}
        self._ways: dict[str, _Way] = {}
        self._wrappers = set(self._found_wrappers())
        self._executes = dict(self._paired())

    def parts(self) -> Iterator[Part]:
        yield from self._episode()
        for span in self._fresh.values():
            for item in self._own(span):
                yield Part(item, span.span_id)
        yield from self._mains()
        for one in self._trace.known.values():
            if one.home is not None and not one.is_emptied:
                for item in self._wrapped(one) if one.span_id in self._wrappers else self._moved(one):
                    yield Part(item, one.span_id)
        for one in self._known.values():
            for item in self._placed(one) if one.kind == "agent" else ():
                yield Part(item, one.span_id)
        for span_id, use in self._executes.items():
            for item in self._executed(self._known[span_id], use):
                yield Part(item, span_id)
        yield from self._lost()
        yield from self._results()

    # --- The tree -----------------------------------------------------------------------------------------

    def _above(self, one: Known) -> Iterator[Known]:
        """The spans above, the nearest first, as far as they have come."""
        seen = {one.span_id}
        parent = self._known.get(one.parent_id or "")
        while parent is not None and parent.span_id not in seen:
            seen.add(parent.span_id)
            yield parent
            parent = self._known.get(parent.parent_id or "")

    def _found_wrappers(self) -> Iterator[str]:
        """Calls with another call below, no tool or agent between."""
        for one in self._known.values():
            if one.kind == "call":
                found = next((above for above in self._above(one) if above.kind != "other"), None)
                if found is not None and found.kind == "call":
                    yield found.span_id

    def _way(self, span_id: str) -> _Way:
        walked: dict[str, None] = {}
        at, way = span_id, _Way()
        while at not in self._ways:
            one = self._known.get(at)
            if one is None or at in walked:
                break  # it has not come; or they go round in a circle
            walked[at] = None
            end = self._end(one)
            if end is not None:
                way = end
                break
            assert one.parent_id is not None
            at = one.parent_id
        way = self._ways.get(at, way)
        self._ways |= dict.fromkeys(walked, way)
        return way

    def _end(self, one: Known) -> _Way | None:
        """Where a way up ends that has come to a span; None where it goes on."""
        if one.kind == "agent":
            return _Way(self._trace.name(one.span_id), is_agent=True)
        if one.parent_id is None:
            return _Way(self._trace.name(one.span_id if one.kind == "other" else "main"), is_root=True)
        if one.is_remote and one.parent_id not in self._known:
            return _Way(self._trace.name(one.span_id))
        return None

    def _home(self, one: Known) -> str:
        """The agent of a call or tool. What is stored holds until the way up is there."""
        if one.parent_id is None:
            return self._trace.name("main")
        return self._way(one.parent_id).home or one.home or self._trace.name(one.parent_id)

    def _is_call(self, one: Known) -> bool:
        return one.kind == "call" and one.span_id not in self._wrappers and not one.is_emptied

    # --- Events of one span -------------------------------------------------------------------------------

    def _episode(self) -> Iterator[Part]:
        trace, stored = self._trace, self._trace.episode
        is_open = stored is None or stored.phase == "start"
        roots = [span for span in self._fresh.values() if span.parent_id is None]
        failed = [span for span in roots if span.is_ok is False and span.kind in ("agent", "other")]
        first = next(iter(self._fresh), "")
        if stored is None:
            yield Part(made(Episode, id=trace.episode_id, phase="start"), first)
        errors = [span.error for span in failed if span.error]
        if not is_open and stored is not None:
            errors += [stored.error] if stored.error else []
        told = ("failed" if failed else None, min(errors, default=None))
        is_new = failed and stored is not None and (stored.status, stored.error) != told
        if roots and (is_open or is_new):
            revision = None if is_open or stored is None else revision_of(stored) + 1
            end = {"phase": "end", "revision": revision, "status": told[0], "error": told[1]}
            yield Part(made(Episode, id=trace.episode_id, **end), roots[0].span_id)

    def _own(self, span: Span) -> Iterator[Item]:
        """What a span says alone, in its place."""
        yield from self._dropped(span)
        is_wrapper = span.span_id in self._wrappers
        is_placed = span.kind in ("call", "agent") and not is_wrapper
        home = self._trace.name(span.span_id)
        if span.kind == "call" and is_placed:
            home = self._home(self._known[span.span_id])
        for event, _ in self._alone[span.span_id]:
            if isinstance(event, Reward):
                target = event.target if is_placed else RewardTarget(episode_id=self._trace.episode_id)
                yield again(event, target=target, revision=None)
            elif isinstance(event, Call) and is_wrapper:
                yield self._gap_of_call(event, span.parent_id)
            elif is_placed:
                yield from self._in_place(event, span, home)
        if span.kind == "other" or (span.kind == "tool" and span.span_id not in self._executes):
            yield _gap(self._trace, span)
            if span.kind == "tool":
                self._notes.warn("a tool was carried out that no model call asked for so far")

    def _in_place(self, event: AnyEvent, span: Span, home: str) -> Iterator[Item]:
        if isinstance(event, (Call, ContextEdit)):
            yield again(event, agent_id=home, revision=None)
        elif isinstance(event, Agent) and span.kind == "agent":
            # The place of a root is certain; that of others is in the second half.
            nowhere = dict.fromkeys(Place._fields) | {"depth": None, "phase": "start"}
            yield again(event, revision=None, **(nowhere if span.parent_id is not None else {}))
        elif isinstance(event, ToolCall):
            yield again(event, revision=None, phase="start", result=None, meta=None)

    def _mains(self) -> Iterator[Part]:
        """The agents of calls that no agent's span stands above."""
        found: dict[str, str] = {}
        for one in self._known.values():
            if self._is_call(one):
                is_main = one.parent_id is None or self._way(one.parent_id).is_root
                home = self._home(one)
                if is_main and home not in self._trace.mains:
                    found.setdefault(home, one.span_id)
        for home, span_id in found.items():
            agent = made(Agent, id=home, episode_id=self._trace.episode_id, role="main", depth=0)
            yield Part(agent, span_id)

    def _dropped(self, span: Span) -> Iterator[Item]:
        number = span.rest.get("droppedAttributesCount", span.rest.get("dropped_attributes_count"))
        if span.kind == "other" or not isinstance(number, int) or number <= 0:
            return
        self._notes.warn("attributes were dropped before the export: raise OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT")
        is_call = span.kind == "call" and span.span_id not in self._wrappers
        yield made(
            Gap,
            id=self._trace.name(span.span_id, "dropped"),
            episode_id=self._trace.episode_id,
            call_id=self._trace.name(span.span_id) if is_call else None,
            cause=DROPPED,
            detail=f"{number} attributes of span {span.span_id} were dropped before the export",
        )

    def _gap_of_call(self, call: Call, parent_id: str | None) -> Item:
        """A call around another one, kept in a gap."""
        values = {name: one for name, one in values_of(call).items() if name not in ("agent_id", "revision")}
        span_id = call.id.removeprefix(f"{self._trace.episode_id}/")
        return made(
            Gap,
            id=self._trace.name(span_id, "span"),
            episode_id=self._trace.episode_id,
            at=call.started_at,
            cause=UNPLACED,
            detail="a model call around another one; `meta` holds it",
            meta=left(FORMAT, {"kind": "call", "parent_id": parent_id, "call": values}),
        )

    # --- What other spans say -----------------------------------------------------------------------------

    def _moved(self, one: Known) -> Iterator[Item]:
        """A stored call of another agent than the one it was posted with."""
        home = self._home(one)
        if home == one.home:
            return
        call_id = self._trace.name(one.span_id)
        call = self._trace.load("call", call_id)
        yield again(call, agent_id=home, revision=revision_of(call) + 1)
        for edit in self._trace.edits.values():
            if edit.after_call_id == call_id:
                yield again(edit, agent_id=home, revision=revision_of(edit) + 1)

    def _wrapped(self, one: Known) -> Iterator[Item]:
        """A stored call that turned out to be around another one."""
        call = self._trace.load("call", self._trace.name(one.span_id))
        assert isinstance(call, Call)
        yield self._gap_of_call(call, one.parent_id)
        yield _emptied(call, "agent_id", "started_at", "ended_at", "meta", purpose=WRAPPER)
        for use in one.uses:
            stored = self._trace.load("tool_call", use.id)
            assert isinstance(stored, ToolCall)
            for phase in ("start", "end") if stored.phase == "whole" else ("start",):
                yield _emptied(stored, "call_id", phase=phase)

    def _placed(self, one: Known) -> Iterator[Item]:
        """The second half of an agent: where it stands, once that is certain."""
        way = _Way() if one.parent_id is None else self._way(one.parent_id)
        if way.home is None:
            return
        above = next((above for above in self._above(one) if above.kind in ("tool", "agent")), None)
        tool = above if above is not None and above.kind == "tool" else None
        place = Place(
            None if way.is_root else way.home,
            "main" if way.is_root else "subagent" if way.is_agent else None,
            None if tool is None else self._asked_by(tool),
            None if tool is None or tool.tool is None else tool.tool.id,
        )
        if place == one.place:
            return
        agent_id = self._trace.name(one.span_id)
        revision = None if one.place is None else revision_of(self._trace.load("agent", agent_id)) + 1
        half = {"episode_id": self._trace.episode_id, "phase": "end", "revision": revision}
        yield made(Agent, id=agent_id, **half, **place._asdict())

    def _asked_by(self, tool: Known) -> str | None:
        """The call that asked for a tool span."""
        use = self._executes.get(tool.span_id)
        if use is not None:
            return self._trace.name(use.span_id)
        return None if tool.span_id in self._given_up else tool.asked_by

    # --- Tool calls ---------------------------------------------------------------------------------------

    @cached_property
    def _uses(self) -> list[Use]:
        """The tool uses of all answers."""
        return [use for one in self._known.values() if self._is_call(one) for use in one.uses]

    @cached_property
    def _wrapped_uses(self) -> list[Use]:
        return [use for span_id in self._wrappers for use in self._known[span_id].uses]

    @cached_property
    def _given_up(self) -> set[str]:
        """Tool spans that a call asked for which turned out to be around another one."""
        uses = {use.id for use in self._wrapped_uses}
        return {one.span_id for one in self._trace.known.values() if one.executes in uses}

    @cached_property
    def _executed_before(self) -> set[str]:
        return {one.executes for one in self._trace.known.values() if one.executes is not None}

    def _paired(self) -> Iterator[tuple[str, Use]]:
        """(a tool span, its tool use) of all that were not given one before."""
        free = [
            one
            for one in self._known.values()
            if one.kind == "tool" and (one.executes is None or one.span_id in self._given_up)
        ]
        waiting = [use for use in self._uses if use.id not in self._executed_before]
        for tool in sorted(free, key=lambda one: (one.started_at or 0, one.span_id)):
            use = self._use_of(tool, waiting)
            if use is not None:
                waiting.remove(use)
                yield tool.span_id, use
                continue
            caller = self._call_above(tool)
            if caller is None and tool.span_id in self._fresh:
                caller = self._call_before(tool)
            if caller is not None:
                yield tool.span_id, Use(self._trace.name(tool.span_id), caller.span_id, _NOT_SPOKEN)

    def _use_of(self, tool: Known, waiting: Sequence[Use]) -> Use | None:
        """The tool use that a span carries out: of its id, else of its name and arguments."""
        spoken = tool.tool
        if spoken is None:
            return None
        if spoken.id is not None:
            return self._latest([use for use in waiting if use.spoken.id == spoken.id], tool)
        said = (spoken.name, spoken.arguments)
        return self._latest([use for use in waiting if (use.spoken.name, use.spoken.arguments) == said], tool)

    def _latest(self, uses: Sequence[Use], tool: Known) -> Use | None:
        """Of several uses one of the same agent, and of those the latest before the tool by the clock."""
        if len(uses) < 2:
            return uses[0] if uses else None
        home = self._home(tool)
        near = [use for use in uses if self._home(self._known[use.span_id]) == home] or list(uses)
        before = [use for use in near if self._started(use) <= (tool.started_at or 0)] or near
        return max(before, key=lambda use: (self._started(use), use.id))

    def _started(self, use: Use) -> int:
        return self._known[use.span_id].started_at or 0

    def _call_above(self, tool: Known) -> Known | None:
        """The call that a tool lies in, where its answer may have asked for it."""
        above = next((one for one in self._above(tool) if self._is_call(one)), None)
        return above if above is not None and _may_ask(above, tool) else None

    def _call_before(self, tool: Known) -> Known | None:
        """The latest call of its agent before a tool, by the clock, whose answer may have asked for it."""
        home = self._home(tool)
        calls = [
            one
            for one in self._known.values()
            if self._is_call(one)
            and (one.started_at or 0) <= (tool.started_at or 0)
            and _may_ask(one, tool)
            and self._home(one) == home
        ]
        latest = max(calls, key=lambda one: (one.started_at or 0, one.span_id), default=None)
        if latest is not None:
            evidence = "the last call of its agent before it, by the clock"
            self._notes.infer("call of a tool", evidence=evidence)
        return latest

    def _executed(self, tool: Known, use: Use) -> Iterator[Item]:
        """What came of a tool use, as a span tells it."""
        trace = self._trace
        revision = revision_of(trace.load("tool_call", use.id)) + 1 if use.id in trace.told else None
        if tool.span_id in self._fresh:
            yield _execution(trace, self._fresh[tool.span_id], use, revision)
        elif tool.executes is not None:
            yield _execution(trace, self._executed_span(tool), use, revision)
        else:
            gap = trace.load("gap", trace.name(tool.span_id, "span"))
            assert isinstance(gap, Gap)
            yield _execution(trace, _span_of_gap(gap, tool, trace), use, revision)
            yield _emptied(gap, cause=SUPERSEDED)

    def _executed_span(self, tool: Known) -> Span:
        """A tool span, from the tool call that it was given to."""
        assert tool.executes is not None
        stored = self._trace.load("tool_call", tool.executes)
        assert isinstance(stored, ToolCall)
        return _span_of_tool_call(stored, tool, self._trace)

    def _lost(self) -> Iterator[Part]:
        """Tool spans whose tool calls are none any more."""
        for span_id in self._given_up - self._executes.keys():
            gap = _gap(self._trace, self._executed_span(self._known[span_id]))
            if gap.event.id in self._trace.superseded:
                stored = self._trace.load("gap", gap.event.id)
                gap = again(gap.event, revision=revision_of(stored) + 1)
            yield Part(gap, span_id)

    def _results(self) -> Iterator[Part]:
        """Results of tool uses that a later request carries and no span tells."""
        by_id: dict[str, list[Use]] = defaultdict(list)
        for use in self._uses:
            if use.spoken.id is not None:
                by_id[use.spoken.id].append(use)
        known_ends = {use.id for use in self._executes.values()} | self._executed_before | self._trace.told
        wanted = {
            use_id: found[0]
            for use_id, found in by_id.items()
            if len(found) == 1 and found[0].id not in known_ends
        }
        first: dict[str, tuple[tuple[int, str], Any]] = {}
        for teller, use_id, result in self._told(wanted):
            key = (teller.started_at or 0, teller.span_id)
            if use_id not in first or key < first[use_id][0]:
                first[use_id] = (key, result)
        for use_id, ((_, span_id), result) in first.items():
            yield Part(self._told_result(wanted[use_id], result), span_id)

    def _told(self, wanted: dict[str, Use]) -> Iterator[tuple[Known, str, Any]]:
        """(the call that tells it, id of the tool use, result) of those that are wanted."""
        for use in self._wrapped_uses:
            # The call around it was told first.
            if use.id in self._trace.told and use.spoken.id in wanted:
                stored = self._trace.load("tool_call", use.id)
                assert isinstance(stored, ToolCall)
                yield self._known[use.span_id], use.spoken.id, stored.result
        asked = {use.spoken.id for use in wanted.values() if use.span_id in self._fresh}
        for one in self._known.values():
            request: Any = None
            if one.span_id in self._fresh and one.kind == "call":
                request = self._fresh[one.span_id].exchange.request
            elif one.told & asked:
                request = self._stored_request(one)
            for use_id, result in results_in(request):
                if use_id in wanted and wanted[use_id].span_id != one.span_id:
                    yield one, use_id, result

    def _stored_request(self, one: Known) -> Any:
        if one.is_gap:
            return request_of(record_of(self._trace.load("gap", self._trace.name(one.span_id, "span")).meta))
        call = self._trace.load("call", self._trace.name(one.span_id))
        assert isinstance(call, Call)
        return None if call.request is None else exact.loads(call.request)

    def _told_result(self, use: Use, result: Any) -> Item:
        return made(
            ToolCall,
            id=use.id,
            episode_id=self._trace.episode_id,
            phase="end",
            call_id=self._trace.name(use.span_id),
            result=None if result is None else raw(result),
            meta=left(FORMAT, {TOLD: True}),
        )


def _may_ask(call: Known, tool: Known) -> bool:
    """Whether a call may have asked for a tool that none of its tool uses names, as far as it is recorded."""
    is_named = tool.tool is not None and tool.tool.id is not None
    return not (call.has_answer and (is_named or call.uses))


# --- Events that stand for a span -------------------------------------------------------------------------


def _emptied(event: AnyEvent, *kept: str, **fields: Any) -> Item:
    """An event that is stored and should not be there, without what it said."""
    names = {"id", "episode_id", *kept} & event.model_fields_set
    rest = {name: getattr(event, name) for name in names}
    return made(type(event), **rest, revision=revision_of(event) + 1, **fields)


def _gap(trace: Trace, span: Span) -> Item:
    """A span that has no place in the graph, kept in a gap."""
    is_tool = span.kind == "tool"
    answers = [[one.message, one.finish_reason] for one in span.exchange.answers]
    said = {"request": span.exchange.request, "answers": answers} if answers or span.exchange.request else {}
    told = {
        "kind": span.kind,
        "parent_id": span.parent_id,
        "flags": span.rest.get("flags"),
        "name": span.name,
        "ended_at": span.ended_at,
        "is_ok": False if span.is_ok is False else None,
        "error": span.error,
        "model": span.model if span.kind != "tool" else None,
        "tool": [*_tool_fields(spoken_of(span)).values()] if is_tool else None,
        "result": span.result,
        "rest": {name: one for name, one in span.rest.items() if name != "parent_id"}
        | span.exchange.rest
        | said,
    }
    what = (
        "no model call asked for this tool so far" if is_tool else "it is no agent, model call or tool call"
    )
    return made(
        Gap,
        id=trace.name(span.span_id, "span"),
        episode_id=trace.episode_id,
        at=span.started_at,
        cause=LOST_TOOL if is_tool else UNPLACED,
        detail=f"span {span.span_id}: {what}; `meta` holds it",
        meta=left(FORMAT, {name: one for name, one in told.items() if one not in (None, {})}),
    )


def _span_of_gap(gap: Gap, tool: Known, trace: Trace) -> Span:
    """The tool span that a gap keeps."""
    record = record_of(gap.meta)
    return _tool_span(
        tool,
        trace,
        record.get("rest", {}),
        started_at=gap.at,
        ended_at=record.get("ended_at"),
        is_ok=record.get("is_ok"),
        error=record.get("error"),
        result=record.get("result"),
    )


def _span_of_tool_call(call: ToolCall, tool: Known, trace: Trace) -> Span:
    """The tool span that a tool call was made of."""
    record = record_of(call.meta)
    rest = {name: one for name, one in record.items() if name not in ("span_id", "executed")}
    return _tool_span(
        tool,
        trace,
        rest,
        started_at=call.started_at,
        ended_at=call.ended_at,
        is_ok=False if call.status == "failed" else None,
        error=call.error,
        result=call.result,
    )


def _tool_span(tool: Known, trace: Trace, rest: dict[str, Any], **said: Any) -> Span:
    assert tool.tool is not None
    parent = {"parent_id": tool.parent_id} if tool.parent_id else {}
    return Span(
        trace_id=trace.id,
        span_id=tool.span_id,
        kind="tool",
        size=0,
        place="",
        parent_id=tool.parent_id,
        name=tool.tool.name,
        tool=tool.tool,
        rest=parent | rest,
        **said,
    )


def _execution(trace: Trace, span: Span, use: Use, revision: int | None) -> Item:
    """The second half of a tool call; all of it, where no answer speaks of it."""
    spoken, is_spoken = spoken_of(span), use.spoken is not _NOT_SPOKEN
    beside = {"span_id": span.span_id} | span.rest
    if is_spoken and spoken != use.spoken:
        beside["executed"] = [*_tool_fields(spoken).values()]
    status = "failed" if span.is_ok is False else None if span.ended_at is None else "ok"
    return made(
        ToolCall,
        id=use.id,
        episode_id=trace.episode_id,
        phase="end" if is_spoken else "whole",
        call_id=trace.name(use.span_id),
        revision=revision,
        **({} if is_spoken else _tool_fields(spoken)),
        result=None if span.result is None else raw(span.result),
        started_at=span.started_at,
        ended_at=span.ended_at,
        status=status,
        error=span.error,
        meta=left(FORMAT, beside),
    )


def _tool_fields(spoken: Spoken) -> dict[str, str | None]:
    return {"tool_call_id": spoken.id, "name": spoken.name, "arguments": spoken.arguments}
