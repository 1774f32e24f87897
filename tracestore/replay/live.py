"""A request -> whether the recording answers it or a model does, and which fork a model's answer is part of.

What a model answers belongs into a fork: an episode of its own, one for each run of a harness, whose history
is its origin's up to where the run diverged. In `policy` the tools go on to say what they said when it was
recorded. After another answer than the recorded one that answers something else: what is sampled after it is
said to be so (`stale_observation`) and does not train.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tracestore.graph.match import match_hash, node_key, node_keys
from tracestore.graph.messages import answer_messages, messages_of, role_of
from tracestore.ids import new_id
from tracestore.replay.ids import asked_with_ids, ids_between, with_ids
from tracestore.replay.keys import Asked
from tracestore.replay.modes import Mode
from tracestore.replay.tape import MAX_RUNS, Missing, Played, Recorded, Tape
from tracestore.wire.completion import CompletionFields

_MAX_LIVE = 1_000
"""Requests of a run that are known when they come again."""


@dataclass(frozen=True)
class Answered:
    """A call that a run was answered as it was recorded: where it stands, without what it says."""

    call_id: str
    agent_id: str
    episode_id: str


@dataclass
class Fork:
    """What a run was answered by a model: an episode to be, or one that is."""

    episode_id: str
    started_at: int
    origin: str | None = None
    """Episode whose history it shares; None: nothing is part of it yet."""
    after: str | None = None
    """The last call of the origin that is its history; None: it diverged at the first."""
    num_equal: int = 0
    """`policy`: answers that were the recorded ones."""
    history: dict[str, Answered] = field(default_factory=dict)
    """What the run was answered as it was recorded, in order, by the id of the call."""
    ids: dict[str, str] = field(default_factory=dict)
    """`policy`: ids in equal answers, and those that were recorded in their places."""
    num_open: int = 0
    """Requests that a model answers now."""
    is_over: bool = False
    """Its run began again, or is forgotten: no more requests come."""

    @property
    def has_ended(self) -> bool:
        """Whether something is part of it and nothing more can be."""
        return self.is_over and not self.num_open and self.origin is not None


@dataclass(frozen=True)
class Live:
    """A request that a model answers."""

    fork: Fork
    origin: str
    """Episode whose history it shares."""
    after: str | None
    """The last call of the origin whose history it shares, or that its agent was answered in this run."""
    agent_id: str | None
    """Agent of the origin that asks; None: it is not known, or none of the origin's."""
    recorded: Recorded | None
    """The same request as it was recorded."""
    is_compared: bool
    """Whether it is part of the fork only where the answer is not the recorded one."""
    stale: str | None
    """Why what is sampled now does not follow from what was sampled before; None: it does."""


@dataclass
class _Run:
    """How far one run of a harness has come."""

    fork: Fork
    live: dict[tuple[bytes, str | None, str | None], Live] = field(default_factory=dict)
    """The last one by key, agent and the client's id of the request, for a client that asks again; those that
    came last."""
    is_live: bool = False
    stale: str | None = None
    """Why what is sampled from now on does not follow from what was sampled before; None: it does."""

    def remember(self, key: tuple[bytes, str | None, str | None], live: Live) -> None:
        """Know a request when it comes again, with or without the client's id of it."""
        for one in {key, (key[0], key[1], None)}:
            self.live.pop(one, None)
            self.live[one] = live
        while len(self.live) > _MAX_LIVE:
            del self.live[next(iter(self.live))]


class Forks:
    """Who answers the runs of one tape."""

    def __init__(self, episode: str) -> None:
        """
        Args:
            episode: the origin of what shares nothing with any recorded call.
        """
        self._episode = episode
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._lock = threading.Lock()
        self._forgotten: list[Fork] = []
        """Forks of forgotten runs, that have ended."""
        self._histories = Histories(())

    def answer(
        self,
        tape: Tape,
        asked: Asked,
        mode: Mode,
        *,
        run: str = "",
        agent: str | None = None,
        is_retry: bool = False,
        request_id: str | None = None,
    ) -> Played | Live:
        """What answers a request; arguments as of `Tape.answer`. A model's answer is over with `done`.

        Raises:
            NotRecorded: nothing does. `live-after` lets a model answer what was never recorded when the run
                has come to it, not before: it is to branch there and nowhere else.
        """
        if not mode.needs_model:
            return tape.answer(asked, run=run, agent=agent, is_retry=is_retry, request_id=request_id)
        with self._lock:
            place = self._run(run)
            asked = asked_with_ids(asked, place.fork.ids)
            key = (asked.key, agent, request_id)
            is_again = is_retry or request_id is not None
            if is_again and (again := place.live.get(key)) is not None:
                again.fork.num_open += 1
                return again
            found = tape.find(asked, run=run, agent=agent, is_retry=is_retry, request_id=request_id)
            if isinstance(found, Played) and _is_recorded(found.recorded, tape, mode):
                for one in (key, (asked.key, agent, None)):
                    place.live.pop(one, None)
                place.fork.history[found.recorded.call.id] = _answered(found.recorded)
                return found
            live: Live | None = None
            recorded = found.recorded if isinstance(found, Played) else None
            if recorded is not None or mode.live_after is None or _has_come(place, tape, mode.live_after):
                live = self._live(tape, place, asked, recorded, mode, agent)
                live.fork.num_open += 1
                place.remember(key, live)
        # What has no answer is told without the lock: to find the nearest takes long.
        error = tape.told(found, run=run) if isinstance(found, Missing) else None
        if live is None:
            assert error is not None, "what was recorded has an answer"
            raise error
        return live

    def instead(
        self,
        tape: Tape,
        asked: Asked,
        mode: Mode,
        played: Played,
        *,
        run: str = "",
        agent: str | None = None,
        request_id: str | None = None,
    ) -> Live:
        """A model's answer for a recorded one that cannot be sent again."""
        with self._lock:
            place = self._run(run)
            place.fork.history.pop(played.recorded.call.id, None)
            live = self._live(tape, place, asked, played.recorded, mode, agent)
            live.fork.num_open += 1
            place.remember((asked.key, agent, request_id), live)
            return live

    def begin(self, live: Live) -> None:
        """Make a model's answer part of its fork: the first one says where the fork leaves its origin."""
        with self._lock:
            if live.fork.origin is None:
                live.fork.origin, live.fork.after = live.origin, live.after

    def equal(self, live: Live, told: Sequence[CompletionFields]) -> None:
        """Count an answer that is the recorded one, and know its ids in the requests that follow it."""
        assert live.recorded is not None, "it is equal to something"
        ids = ids_between(live.recorded.completions, told, live.recorded.asked.dialect)
        with self._lock:
            live.fork.num_equal += 1
            live.fork.ids |= {id_: known for id_, known in ids.items() if id_ != known}
            live.fork.history[live.recorded.call.id] = _answered(live.recorded)

    def failed(self, tape: Tape, live: Live, *, run: str = "") -> None:
        """A model did not answer what is compared: the same request, sent again, is compared too."""
        assert live.recorded is not None, "it is compared with something"
        tape.take_back(live.recorded, run=run)
        with self._lock:
            place = self._runs.get(run)
            if place is not None:
                place.live = {key: one for key, one in place.live.items() if one is not live}

    def done(self, live: Live) -> Fork | None:
        """A model answered, or did not. The fork, if that was the last of it."""
        with self._lock:
            live.fork.num_open -= 1
            return live.fork if live.fork.has_ended else None

    def forgotten(self) -> list[Fork]:
        """The forks of forgotten runs that have ended since this was asked before."""
        with self._lock:
            found, self._forgotten = self._forgotten, []
            return found

    def fork(self, run: str = "") -> Fork | None:
        """What a model answered a run; None: nothing yet."""
        with self._lock:
            return self._runs[run].fork if run in self._runs else None

    def rewind(self, run: str = "") -> Fork | None:
        """Let a run begin again, with a fork of its own; the one that it had, if that has ended now."""
        with self._lock:
            gone = self._runs.pop(run, None)
            return None if gone is None else self._over(gone)

    def let_go(self) -> None:
        """Hold no calls that nobody asks for now."""
        with self._lock:
            self._histories = Histories(())

    def _run(self, name: str) -> _Run:
        run = self._runs.setdefault(name, _Run(Fork(new_id(), time.time_ns())))
        self._runs.move_to_end(name)
        if len(self._runs) > MAX_RUNS:
            _, gone = self._runs.popitem(last=False)
            ended = self._over(gone)
            self._forgotten += [] if ended is None else [ended]
        return run

    @staticmethod
    def _over(run: _Run) -> Fork | None:
        run.fork.is_over = True
        return run.fork if run.fork.has_ended else None

    def _live(
        self,
        tape: Tape,
        place: _Run,
        asked: Asked,
        recorded: Recorded | None,
        mode: Mode,
        agent: str | None,
    ) -> Live:
        place.is_live = True
        if self._histories.calls is not tape.calls:
            self._histories = Histories(tape.calls)
        history = self._histories.shared(asked)
        nearest = recorded or history.nearest
        agent_id = _asking(tape, nearest, None if recorded is not None else agent)
        known = place.fork.history
        of_agent = [one for one in known.values() if one.agent_id == agent_id]
        # Of equal histories that of this run, else the first; of one that begins anew the agent's last call.
        ends = [_answered(one) for one in history.ends]
        own = [one for one in ends if one.call_id in known]
        after = next(iter([*own[-1:], *ends, *of_agent[-1:]]), None)
        near = after or (None if nearest is None else _answered(nearest))
        if mode.name == "policy" and recorded is None:
            # What is sampled later may rest on it by way of a summary, or of a finding of another agent.
            place.stale = place.stale or history.stale
        return Live(
            fork=place.fork,
            origin=self._episode if near is None else near.episode_id,
            after=None if after is None else after.call_id,
            agent_id=agent_id,
            recorded=recorded,
            is_compared=mode.name == "policy" and recorded is not None,
            # Of a request that was recorded all that it reads was recorded in this order.
            stale=place.stale if recorded is None else None,
        )


def _answered(recorded: Recorded) -> Answered:
    return Answered(recorded.call.id, recorded.call.agent_id, recorded.episode_id)


def _asking(tape: Tape, nearest: Recorded | None, named: str | None) -> str | None:
    """The agent that asks: the one that it says it is, else that of the nearest call, else the only one."""
    if named is not None:
        return next((one.call.agent_id for one in tape.calls if named in one.agent_names), None)
    if nearest is not None:
        return nearest.call.agent_id
    agents = {one.call.agent_id for one in tape.calls}
    return agents.pop() if len(agents) == 1 else None


def _has_come(place: _Run, tape: Tape, live_after: int) -> bool:
    """Whether a run has gone live, or was answered all that the recording answers."""
    return place.is_live or len(place.fork.history) >= min(live_after, len(tape.calls))


def _is_recorded(recorded: Recorded, tape: Tape, mode: Mode) -> bool:
    """Whether the recording answers a request that stands in it."""
    if mode.name == "policy":
        return False
    return mode.live_after is None or tape.position(recorded) < mode.live_after


def is_same_answer(
    recorded: Sequence[CompletionFields], other: Sequence[CompletionFields], asked: Asked
) -> bool:
    """Whether a model answered what was recorded: as many messages, each the same as the graph compares
    them, but for the ids of tool calls, that ended alike as far as it was recorded how they ended."""
    ids = ids_between(recorded, other, asked.dialect)

    def told(one: CompletionFields, ids: Mapping[str, str]) -> tuple[bool | None, list[bytes]]:
        parts = answer_messages(one.message, asked.dialect)
        return one.partial, [match_hash(with_ids(part.raw, ids), role=part.role) for part in parts]

    return len(recorded) == len(other) and all(
        mine.finish_reason in (None, theirs.finish_reason) and told(mine, {}) == told(theirs, ids)
        for mine, theirs in zip(recorded, other, strict=True)
    )


@dataclass(frozen=True)
class Shared:
    """What a request shares with the recording."""

    ends: tuple[Recorded, ...]
    """The calls whose context and answer are the longest that the request begins with."""
    nearest: Recorded | None
    """The first call that has read, or answered, the longest beginning of it; None: of nothing of it."""
    stale: str | None
    """What in it was recorded after another answer; None: nothing."""


class Histories:
    """What recorded calls had read and answered: chains of messages, compared as the graph compares them."""

    def __init__(self, calls: Sequence[Recorded]) -> None:
        self.calls = calls
        self._ends: Mapping[bytes, list[Recorded]] = defaultdict(list)
        self._known: dict[bytes, Recorded] = {}
        self._by_response: dict[str, Recorded] = {}
        for call in calls:
            read = _read(call.asked)
            for key in read:
                self._known.setdefault(key, call)
            for one in call.completions:
                parts = answer_messages(one.message, call.asked.dialect)
                said = node_keys(parts, after=read[-1] if read else None)
                for key in said:
                    self._known.setdefault(key, call)
                if said:
                    self._ends[said[-1]].append(call)
            if call.call.provider_id is not None:
                self._by_response[call.call.provider_id] = call

    def shared(self, asked: Asked) -> Shared:
        """What a request shares with them."""
        keys = _read(asked)
        num_known = next((place for place, key in enumerate(keys) if key not in self._known), len(keys))
        kept = asked.kept_by_server
        before = None if kept is None else self._by_response.get(kept)
        ends = next((self._ends[key] for key in reversed(keys) if key in self._ends), [])
        nearest = self._known[keys[num_known - 1]] if num_known else before
        return Shared(
            ends=tuple(ends) if before is None else (before,),
            nearest=nearest,
            stale=_stale(asked, num_known, has_parted=kept is not None and before is None),
        )


def _read(asked: Asked) -> list[bytes]:
    """The chain of what a request reads; that of one which goes on from what a server keeps begins there."""
    kept = asked.kept_by_server
    after = None if kept is None else node_key(None, kept.encode("utf-8", "surrogatepass"))
    return node_keys(messages_of(asked.body, asked.dialect), after=after)


def _stale(asked: Asked, num_known: int, *, has_parted: bool) -> str | None:
    """The first message that stands after an answer which was not recorded, and is none itself.

    Args:
        num_known: how many messages were recorded in this order.
        has_parted: whether such an answer stands before all of them, where only the server has it.
    """
    messages = messages_of(asked.body, asked.dialect)
    for place, message in enumerate(messages[num_known:], num_known):
        is_answer = role_of(message.raw, default=message.role) == "assistant"
        if has_parted and not is_answer:
            return (
                f"message {place} follows an answer that was not recorded: what it says answered another one"
            )
        has_parted = has_parted or is_answer
    return None
