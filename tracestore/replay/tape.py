"""Recorded calls -> which of them answers a request: exact context, then the order in which it was asked.

Requests that are equal are told apart by how often they came: the first one gets the first recorded answer,
the second the second, and so on, so that N samples of one prompt stay N. An agent that says who it is gets
its own answers, whatever order the agents come in. One that does not, where several agents asked the same,
gets them in the order of arrival, and is told so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tracestore.errors import TracestoreError
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.merge import merge
from tracestore.graph.model import Graph
from tracestore.graph.spans import members
from tracestore.replay.differences import Difference, first_difference, shared
from tracestore.replay.keys import CONTEXT, Asked
from tracestore.wire.agent import Agent
from tracestore.wire.base import Raw
from tracestore.wire.call import Call, Dialect
from tracestore.wire.completion import CompletionFields
from tracestore.wire.events import AnyEvent

MAX_RUNS = 1_000
"""Runs whose places are remembered; the one that asked longest ago is forgotten first."""
MAX_MISSED = 100
_MAX_BODIES = 3
"""By which a recorded request is known, on average."""


class NotRecorded(TracestoreError):
    """This request was never recorded in the replayed episodes, or all its recorded answers were given."""

    status: ClassVar[int] = 409


class NotReplayable(TracestoreError):
    """The answer was recorded in a form that cannot be sent again."""

    status: ClassVar[int] = 409


@dataclass(frozen=True)
class Recorded:
    """A call that can be asked for again."""

    episode_id: str
    agent_name: str | None
    call: Call
    asked: Asked
    completions: tuple[CompletionFields, ...]
    sent: dict[tuple[bool, bool], bytes] = field(default_factory=dict, compare=False, repr=False)
    """Its answer as it was sent before, by (as a stream, with usage): runs ask for it again."""

    @property
    def agent_names(self) -> tuple[str | None, ...]:
        """What a harness may call its agent: its id, its name, or its name within the episode."""
        own = self.call.agent_id
        return own, self.agent_name, own.removeprefix(f"{self.episode_id}/")


@dataclass(frozen=True)
class Played:
    """What answers a request."""

    recorded: Recorded
    occurrence: int
    """How many equal requests were answered before it, by this run and agent."""
    by_arrival: bool
    """Several agents asked this, and the request does not say whose it is."""


@dataclass(frozen=True)
class Missing:
    """A request that has no recorded answer, or none left, when it was asked."""

    asked: Asked
    calls: tuple[Recorded, ...]
    """What was recorded then."""
    after: int
    """Calls that its run had been answered before."""
    error: NotRecorded | None
    """What is told of it; None: where it differs from the nearest call, which takes long to find."""


@dataclass(frozen=True)
class _Given:
    """`Played` of a call, which is looked up again: it may be gone since."""

    call_id: str
    occurrence: int
    by_arrival: bool


@dataclass
class _Run:
    """How far one run of a harness has come."""

    used: set[str] = field(default_factory=set)
    """Ids of calls."""
    last: dict[tuple[bytes, str | None, str | None], _Given] = field(default_factory=dict)
    """By key, agent and the client's id of the request, for a client that asks again."""
    first_unused: dict[tuple[bytes, str | None], int] = field(default_factory=dict)
    missed: list[dict[str, Any]] = field(default_factory=list)
    """What was asked and never recorded, the first MAX_MISSED of it."""


class Tape:
    """The calls of some episodes, in the order in which they were recorded."""

    def __init__(self, calls: Iterable[Recorded]) -> None:
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()
        known = tuple(calls)
        self._take(known, _by_key(known))

    def _take(self, calls: tuple[Recorded, ...], by_key: dict[bytes, list[Recorded]]) -> None:
        self.calls = calls
        self._by_key = by_key
        self._positions = {one.call.id: place for place, one in enumerate(self.calls)}
        self.num_bytes = sum(len(one.asked.body) for one in self.calls)
        """Of what was asked."""
        self._by_text: dict[tuple[Dialect, bytes], Asked] = {
            (one.asked.dialect, one.asked.body): one.asked for one in self.calls
        }

    def known(self, dialect: Dialect, text: bytes) -> Asked | None:
        """The request that was recorded, or asked before, with this very body; None where none was."""
        return self._by_text.get((dialect, text))

    def learn(self, dialect: Dialect, text: bytes, asked: Asked) -> None:
        """Know a recorded request by another body too: another run will send the same."""
        if asked.key in self._by_key and len(self._by_text) < _MAX_BODIES * len(self.calls):
            self._by_text[dialect, text] = asked

    def answer(
        self,
        asked: Asked,
        *,
        run: str = "",
        agent: str | None = None,
        is_retry: bool = False,
        request_id: str | None = None,
    ) -> Played:
        """The recorded answer of a request, which is then used up for this run.

        Args:
            run: name of the run of a harness; each has its own places.
            agent: id or name of the agent that asks; None: it does not say.
            is_retry: the client asks again for what it has asked before: the same answer, nothing used up.
            request_id: the client's own, under which it asks again; of several equal requests that wait for
                their answers at once it tells which one is meant. None: the last one is.

        Raises:
            NotRecorded: with the nearest recorded request and the first difference.
        """
        found = self.find(asked, run=run, agent=agent, is_retry=is_retry, request_id=request_id)
        if isinstance(found, Missing):
            raise self.told(found, run=run)
        return found

    def find(
        self,
        asked: Asked,
        *,
        run: str = "",
        agent: str | None = None,
        is_retry: bool = False,
        request_id: str | None = None,
    ) -> Played | Missing:
        """The same, soon: what has no answer is looked into by `told`, which no other run waits for."""
        with self._lock:
            place = self._run(run)
            calls = self._of_agent(asked.key, agent)
            is_again = is_retry or request_id is not None
            if is_again and (again := self._again(place, calls, asked.key, agent, request_id)) is not None:
                place.used.add(again.recorded.call.id)
                return again
            index = self._first_unused(place, asked.key, agent, calls)
            if index == len(calls):
                return Missing(asked, self.calls, len(place.used), self._given_or_of_others(asked, agent))
            found = calls[index]
            place.used.add(found.call.id)
            played = Played(
                found,
                occurrence=sum(one.call.id in place.used for one in calls) - 1,
                by_arrival=agent is None and len({one.call.agent_id for one in calls}) > 1,
            )
            given = _Given(found.call.id, played.occurrence, played.by_arrival)
            place.last[asked.key, agent, None] = place.last[asked.key, agent, request_id] = given
            return played

    def told(self, missing: Missing, *, run: str = "") -> NotRecorded:
        """What a run is told of a request that has no answer; it is counted as missed."""
        error = missing.error or _diverged(missing.asked, missing.calls)
        with self._lock:
            self._miss(self._run(run), error, after=missing.after)
        return error

    def position(self, recorded: Recorded) -> int:
        """How many calls were recorded before one; of one that is gone by now, all of them."""
        return self._positions.get(recorded.call.id, len(self._positions))

    @staticmethod
    def _again(
        run: _Run, calls: Sequence[Recorded], key: bytes, agent: str | None, request_id: str | None
    ) -> Played | None:
        """What this request was answered with before; None where it was not, or the call is gone since."""
        given = run.last.get((key, agent, request_id))
        if given is None:
            return None
        found = next((one for one in calls if one.call.id == given.call_id), None)
        return None if found is None else Played(found, given.occurrence, given.by_arrival)

    def rewind(self, run: str = "") -> None:
        """Let a run begin again."""
        with self._lock:
            self._runs.pop(run, None)

    def take_back(self, recorded: Recorded, *, run: str = "") -> None:
        """Let a run ask again for an answer that did not reach it."""
        with self._lock:
            place = self._run(run)
            place.used.discard(recorded.call.id)
            place.first_unused.clear()

    def refresh(self, calls: Iterable[Recorded]) -> None:
        """Know what is recorded now, and nothing that is gone; runs go on where they stand."""
        known = tuple(calls)
        by_key = _by_key(known)  # which takes long: nobody waits for it
        with self._lock:
            self._take(known, by_key)
            for run in self._runs.values():
                run.first_unused.clear()

    def without_calls(self) -> Tape:
        """How far the runs have come, for a tape that is read again when it is asked."""
        found = Tape(())
        found._runs, found._lock = self._runs, self._lock
        return found

    def miss(self, run: str, error: TracestoreError) -> None:
        """Count what a run asked and was not given."""
        with self._lock:
            place = self._run(run)
            self._miss(place, error, after=len(place.used))

    @staticmethod
    def _miss(run: _Run, error: TracestoreError, *, after: int) -> None:
        if len(run.missed) < MAX_MISSED:
            told = {name: value for name, value in error.values.items() if value is not None}
            run.missed.append({"after": after, **told, "hint": error.hint})

    def unasked(self, run: str = "") -> list[Recorded]:
        """The calls that a run has not asked for."""
        with self._lock:
            used = self._runs[run].used if run in self._runs else set()
            return [one for one in self.calls if one.call.id not in used]

    def missed(self, run: str = "") -> list[dict[str, Any]]:
        """What a run asked that was never recorded, each with the calls that were answered before it."""
        with self._lock:
            return list(self._runs[run].missed) if run in self._runs else []

    def _run(self, name: str) -> _Run:
        run = self._runs.setdefault(name, _Run())
        self._runs.move_to_end(name)
        if len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)
        return run

    def _of_agent(self, key: bytes, agent: str | None) -> Sequence[Recorded]:
        calls = self._by_key.get(key, [])
        if agent is None:
            return calls
        return [one for one in calls if agent in one.agent_names]

    def _first_unused(self, run: _Run, key: bytes, agent: str | None, calls: Sequence[Recorded]) -> int:
        """What is used stays used: the search goes on where it ended."""
        index = run.first_unused.get((key, agent), 0)
        while index < len(calls) and calls[index].call.id in run.used:
            index += 1
        if calls:  # what was never recorded is not remembered
            run.first_unused[key, agent] = index
        return index

    def _given_or_of_others(self, asked: Asked, agent: str | None) -> NotRecorded | None:
        """Why a request that was recorded has no answer; None: it was not recorded."""
        recorded = self._by_key.get(asked.key, [])
        if calls := self._of_agent(asked.key, agent):
            return NotRecorded(
                recorded_times=len(calls),
                agent=agent,
                hint="all its recorded answers were given: does the harness ask once more than it did, or"
                " does a second run need a name of its own (X-Tracestore-Run)?",
            )
        if recorded:
            return NotRecorded(
                agent=agent,
                recorded_agents=sorted({one.call.agent_id for one in recorded}),
                hint="other agents asked this, this one did not: is it named as when it was recorded?",
            )
        return None


def _by_key(calls: Iterable[Recorded]) -> dict[bytes, list[Recorded]]:
    found: dict[bytes, list[Recorded]] = defaultdict(list)
    for one in calls:
        found[one.asked.key].append(one)
    return found


def _diverged(asked: Asked, calls: Sequence[Recorded]) -> NotRecorded:
    """What is told of a request that was never recorded."""
    near = nearest(asked, calls)
    if near is None:
        return NotRecorded(dialect=asked.dialect, hint="no call of this dialect was recorded")
    recorded, difference = near
    return NotRecorded(
        nearest_call=recorded.call.id,
        nearest_agent=recorded.call.agent_id,
        difference=None if difference is None else difference.told(),
        hint="the harness has diverged here: it asks what it did not ask when it was recorded",
    )


def nearest(asked: Asked, calls: Sequence[Recorded]) -> tuple[Recorded, Difference | None] | None:
    """The recorded request whose context is equal for longest, and where they differ first; None: no call is
    of this dialect.

    Of several the one with about as many messages, then the first recorded.
    """
    same_dialect = [one for one in calls if one.asked.dialect == asked.dialect]
    if not same_dialect:
        return None

    def nearness(one: Recorded) -> tuple[int, int, int]:
        mine, theirs = one.asked.messages, asked.messages
        same = shared(mine, theirs)
        rest = [side[same] if same < len(side) else b"" for side in (mine, theirs)]
        return same, shared(*rest), -abs(len(mine) - len(theirs))

    found = max(same_dialect, key=nearness)
    return found, difference(found.asked, asked)


def difference(recorded: Asked, asked: Asked) -> Difference | None:
    """Where two requests differ first, in what counts: the messages before all else."""

    def value(one: Asked) -> dict[str, Any]:
        found = {name: Raw(text).value() for name, text in one.compared().items()}
        context = [name for name in CONTEXT if name in found]
        return {name: found[name] for name in (*context, *sorted(found.keys() - set(CONTEXT)))}

    return first_difference(value(recorded), value(asked))


def recorded_calls(events: Sequence[AnyEvent]) -> Iterator[Recorded]:
    """The calls of an episode that have a request, in the order in which they were asked."""
    found = merge(events)
    agents: Mapping[str, Agent] = found.of("agent")
    answers: Mapping[str, list[CompletionFields]] = defaultdict(list)
    for (call_id, _), answer in found.completions.items():
        answers[call_id].append(answer)
    calls = as_asked(found.of("call").values(), events)
    # What every call had read takes as long as all else, and most calls say it themselves.
    graph = build(events) if any(call.context == "delta" for call in calls) else None
    for call in calls:
        asked = _asked(graph, call)
        if asked is not None:
            agent = agents.get(call.agent_id)
            yield Recorded(
                episode_id=call.episode_id,
                agent_name=None if agent is None else agent.name,
                call=call,
                asked=asked,
                completions=tuple(answers[call.id]),
            )


def as_asked(calls: Iterable[Call], events: Sequence[AnyEvent]) -> list[Call]:
    """Calls in the order of their events; those of one agent by their ordinals, where they have some."""
    order = {event.id: place for place, event in enumerate(events) if event.kind == "call"}
    return _by_ordinal(sorted(calls, key=lambda call: order.get(call.id, len(order))))


def _asked(graph: Graph | None, call: Call) -> Asked | None:
    """What the harness asked; None where nothing of it was recorded.

    A call that was recorded without what its parent had read (`delta`) is asked for with all of it, unless
    its server kept that (`previous_response_id`).
    """
    request = call.request
    if request is None:
        return None
    if call.context == "delta":
        assert graph is not None, "it is built where a call is a delta"
        fields = members(bytes(request))
        name = next((name for name in ("messages", "input") if name in fields), None)
        if name is not None and "previous_response_id" not in fields:
            start, end = fields[name]
            whole = b",".join(bytes(one.raw) for one in context(graph, call.id))
            request = Raw(request[:start] + b"[" + whole + b"]" + request[end:])
    return Asked(call.dialect, request)


def _by_ordinal(calls: Sequence[Call]) -> list[Call]:
    """Each agent's calls stand where calls of it stood, in the order of their ordinals."""
    of_agent: Mapping[str, list[Call]] = defaultdict(list)
    for call in calls:
        of_agent[call.agent_id].append(call)
    turns = {
        agent: iter(sorted(some, key=lambda call: call.ordinal or 0) if _all_placed(some) else some)
        for agent, some in of_agent.items()
    }
    return [next(turns[call.agent_id]) for call in calls]


def _all_placed(calls: Sequence[Call]) -> bool:
    return all(call.ordinal is not None for call in calls)
