"""Recorded tool calls -> which of them answers a tool that would run again.

A tool's name, its arguments by value, and what the user has told it meanwhile (`input_responses`, of a tool
that asks and is called again) must be equal; where the model's own id of the use is given, that too, unless
no use was recorded under it: a model that samples again draws ids anew. Equal ones are told apart by how
often they came, as calls of models are: in the order of the calls that asked for them, those of one answer
in the order in which it names them.

What came back is what the recorded tool call says. Where none was recorded, it is what the next call of the
same agent was shown under that id.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tracestore.errors import TracestoreError
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.messages import ToolUse, result_ids, tool_uses
from tracestore.graph.model import CompletionKey, Graph
from tracestore.graph.spans import elements, first_byte, members
from tracestore.replay.differences import Difference, first_difference, shared
from tracestore.replay.tape import MAX_MISSED, MAX_RUNS, NotRecorded, NotReplayable, as_asked
from tracestore.wire.base import Raw
from tracestore.wire.canonical import canonical
from tracestore.wire.events import AnyEvent
from tracestore.wire.tool_call import ToolCall

_REDACTED = re.compile(rb"\[redacted:[a-z0-9_-]{1,40}\]")
"""What stands in the place of text that a rule has taken out (`store.rules`)."""


class NotARun(TracestoreError):
    """This does not say which tool runs with what."""


@dataclass(frozen=True)
class AskedTool:
    """A tool that would run."""

    name: str
    arguments: bytes
    """Canonical JSON: see `canonical_arguments`."""
    tool_call_id: str | None = None
    """None: it does not say which use it executes."""
    input_responses: bytes | None = None
    """Canonical JSON of what the user answered to what the tool asked; None: nothing."""

    @property
    def key(self) -> tuple[str, bytes, bytes | None]:
        """Equal for runs that the same recorded result may belong to."""
        return self.name, self.arguments, self.input_responses

    def value(self, *, with_id: bool) -> dict[str, Any]:
        """What is compared, for people, with what most often differs first."""
        responses = None if self.input_responses is None else Raw(self.input_responses).value()
        value = {"name": self.name, "arguments": Raw(self.arguments).value(), "input_responses": responses}
        return value | ({"tool_call_id": self.tool_call_id} if with_id else {})


def asked_tool(
    name: Any, arguments: Raw | None, *, tool_call_id: Any = None, input_responses: Raw | None = None
) -> AskedTool:
    """A run as it is asked for over the wire.

    Args:
        arguments: a JSON object, or a JSON string with the argument text as the model sampled it.

    Raises:
        NotARun: the name or the id is no text.
    """
    if not isinstance(name, str) or not name:
        raise NotARun(hint="name says which tool runs")
    if not isinstance(tool_call_id, str | None):
        raise NotARun(name=name, hint="tool_call_id is the model's own id of the use, a text")
    text = None if arguments is None else bytes(arguments).decode("utf-8")
    if arguments is not None and first_byte(arguments) == b'"':
        text = arguments.value()
    return AskedTool(name, canonical_arguments(text), tool_call_id, canonical_responses(input_responses))


def canonical_arguments(text: str | None) -> bytes:
    """Argument text -> canonical JSON of its value; of the text itself where it is no JSON (code, a path).

    No text at all is {}: SDKs write no arguments both ways.
    """
    if text is None or not text.strip():
        return b"{}"
    try:
        return canonical(text.encode("utf-8"))
    except (ValueError, RecursionError):
        return canonical(json.dumps(text).encode("ascii"))


def canonical_responses(responses: Raw | None) -> bytes | None:
    """Canonical JSON; None where nothing was answered."""
    found = None if responses is None else canonical(bytes(responses))
    return None if found in (b"null", b"{}") else found


@dataclass(frozen=True)
class RecordedTool:
    """A tool call that can be asked for again."""

    agent_names: tuple[str | None, ...]
    """What a harness may call its agent, the id first."""
    run: ToolCall
    """As it was recorded; of a use whose run nobody recorded, what the messages say of it."""
    is_shown: bool = False
    """What came back is known by what the model was shown alone."""

    @property
    def id(self) -> str:
        """Of the tool call's event, or made of the use's place."""
        return self.run.id

    @cached_property
    def asked(self) -> AskedTool:
        """What is compared with a run that asks."""
        return AskedTool(
            self.run.name or "",
            canonical_arguments(self.run.arguments),
            self.run.tool_call_id,
            canonical_responses(_said(self.run, "input_responses")),
        )

    @property
    def num_bytes(self) -> int:
        """Of its texts."""
        run = self.run
        texts = (run.name, run.arguments, run.result, run.error, run.meta)
        return len(self.asked.arguments) + sum(len(text) for text in texts if text is not None)

    def outcome(self) -> dict[str, Any]:
        """What came back: `result` (a span, or None where it failed), `status`, `error`, `exit_status`.

        Raises:
            NotReplayable: it was not recorded, not as JSON, never came, or was redacted since.
        """
        run = self.run
        for text in (run.result, None if run.error is None else run.error.encode("utf-8", "surrogatepass")):
            if text is not None and _REDACTED.search(text) is not None:
                raise NotReplayable(tool_call=run.id, hint="its result was redacted since it was recorded")
        if _said(run, "result_is_repr") == b"true":
            raise NotReplayable(
                tool_call=run.id,
                hint="its result was no JSON, and was recorded by its repr: let it give JSON",
            )
        if run.status == "cancelled" and run.result is None:
            raise NotReplayable(
                tool_call=run.id, hint="it was cancelled when it was recorded: nothing came back"
            )
        result = run.result
        if result is None and _said(run, "result_is_none") == b"true":
            result = Raw(b"null")
        if result is None and run.status not in ("failed", "timeout"):
            raise NotReplayable(tool_call=run.id, hint="its result was not recorded")
        return {
            "result": result,
            "status": run.status,
            "error": run.error,
            "exit_status": run.exit_status,
        }


@dataclass(frozen=True)
class PlayedTool:
    """What answers a run."""

    recorded: RecordedTool
    occurrence: int
    """How many equal ones were answered before it, in this run of the harness."""
    by_arrival: bool
    """Several agents ran this, and the one that asks does not say which it is."""


@dataclass
class _Run:
    """How far one run of a harness has come."""

    used: set[str] = field(default_factory=set)
    missed: list[dict[str, Any]] = field(default_factory=list)


class ToolTape:
    """The tool calls of some episodes, in the order in which they were asked for."""

    def __init__(self, tools: Iterable[RecordedTool]) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()
        self._take(tools)

    def _take(self, tools: Iterable[RecordedTool]) -> None:
        self.tools = tuple(tools)
        self._by_key: dict[tuple[str, bytes, bytes | None], list[RecordedTool]] = defaultdict(list)
        for one in self.tools:
            self._by_key[one.asked.key].append(one)
        self._use_ids = {one.run.tool_call_id for one in self.tools}
        self.num_bytes = sum(one.num_bytes for one in self.tools)
        """Of what was recorded of them."""

    @property
    def names(self) -> list[str]:
        """Of the tools that ran, in that order."""
        return list(dict.fromkeys(one.run.name for one in self.tools if one.run.name))

    def answer(self, asked: AskedTool, *, run: str = "", agent: str | None = None) -> PlayedTool:
        """The recorded tool call whose result answers, which is then used up for this run of the harness.

        Raises:
            NotRecorded: with the nearest recorded one and the first difference.
            NotReplayable: see `RecordedTool.outcome`; it is used up all the same.
        """
        with self._lock:
            place = self._run(run)
            if asked.tool_call_id not in self._use_ids:
                asked = replace(asked, tool_call_id=None)
            try:
                found = self._next(place, asked, agent)
                place.used.add(found.id)
                found.outcome()
            except (NotRecorded, NotReplayable) as error:
                self._miss(place, asked, error)
                raise
            equal = self._by_key[asked.key]
            return PlayedTool(
                found,
                occurrence=sum(one.id in place.used for one in equal) - 1,
                by_arrival=agent is None
                and asked.tool_call_id is None
                and len({one.agent_names for one in equal}) > 1,
            )

    def rewind(self, run: str = "") -> None:
        """Let a run begin again."""
        with self._lock:
            self._runs.pop(run, None)

    def refresh(self, tools: Iterable[RecordedTool]) -> None:
        """Know what is recorded now, and nothing that is gone; runs go on where they stand."""
        known = tuple(tools)
        with self._lock:
            self._take(known)

    def without_calls(self) -> ToolTape:
        """How far the runs have come, for a tape that is read again when it is asked."""
        found = ToolTape(())
        found._runs, found._lock = self._runs, self._lock
        return found

    def status(self, run: str = "") -> dict[str, Any]:
        """How many tool calls there are, how many of them a run was given, and what it missed."""
        with self._lock:
            place = self._runs.get(run, _Run())
            answered = sum(one.id in place.used for one in self.tools)
            return {"calls": len(self.tools), "answered": answered, "missed": list(place.missed)}

    def _run(self, name: str) -> _Run:
        run = self._runs.setdefault(name, _Run())
        self._runs.move_to_end(name)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return run

    def _next(self, place: _Run, asked: AskedTool, agent: str | None) -> RecordedTool:
        equal = self._by_key.get(asked.key, [])
        own = [one for one in equal if agent is None or agent in one.agent_names]
        if asked.tool_call_id is None:
            # A run that was recorded without its use stands beside that use: it is one run, not two.
            of_use = [one for one in own if not one.is_shown] or own
        else:
            of_use = [one for one in own if one.run.tool_call_id == asked.tool_call_id]
            # Where the recording does not know which use a run was of, any use may be it.
            of_use = of_use or [one for one in own if one.run.tool_call_id is None]
        found = next((one for one in of_use if one.id not in place.used), None)
        if found is None:
            raise self._missing(asked, agent, equal, of_use)
        return found

    @staticmethod
    def _miss(place: _Run, asked: AskedTool, error: TracestoreError) -> None:
        if len(place.missed) < MAX_MISSED:
            told = {name: value for name, value in error.values.items() if value is not None}
            place.missed.append({"after": len(place.used), "tool": asked.name, **told, "hint": error.hint})

    def _missing(
        self,
        asked: AskedTool,
        agent: str | None,
        equal: Sequence[RecordedTool],
        of_use: Sequence[RecordedTool],
    ) -> NotRecorded:
        if of_use:
            return NotRecorded(
                tool=asked.name,
                recorded_times=len(of_use),
                hint="all its recorded results were given: does the harness run it once more than it did, or"
                " does a second run need a name of its own (X-Tracestore-Run)?",
            )
        if agent is not None and equal and not any(agent in one.agent_names for one in equal):
            return NotRecorded(
                tool=asked.name,
                agent=agent,
                recorded_agents=sorted({one.agent_names[0] or "" for one in equal}),
                hint="other agents ran this, this one did not: is it named as when it was recorded?",
            )
        near = self.nearest(asked)
        if near is None:
            return NotRecorded(tool=asked.name, recorded_tools=self.names, hint="no such tool was recorded")
        recorded, difference = near
        return NotRecorded(
            tool=asked.name,
            nearest_tool_call=recorded.id,
            nearest_agent=recorded.agent_names[0],
            difference=None if difference is None else difference.told(),
            hint="the harness runs what it did not run when it was recorded",
        )

    def nearest(self, asked: AskedTool) -> tuple[RecordedTool, Difference | None] | None:
        """The recorded run of this tool that is most like it, and where they differ first."""
        same = [one for one in self.tools if one.run.name == asked.name]
        if not same:
            return None

        def nearness(one: RecordedTool) -> tuple[bool, bool, bool, int, int]:
            mine = one.asked
            return (
                mine.arguments == asked.arguments,
                mine.tool_call_id == asked.tool_call_id,
                (mine.input_responses is None) == (asked.input_responses is None),
                shared(mine.arguments, asked.arguments),
                shared(mine.input_responses or b"", asked.input_responses or b""),
            )

        nearest = max(same, key=nearness)
        with_id = asked.tool_call_id is not None
        return nearest, first_difference(nearest.asked.value(with_id=with_id), asked.value(with_id=with_id))


def _said(run: ToolCall, name: str) -> Raw | None:
    """A field of its `meta`, as posted."""
    if run.meta is None or first_byte(run.meta) != b"{":
        return None
    place = members(run.meta).get(name)
    return None if place is None else Raw(run.meta[slice(*place)])


# --- What an episode holds -------------------------------------------------------------------------------


_UseName = tuple[str, int, str | None]
"""Call, index of the completion, the model's own id."""


def recorded_tools(events: Sequence[AnyEvent]) -> list[RecordedTool]:
    """The tool calls of an episode, those that only its messages know included, in order.

    The order: of the calls, then of the completions, then as the answer names its uses, then as the events
    of one use came.
    """
    graph = build(events)
    order = {call.id: place for place, call in enumerate(as_asked(graph.calls.values(), events))}
    came = {event.id: place for place, event in enumerate(events) if event.kind == "tool_call"}
    uses = _uses(graph)
    runs = [*graph.tool_calls.values()]
    known = {_use_name(run) for run in runs}
    runs += [_of_use(graph, name, *use) for name, use in uses.items() if name not in known]
    shown = _shown(graph, uses, order)

    def place_of(run: ToolCall) -> tuple[int, ...]:
        use = uses.get(_use_name(run))
        places = [order.get(run.call_id), run.completion, use and use[0], came.get(run.id)]
        return tuple(len(events) if place is None else place for place in places)

    found = []
    for run in sorted(runs, key=place_of):
        name = _use_name(run)
        result = None if _has_outcome(run) else shown.get(name)
        filled = _filled(run, uses[name][1] if name in uses else None, result)
        found.append(RecordedTool(_agent_names(graph, run), filled, is_shown=result is not None))
    return found


def _use_name(run: ToolCall) -> _UseName:
    return run.call_id, run.completion, run.tool_call_id


def _uses(graph: Graph) -> dict[_UseName, tuple[int, ToolUse]]:
    """The uses of all answers by name, each with its place there; one without an id has no name."""
    found: dict[_UseName, tuple[int, ToolUse]] = {}
    for key, completion in graph.completions.items():
        call = graph.calls.get(key[0])
        uses = () if call is None else tool_uses(completion.message, call.dialect)
        for place, use in enumerate(uses):
            if use.id is not None:
                found.setdefault((*key, use.id), (place, use))
    return found


def _of_use(graph: Graph, name: _UseName, place: int, use: ToolUse) -> ToolCall:
    """A use whose run nobody recorded."""
    call_id, completion, _ = name
    return ToolCall(
        id=f"{call_id}/{completion}/{place}",
        episode_id=graph.calls[call_id].episode_id,
        call_id=call_id,
        completion=completion,
        tool_call_id=use.id,
    )


def _has_outcome(run: ToolCall) -> bool:
    return run.result is not None or run.status is not None or run.error is not None


def _filled(run: ToolCall, use: ToolUse | None, result: ToolResult | None) -> ToolCall:
    """A tool call with what the messages say of it where it says nothing itself."""
    more: dict[str, Any] = {}
    if use is not None:
        more["name"] = run.name or use.name
        more["arguments"] = use.arguments if run.arguments is None else run.arguments
    if result is not None:
        more |= {"result": result.content, "status": "failed" if result.is_error else "ok"}
    return run.model_copy(update=more) if more else run


def _agent_names(graph: Graph, run: ToolCall) -> tuple[str | None, ...]:
    call = graph.calls.get(run.call_id)
    if call is None:
        return (None,)
    agent = graph.agents.get(call.agent_id)
    return (
        call.agent_id,
        None if agent is None else agent.name,
        call.agent_id.removeprefix(f"{run.episode_id}/"),
    )


# --- What calls were shown ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolResult:
    """What a message shows of a tool call."""

    tool_call_id: str
    content: Raw
    is_error: bool
    """As Anthropic's blocks say it; the other dialects do not."""


def _shown(
    graph: Graph, uses: Mapping[_UseName, object], order: Mapping[str, int]
) -> dict[_UseName, ToolResult]:
    """Use -> the first result that a call was shown after the answer with that use.

    Ids may repeat from answer to answer, so a result is that of the last answer before it with this id.
    """
    ids: dict[CompletionKey, list[str | None]] = defaultdict(list)
    for call_id, completion, use_id in uses:
        ids[call_id, completion].append(use_id)
    found: dict[_UseName, ToolResult] = {}
    seen: set[bytes] = set()
    for call_id in sorted(graph.calls, key=lambda one: order.get(one, len(order))):
        of_answer: dict[str | None, CompletionKey] = {}
        for message in context(graph, call_id):
            if message.author is not None:
                of_answer |= dict.fromkeys(ids.get(message.author, ()), message.author)
            elif message.node is not None and message.node not in seen:
                seen.add(message.node)
                for result in results_in(message.raw):
                    if result.tool_call_id in of_answer:
                        name = (*of_answer[result.tool_call_id], result.tool_call_id)
                        found.setdefault(name, result)
    return found


def results_in(message: Raw) -> Iterator[ToolResult]:
    """The results that a message carries, in any dialect: what it says, as it stands there."""
    if first_byte(message) != b"{" or not result_ids(message):
        return
    for part in (bytes(message), *_parts(message)):
        fields = members(part)
        texts = {name: Raw(part[start:end]) for name, (start, end) in fields.items()}
        content = texts.get("output", texts.get("content"))
        ids = [texts[name].value() for name in ("tool_call_id", "tool_use_id", "call_id") if name in texts]
        if content is not None and ids and isinstance(ids[0], str):
            yield ToolResult(ids[0], content, is_error=texts.get("is_error") == b"true")


def _parts(message: Raw) -> Iterator[bytes]:
    """The blocks of its content."""
    place = members(message).get("content")
    if place is not None and message[place[0] : place[0] + 1] == b"[":
        array = bytes(message[slice(*place)])
        yield from (array[start:end] for start, end in elements(array) if array[start : start + 1] == b"{")
