"""A request of a replay that a model answers -> the upstream and back, and a call of the run's fork.

It passes as it does through the recording proxy. What the harness says of its place is said of the origin;
here it gets its place in the fork. Each call says how the fork begins, so that one which is lost takes
nothing along; the fork ends when its run does and the last of its calls is recorded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope, Send

from tracestore.importers.exchanges import answered
from tracestore.importers.items import Item
from tracestore.importers.streams import completion
from tracestore.replay.forks import Origin, agent_in, agents, end, origin_of, start
from tracestore.replay.keys import Asked
from tracestore.replay.live import Fork, Forks, Live, is_same_answer
from tracestore.replay.modes import Mode
from tracestore.replay.tape import MAX_RUNS, Tape
from tracestore.store.store import Store
from tracestore.wire.completion import CompletionFields
from tracestore_api.body import Ticket
from tracestore_api.proxy.capture import Capture
from tracestore_api.proxy.lineage import Recent
from tracestore_api.proxy.names import Address, Names

if TYPE_CHECKING:
    # Its HTTP client takes a fifth of the time in which a server starts, and most servers have no proxy.
    from tracestore_api.proxy.route import Proxy

END_PATIENCE_S = 5.0
"""How long whoever ends a run waits for the store to have it."""
FORK_HEADER = "x-tracestore-fork"
_NOT_OF_A_FORK = frozenset(
    {
        *("episode", "agent", "group", "task", "split", "run", "mode", "live-after"),
        *("call", "parent-call", "parent-completion", "parent-agent"),
        *("spawned-by-call", "spawned-by-tool-call"),
    }
)
"""What a harness says of its place in the origin, where ids are taken: a fork has its own."""


class Forking:
    """The forks of the replays of a store."""

    def __init__(self, store: Store, proxy: Proxy) -> None:
        """
        Args:
            proxy: asks the upstream, and records what it answers.
        """
        self._store = store
        self._proxy = proxy
        self._origins: Recent[tuple[str, str, str], Origin] = Recent(MAX_RUNS)
        """By project, fork and episode."""
        self._begun: dict[str, tuple[str, Fork, Item]] = {}
        """Forks that go on, by their id: project, fork, and the event that begins it."""
        self._lock = threading.Lock()

    def passing(
        self, project: str, forks: Forks, tape: Tape, live: Live, *, asked: Asked, mode: Mode, run: str
    ) -> Passing:
        """A request on its way to the upstream. Reads the store.

        Args:
            tape: that `forks` are of.

        Raises:
            NotFound: its origin is gone.
            Deleted: the same.
        """
        for fork in forks.forgotten():
            self.end(fork)
        try:
            return self._passing(project, forks, tape, live, asked, mode, run)
        except BaseException:
            self._done(forks, live)
            raise

    def _passing(
        self, project: str, forks: Forks, tape: Tape, live: Live, asked: Asked, mode: Mode, run: str
    ) -> Passing:
        key = (project, live.fork.episode_id, live.origin)
        with self._lock:
            origin = self._origins.get(key)
        if origin is None:
            origin = origin_of(live.origin, self._store.load(project, live.origin))
            with self._lock:
                self._origins.put(key, origin)
        said = {"mode": mode.name, "live_after": mode.live_after, "run": run or None}
        meta = {name: value for name, value in said.items() if value is not None}
        begin = partial(self._begin, project, forks, live, origin, meta)
        if not live.is_compared:
            begin()
        done = partial(self._done, forks, live)
        failed = partial(forks.failed, tape, live, run=run)
        return Passing(self._proxy, project, forks, live, begin, failed, done, origin, asked)

    def _begin(self, project: str, forks: Forks, live: Live, origin: Origin, meta: dict[str, Any]) -> Item:
        """Make a call part of its fork. Gives the event that begins the fork."""
        fork = live.fork
        forks.begin(live)
        with self._lock:
            if fork.episode_id not in self._begun:
                self._begun[fork.episode_id] = project, fork, start(fork, origin, meta=meta)
            return self._begun[fork.episode_id][2]

    def _done(self, forks: Forks, live: Live) -> None:
        ended = forks.done(live)
        if ended is not None:
            self.end(ended)

    def end(self, fork: Fork, *, patience_s: float = 0.0) -> None:
        """Say that nothing more comes of a fork, behind the calls of it that wait to be recorded.

        Args:
            patience_s: how long to wait until it is stored.
        """
        with self._lock:
            begun = self._begun.get(fork.episode_id)
        if begun is None:
            return
        is_stored = threading.Event()

        def stored() -> None:
            with self._lock:
                self._begun.pop(fork.episode_id, None)
            is_stored.set()

        self._proxy.recorder.follow(begun[0], self._ending(fork, begun[2]), stored)
        is_stored.wait(patience_s)

    @staticmethod
    def _ending(fork: Fork, first: Item) -> tuple[Item, ...]:
        # Where all its calls are lost, it says itself what it was.
        return first, end(fork, ended_at=time.time_ns())

    def close(self) -> None:
        """End the forks that go on: no run does. What passed is recorded by now."""
        with self._lock:
            begun = list(self._begun.values())
            self._begun.clear()
        for project, fork, first in begun:
            items = self._ending(fork, first)
            self._store.ingest(project, [(item.event, item.text) for item in items])


@dataclass(frozen=True)
class Passing:
    """A request that goes to the upstream, and what becomes of its recording."""

    proxy: Proxy
    project: str
    forks: Forks
    live: Live
    begin: Callable[[], Item]
    """Makes it part of the fork, and gives the event that begins that."""
    failed: Callable[[], None]
    """There is no answer to compare."""
    done: Callable[[], None]
    """Nothing more comes of it."""
    origin: Origin
    asked: Asked

    async def pass_on(
        self, scope: Scope, receive: Receive, send: Send, *, address: Address, body: bytes, ticket: Ticket
    ) -> None:
        """Pass it on, and its response back.

        Args:
            body: as it came; `ticket` has it.

        Raises:
            UpstreamUnreachable: there is no response.
        """
        try:
            await self.proxy.pass_on(
                scope,
                receive,
                self._told(send),
                project=self.project,
                address=replace(address, names=self._names(address.names)),
                body=body,
                ticket=ticket,
                is_kept=self._is_kept,
            )
        finally:
            self.done()

    def _names(self, said: Names) -> Names:
        """Where its call belongs: what the harness says of it, in the fork."""
        fork, found = self.live.fork, Names()
        stated = [("episode", fork.episode_id)]
        agent = self.live.agent_id or said.get("agent")
        if agent is not None:
            stated.append(("agent", agent_in(fork, self.live.origin, agent)))
        found.state(stated, place="replay")
        for name, value in said.values.items():
            if name not in _NOT_OF_A_FORK:
                found.state([(name, value)], place=said.places[name])
        found.unusable |= said.unusable
        return found

    def _told(self, send: Send) -> Send:
        """A response that says which fork it is recorded in, where it surely is."""
        if self.live.is_compared:
            return send
        header = (FORK_HEADER.encode("ascii"), self.live.fork.episode_id.encode("utf-8"))

        async def with_fork(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        return with_fork

    def _is_kept(self, capture: Capture) -> bool:
        """Whether what passed is part of the fork; it then says how the fork begins."""
        live = self.live
        if live.is_compared and not capture.is_cut:
            told = _told(capture)
            if told is None:
                self.failed()
            if told is None and live.fork.origin is None:
                return False  # no fork begins with a failure: what the policy says is told by the next try
            if told is not None and self._is_recorded(told):
                self.forks.equal(live, told)
                return False
        capture.starts = [self.begin(), *agents(live.fork, self.origin, live.agent_id)]
        capture.stale_observation = live.stale
        return True

    def _is_recorded(self, told: Sequence[CompletionFields]) -> bool:
        """Whether the upstream answered what was recorded."""
        assert self.live.recorded is not None, "there is something to compare with"
        return is_same_answer(self.live.recorded.completions, told, self.asked)


def _told(capture: Capture) -> list[CompletionFields] | None:
    """What the upstream answered; None: it failed, or there is no answer in what it said."""
    exchange = capture.exchange()
    if exchange.status is None or exchange.status >= 400:
        return None
    answer = answered(exchange.response)
    return None if answer is None else [completion(choice) for choice in answer.choices] or None
