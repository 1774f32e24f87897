"""Spans of a trace -> the agents, calls and tool calls of an episode.

The core that OTLP, Phoenix, Langfuse, LangSmith and ATOF share: each maps its records to `Span`, and nothing
here knows a format.

- A trace is an episode. A span of kind `agent` is an agent; spans without one above them belong to the agent
  `main`. A call belongs to the nearest agent above it, and so does a tool call.
- A span whose parent is not in the trace belongs to the agent that the missing one would be, of which no
  event is made: the graph shows it as not recorded. Spans are placed by their ids alone, in whatever order
  they come, and a trace may be read in parts: what a part says stays, or a higher revision replaces it.
- A call with another call below it, no tool or agent between, is a wrapper (an SDK around an HTTP client):
  the inner one is the call.
  Usage that wrappers, agents and chains sum up is never added to a call.
- A tool use of an answer is a tool call. Its execution is the tool span with the same call id, else the only
  one of that name and arguments; its result may also stand in a later request. A tool span that matches no
  answer (answers are not recorded by default) goes to the call above it, else to its agent's last call before
  it by the clock whose answer, as far as it is recorded, may have asked for it, which is noted. With neither
  it is kept in the episode's `meta`, with a warning: a gap, once told, would stay when the call comes.
- `ordinal` stays unknown: spans have clocks and no order. Requests are whole; the graph links them by prefix.
- Other spans (chains, retrievers, embeddings) make no event: a root's fields go into the episode's `meta`,
  the others are noted as not understood, verbatim. A trace of nothing else is no episode.
- Everything that depends on other spans carries as revision the number of values in the trace.
- Two things that were told of a part stay although the whole says otherwise: the call that a wrapper seemed
  to be while no call below it had come, and the tool call of a tool span that was given by the clock to
  another call than the one that asked for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tracestore.importers import carried
from tracestore.importers.chat_shapes import Answer, Exchange, Spoken, results_in, uses_of
from tracestore.importers.guard import WRONG_SHAPE, guarded, known, problem_of
from tracestore.importers.items import Item, content_id, left, made, raw, safe_id
from tracestore.importers.notes import Notes
from tracestore.wire.agent import Agent
from tracestore.wire.call import Call, CallError, Usage
from tracestore.wire.completion import CompletionBody
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.reward import Reward, RewardTarget
from tracestore.wire.tool_call import ToolCall

_NO_FIELDS = frozenset({"events", "episode_id", "use", "without"})
"""Of what our writer puts beside a span: what is no field of its event."""
NOTHING_SAID = Exchange()
Kind = Literal["call", "tool", "agent", "other"]


@dataclass(frozen=True)
class Score:
    """A judgement of a span, or of its trace."""

    name: str
    value: float
    id: str | None = None
    scorer: str | None = None
    at: int | None = None
    is_of_trace: bool = False
    rest: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """One record of a trace, whatever tool wrote it."""

    trace_id: str
    span_id: str
    kind: Kind
    size: int
    """Number of values in its record: one that was completed later has more."""
    place: str
    """Where it stands, for people."""
    parent_id: str | None = None
    name: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    first_token_at: int | None = None
    is_ok: bool | None = None
    error: str | None = None
    model: str | None = None
    provider_id: str | None = None
    exchange: Exchange = NOTHING_SAID
    """What a call read and said; of an agent, what it was asked and what it returned."""
    usage: Usage | None = None
    purpose: str | None = None
    is_compacted: bool = False
    """Whether the conversation was compacted before it."""
    compaction_id: str | None = None
    """Of that compaction, where another span might turn out to be the first after it."""
    tool: Spoken | None = None
    result: Any = None
    scores: tuple[Score, ...] = ()
    own: dict[str, Any] = field(default_factory=dict)
    """What our writer put beside it, see `carried`."""
    rest: dict[str, Any] = field(default_factory=dict)
    """Fields that nothing above stands for."""


def size(value: Any) -> int:
    """Number of values in a JSON value."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(size, inside))


def events(spans: Iterable[Span], *, format: str, notes: Notes) -> Iterator[Item]:  # noqa: A002
    """The events of one trace.

    Args:
        spans: all that is known of the trace, in any order; of several with one id the fullest holds.
        format: under which name `meta` keeps what has no place.
    """
    yield from _Trace(spans, format, notes).items()


class _Trace:
    def __init__(self, spans: Iterable[Span], name: str, notes: Notes) -> None:
        self._format = name
        self._notes = notes
        self._spans = self._distinct(spans)
        first = next(iter(self._spans.values()))
        own = [span.own.get("episode_id") for span in self._spans.values()]
        self._episode_id = next((one for one in own if isinstance(one, str)), safe_id(first.trace_id))
        self._revision = sum(span.size for span in self._spans.values())
        self._kinds = self._without_wrappers()
        self._calls = [span for span in self._in_time() if self._kinds[span.span_id] == "call"]
        self._uses = list(self._tool_uses())

    # Which span is what

    def _distinct(self, spans: Iterable[Span]) -> dict[str, Span]:
        """Spans by id. A span that was exported again is one span."""
        found: dict[str, Span] = {}
        for span in sorted(spans, key=lambda span: (-span.size, content_id("", shown(span)))):
            kept = found.setdefault(span.span_id, span)
            if kept is not span and shown(kept) != shown(span):
                self._notes.leftover(f"{self._format}: superseded span", shown(span), at=span.place)
        return dict(sorted(found.items()))

    def _without_wrappers(self) -> dict[str, Kind]:
        kinds: dict[str, Kind] = {span_id: span.kind for span_id, span in self._spans.items()}
        for span in self._spans.values():
            if span.kind == "call":
                for above in self._above(span):
                    if above.kind in ("tool", "agent"):
                        break  # what a tool or a sub-agent asks is a call of its own
                    if above.kind == "call" and kinds[above.span_id] == "call":
                        kinds[above.span_id] = "other"
                        self._notes.infer("wrapper of a call", evidence="another model call is below it")
        return kinds

    def _in_time(self) -> list[Span]:
        # Only for what is inferred by the clock, and for the order of the output.
        return sorted(self._spans.values(), key=lambda span: (span.started_at or 0, span.span_id))

    def _above(self, span: Span) -> Iterator[Span]:
        """The spans above, the nearest first, as far as they are known."""
        seen = {span.span_id}
        parent = self._spans.get(span.parent_id or "")
        while parent is not None and parent.span_id not in seen:
            seen.add(parent.span_id)
            yield parent
            parent = self._spans.get(parent.parent_id or "")

    @cached_property
    def _places(self) -> dict[str, tuple[Span | None, str | None]]:
        """Of each span: (the nearest agent above it, the parent above it that has not come)."""
        found: dict[str, tuple[Span | None, str | None]] = {}
        for span in self._spans.values():
            waiting = [span]
            while waiting[-1].span_id not in found:
                parent = self._spans.get(waiting[-1].parent_id or "")
                if parent is None:
                    found[waiting[-1].span_id] = (None, waiting[-1].parent_id)
                elif len(waiting) > len(self._spans):
                    found[waiting[-1].span_id] = (None, None)  # they go round in a circle
                else:
                    waiting.append(parent)
            while len(waiting) > 1:
                above = waiting.pop()
                agent, missing = found[above.span_id]
                is_agent = self._kinds[above.span_id] == "agent"
                found.setdefault(waiting[-1].span_id, (above if is_agent else agent, missing))
        return found

    def _missing(self, span: Span) -> str | None:
        """The parent that has not come, above a span or above those above it."""
        return self._places[span.span_id][1]

    # Ids

    def _id(self, *parts: str) -> str:
        return safe_id("/".join((self._episode_id, *parts)))

    def _own_id(self, span: Span) -> str:
        own = span.own.get("id")
        return own if isinstance(own, str) else self._id(span.span_id)

    def _home(self, span: Span) -> str:
        """The agent that a span belongs to."""
        agent, missing = self._places[span.span_id]
        if agent is not None:
            return self._own_id(agent)
        return self._id("main") if missing is None else self._id(missing)

    def _scope(self, span: Span) -> tuple[str | None, str | None]:
        """The same for spans of one agent; below a missing parent, for those below the same."""
        agent, missing = self._places[span.span_id]
        return (None, missing) if agent is None else (agent.span_id, None)

    # Events

    def items(self) -> Iterator[Item]:
        carry = [one for span in self._spans.values() for one in self._carried(span)]
        if not carry and set(self._kinds.values()) == {"other"}:
            for span in self._spans.values():
                self._note(span)
            return
        if not any(item.event.kind == "episode" for item in carry):
            yield self._episode()
        yield from carry
        yield from self._main()
        makers = {"agent": self._agent, "call": self._call, "other": self._other}
        for span in self._lost:
            self._notes.warn("a tool was carried out that no recorded model call asked for")
            if any(item.event.kind == "episode" for item in carry):
                self._notes.leftover(f"{self._format}: tool without a call", shown(span), at=span.place)
        for span in self._in_time():
            kind = self._kinds[span.span_id]
            try:
                own = () if kind == "tool" else makers[kind](span)
                yield from [*own, *self._scores(span)]
            except WRONG_SHAPE as error:
                self._notes.refuse(span.place, f"span {span.span_id}: {problem_of(error)}")
                self._notes.leftover(f"{self._format}: span that makes no event", shown(span), at=span.place)
        for use in self._uses:
            yield from guarded(self._tool_call(use), at=(use.span or use.call).place, notes=self._notes)

    @cached_property
    def _lost(self) -> list[Span]:
        """The tool spans that no call asked for."""
        found = {use.span.span_id for use in self._uses if use.span is not None}
        tools = (span for span in self._in_time() if self._kinds[span.span_id] == "tool")
        return [span for span in tools if span.span_id not in found]

    def _carried(self, span: Span) -> Iterator[Item]:
        return carried.events(span.own.get("events"), at=span.place, notes=self._notes)

    def _episode(self) -> Item:
        roots = [
            span
            for span in self._in_time()
            if span.parent_id is None and self._kinds[span.span_id] == "other"
        ]
        failed = any(span.is_ok is False for span in roots)
        return made(
            Episode,
            id=self._episode_id,
            revision=self._revision,
            status="failed" if failed else None,
            error=next((span.error for span in roots if span.error), None),
            meta=left(
                self._format,
                *map(shown, roots),
                *({"tool without a call": shown(one)} for one in self._lost),
            ),
        )

    def _main(self) -> Iterator[Item]:
        """The agent of the calls that no agent's span stands above."""
        places = [self._places[span.span_id] for span in self._calls]
        if (None, None) in places:
            yield made(Agent, id=self._id("main"), episode_id=self._episode_id, role="main", depth=0)
        for _ in {missing for agent, missing in places if agent is None and missing is not None}:
            self._note_orphan()

    def _note_orphan(self) -> None:
        self._notes.infer("orphan root", evidence="its parent span is not in the trace")

    def _agent(self, span: Span) -> Iterator[Item]:
        above = list(self._above(span))
        agents = [one for one in above if self._kinds[one.span_id] == "agent"]
        missing = self._missing(span)
        parent = self._own_id(agents[0]) if agents else None if missing is None else self._id(missing)
        if missing is not None and not agents:
            self._note_orphan()
        role = "subagent" if agents else "main" if missing is None else None
        tool = next((one for one in above if one.kind in ("tool", "agent")), None)
        spawn = self._spawn(tool) if tool is not None and tool.kind == "tool" else {}
        answers = span.exchange.answers
        request = span.exchange.request
        item = made(
            Agent,
            id=self._own_id(span),
            episode_id=self._episode_id,
            revision=None if span.own else self._revision,
            parent_agent_id=parent,
            **spawn,
            role=role,
            name=span.name,
            depth=len(agents) if missing is None else None,
            model=span.model,
            started_at=span.started_at,
            ended_at=span.ended_at,
            scope_prompt=None if request is None else raw(request),
            return_message=raw(answers[0].message) if answers else None,
            status=_status(span),
            error=span.error,
            meta=self._meta(span, span.exchange.rest, *({"answer": one.message} for one in answers[1:])),
        )
        yield self._completed(item, span)
        yield from self._compaction(span, self._own_id(span), None)

    def _spawn(self, tool: Span) -> dict[str, Any]:
        """Which call and tool call a sub-agent's tool span goes back to."""
        use = next((use for use in self._uses if use.span is tool), None)
        return {
            "spawned_by_call_id": None if use is None else self._own_id(use.call),
            "spawned_by_tool_call_id": tool.tool.id if tool.tool is not None else None,
        }

    def _call(self, span: Span) -> Iterator[Item]:
        exchange = span.exchange
        failed = span.is_ok is False
        error = CallError(message=span.error) if failed and span.error else None
        item = made(
            Call,
            id=self._own_id(span),
            episode_id=self._episode_id,
            revision=None if span.own else self._revision,
            agent_id=self._home(span),
            purpose=span.purpose,
            model=span.model,
            provider_id=span.provider_id,
            dialect=exchange.dialect,
            request=None if exchange.request is None else raw(exchange.request),
            completions=tuple(_body(answer) for answer in exchange.answers) or None,
            usage=span.usage,
            status="failed" if failed else "ok" if exchange.answers or span.is_ok else None,
            error=error,
            started_at=span.started_at,
            ended_at=span.ended_at,
            first_token_at=span.first_token_at,
            meta=self._meta(span, exchange.rest, {"error": span.error} if span.error and not error else None),
        )
        yield self._completed(item, span)
        yield from self._compaction(span, self._home(span), self._own_id(span))

    def _completed(self, item: Item, span: Span) -> Item:
        own = {name: one for name, one in span.own.items() if name not in _NO_FIELDS}
        return carried.completed(item, own, at=span.place, notes=self._notes)

    def _compaction(self, span: Span, agent_id: str, call_id: str | None) -> Iterator[Item]:
        if span.is_compacted and not span.own:
            yield made(
                ContextEdit,
                id=self._id(span.compaction_id or span.span_id, "compaction"),
                episode_id=self._episode_id,
                revision=self._revision,
                agent_id=agent_id,
                edit="compaction",
                after_call_id=call_id,
                status="accepted",
            )

    def _other(self, span: Span) -> Iterator[Item]:
        if (span.parent_id is not None or span.kind != "other") and not span.own:
            self._note(span)
        yield from ()

    def _note(self, span: Span) -> None:
        name = f"{self._format}: span that is no agent, call or tool"
        self._notes.leftover(name, shown(span), at=span.place)

    def _scores(self, span: Span) -> Iterator[Item]:
        # Of a span of our own writer the rewards stand among the events beside it.
        for place, score in enumerate(() if span.own else span.scores):
            kind = "other" if score.is_of_trace else self._kinds[span.span_id]
            target = known(
                RewardTarget,
                episode_id=self._episode_id,
                call_id=self._own_id(span) if kind == "call" else None,
                agent_id=self._own_id(span) if kind == "agent" else None,
            )
            yield made(
                Reward,
                id=self._id(score.id) if score.id else self._id(span.span_id, "score", str(place)),
                revision=self._revision,
                target=target,
                name=score.name,
                value=score.value,
                scorer=score.scorer,
                at=score.at,
                meta=left(self._format, score.rest),
            )

    def _meta(self, span: Span, *others: dict[str, Any] | None) -> Any:
        return left(self._format, span.rest, *others)

    # Tool calls

    def _tool_uses(self) -> Iterator[_Use]:
        """The tool uses of the answers, each with the span that carried it out, and those spans alone."""
        uses = [
            _Use(call, completion, place, spoken)
            for call in self._calls
            for completion, answer in enumerate(call.exchange.answers)
            for place, spoken in enumerate(uses_of(answer.message))
            if f"{completion}.{place}" not in call.own.get("without", ())
        ]
        free = [span for span in self._in_time() if self._kinds[span.span_id] == "tool"]
        for span in [span for span in free if "use" in span.own]:
            mine = (use for use in uses if (use.call.span_id, use.where) == (span.parent_id, span.own["use"]))
            if (named := next(mine, None)) is not None:
                named.span = span
                free.remove(span)
        for key in (_by_id, _by_name):
            for is_within_agent in (False, True):
                for use, span in self._pairs(uses, free, key, is_within_agent):
                    use.span = span
                    free.remove(span)
        yield from uses
        for span in free:
            call = self._caller(span)
            if call is not None:
                yield _Use(call, 0, None, span.tool or Spoken(None, span.name, None), span)

    def _pairs(
        self, uses: Sequence[_Use], spans: Sequence[Span], key: Any, is_within_agent: bool
    ) -> list[tuple[_Use, Span]]:
        """Tool uses and spans of one key that is unique in the trace, or within its agent."""
        open_uses: dict[Any, list[_Use]] = defaultdict(list)
        open_spans: dict[Any, list[Span]] = defaultdict(list)
        for use in uses:
            if use.span is None:
                open_uses[key(use.spoken), self._scope(use.call) if is_within_agent else None].append(use)
        for span in spans:
            if span.tool is not None and "use" not in span.own:
                open_spans[key(span.tool), self._scope(span) if is_within_agent else None].append(span)
        return [
            (few[0], open_spans[name][0])
            for name, few in open_uses.items()
            if name[0] is not None and len(few) == 1 == len(open_spans.get(name, ()))
        ]

    def _caller(self, span: Span) -> Span | None:
        """The call that a tool span without a tool use goes to."""
        above = next((one for one in self._above(span) if self._kinds[one.span_id] == "call"), None)
        if above is not None:
            return above
        before = [
            call
            for call in self._calls
            if self._scope(call) == self._scope(span)
            and (call.started_at or 0) <= (span.started_at or 0)
            and not self._would_show(call, span)
        ]
        if not before:
            return None
        self._notes.infer("call of a tool", evidence="the last call of its agent before it, by the clock")
        return before[-1]

    def _would_show(self, call: Span, tool: Span) -> bool:
        """Whether the answer of a call, had it asked for a tool span, would be known to say so."""
        answers = call.exchange.answers
        is_named = tool.tool is not None and tool.tool.id is not None
        return any(is_named or uses_of(answer.message) for answer in answers)

    def _tool_call(self, use: _Use) -> Iterator[Item]:
        span, spoken = use.span, use.spoken
        if use.place is not None and (span is None or not span.own):
            tool_id = safe_id(f"{self._own_id(use.call)}/tool/{use.where}")
        else:
            assert span is not None
            tool_id = self._own_id(span)
        said = span.tool if span is not None and span.tool is not None else spoken
        fields = {
            "id": tool_id,
            "episode_id": self._episode_id,
            "call_id": self._own_id(use.call),
            "completion": use.completion or None,
            "tool_call_id": spoken.id,
            "name": spoken.name,
            "arguments": spoken.arguments,
        }
        beside: dict[str, Any] = {}
        if span is not None:
            beside = {"span_id": span.span_id, "parent_id": span.parent_id} | span.rest
        if said != spoken:
            beside["executed"] = [said.id, said.name, said.arguments]
        item = made(
            ToolCall,
            **fields,
            revision=None if span is not None and span.own else self._revision,
            result=None if (told := self._told(use)) is None else raw(told),
            **(self._execution(span) if span is not None else {}),
            meta=left(self._format, beside),
        )
        yield self._completed(item, span) if span is not None else item

    def _told(self, use: _Use) -> Any:
        """The result of a tool use; None where none is recorded."""
        if use.span is not None and (use.span.result is not None or use.span.own):
            return use.span.result
        alike = sum(other.spoken.id == use.spoken.id for other in self._uses)
        found = self._results.get(use.spoken.id or "", [])
        return found[0] if found and alike == 1 else None

    @cached_property
    def _results(self) -> dict[str, list[Any]]:
        known: dict[str, list[Any]] = defaultdict(list)
        for call in self._calls:
            for use_id, result in results_in(call.exchange.request):
                known[use_id].append(result)
        return known

    def _execution(self, span: Span) -> dict[str, Any]:
        status = "failed" if span.is_ok is False else None if span.ended_at is None else "ok"
        return {
            "started_at": span.started_at,
            "ended_at": span.ended_at,
            "status": status,
            "error": span.error,
        }


@dataclass(eq=False)
class _Use:
    """A tool use of an answer, or a tool span of a call whose answer is not recorded."""

    call: Span
    completion: int
    place: int | None
    spoken: Spoken
    span: Span | None = None

    @property
    def where(self) -> str:
        return f"{self.completion}.{self.place}"


def _by_id(spoken: Spoken) -> Any:
    return spoken.id


def _by_name(spoken: Spoken) -> Any:
    return None if spoken.name is None else (spoken.name, spoken.arguments)


def _body(answer: Answer) -> CompletionBody:
    fields: dict[str, Any] = {}
    if answer.message is not None:
        fields["message"] = raw(answer.message)
    if answer.finish_reason is not None:
        fields["finish_reason"] = answer.finish_reason
    return CompletionBody(**fields)


def _status(span: Span) -> str | None:
    return {True: "ok", False: "failed", None: None}[span.is_ok]


def shown(span: Span) -> dict[str, Any]:
    """What a span says, for `meta` and for notes."""
    exchange = span.exchange
    known = {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "started_at": span.started_at,
        "ended_at": span.ended_at,
        "is_ok": span.is_ok,
        "error": span.error,
        "model": span.model,
        "provider_id": span.provider_id,
        "request": exchange.request,
        "answers": [[one.message, one.finish_reason] for one in exchange.answers],
        "usage": None if span.usage is None else span.usage.model_dump(exclude_none=True),
        "tool": None if span.tool is None else [span.tool.id, span.tool.name, span.tool.arguments],
        "result": span.result,
        "own": span.own,
    }
    shown = {name: value for name, value in known.items() if value not in (None, [], {})}
    return shown | exchange.rest | span.rest
