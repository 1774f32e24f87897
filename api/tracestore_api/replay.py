"""`/replay/...`: a harness's request -> the answer that was recorded for it, without a model.

    base_url = http://127.0.0.1:8421/replay/episode=e1/v1        OpenAI: chat, responses, completions
    base_url = http://127.0.0.1:8421/replay/episode=e1           Anthropic: messages
    .../replay/episode=e1/tools/call, .../replay/episode=e1/mcp  tools: see `replay_tools`

Names stand where those of the recording proxy stand (`proxy.names`): the path, headers, a suffix of the API
key. `episode` is what is replayed; `agent` or `agent-name` says whose answer is wanted; `run` gives a run of
the harness its own places. A request that was never recorded is 409 and says where it differs first from the
nearest that was; clients are told not to send it again. What was deleted or redacted since is not answered: a
recording is read anew when it may have changed, a second later at most.

`mode` and `live-after` may let the upstream of the recording proxy answer instead (`replay.modes`). Such a
request passes as it does through the proxy, and is recorded as a call of a fork of the episode.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tracestore.importers.exchanges import Exchange, request_body
from tracestore.replay.answers import (
    body_of,
    encoded,
    error_of,
    recorded_cuts,
    recorded_events,
    times_of,
    whole_of,
)
from tracestore.replay.keys import Asked
from tracestore.replay.live import Fork, Forks
from tracestore.replay.modes import STRICT, Mode, mode_of
from tracestore.replay.streams import stream_of
from tracestore.replay.tape import (
    Missing,
    NotRecorded,
    NotReplayable,
    Played,
    Recorded,
    Tape,
    recorded_calls,
)
from tracestore.settings import Settings
from tracestore.store.changes import are_untouched
from tracestore.store.keys import Right
from tracestore.store.store import Store
from tracestore.wire.call import Dialect
from tracestore_api.access import admitted
from tracestore_api.body import Admission, coding_of, decompress, read_body
from tracestore_api.errors import InvalidReplay
from tracestore_api.forking import END_PATIENCE_S, Forking, Passing
from tracestore_api.guard import REPLAY as PREFIX
from tracestore_api.problems import problem_of, problem_response
from tracestore_api.proxy.capture import text_of
from tracestore_api.proxy.lineage import Recent
from tracestore_api.proxy.names import Address, Names, address_of, state_body
from tracestore_api.replay_tools import Tools
from tracestore_api.response import StrictJSON

if TYPE_CHECKING:
    # Its HTTP client takes a fifth of the time in which a server starts, and most servers have no proxy.
    from tracestore_api.proxy.route import Proxy

Times = Literal["at-once", "recorded"]
_sleep = asyncio.sleep
_TAPES = 10_000
"""Sets of episodes of which it is known how far their runs have come."""
_MAX_BYTES = 2**28
"""Of recorded requests that are held in memory; with their answers they take some four times as much."""
_TOLD = 1_000
"""Calls that a status names."""
_NO_RETRY = {"x-should-retry": "false"}
"""What the OpenAI and Anthropic clients obey: a second request would be answered as the first."""
_FRESH_S = 1.0
"""For how long what was read is taken to be what there is."""
_NOT_READ = -1
"""Snapshot of a tape whose calls were let go."""
_NAMING = ("header", "path", "key", "body")
"""Places that name an episode to be replayed."""


_WHO_ANSWERS = ("mode", "live-after")
"""Names that may not be overlooked: another mode gives other answers."""


@dataclass(frozen=True)
class _Held:
    """A tape, and the state of the store that it is of."""

    tape: Tape
    forks: Forks
    snapshot: int
    """Every event, deletion and redaction takes a position of its own."""
    looked_at: float

    @property
    def is_fresh(self) -> bool:
        """Whether it may answer without another look."""
        return time.monotonic() - self.looked_at < _FRESH_S


class Replay:
    """The recorded answers of a store."""

    def __init__(
        self,
        store: Store,
        *,
        settings: Settings,
        episodes: Sequence[str] = (),
        mode: Mode = STRICT,
        proxy: Proxy | None = None,
        times: Times = "at-once",
        is_alone: bool = True,
    ) -> None:
        """
        Args:
            episodes: that answer a request which names none.
            mode: of a request that names none.
            proxy: asks the upstream and records what it answers; None: nothing is asked.
            times: when the events of a stream are sent.
            is_alone: whether all requests come to this process. It remembers how far each run has come, and
                with a part of the requests it would give an answer twice: it gives none.
        """
        self._store = store
        self._episodes = tuple(episodes)
        self._mode = mode
        self.forking = None if proxy is None else Forking(store, proxy)
        self._are_times_kept = times == "recorded"
        self._is_alone = is_alone
        self._admission = Admission(
            max_requests=settings.max_requests_in_hand, max_bytes=settings.max_bytes_in_hand
        )
        self._max_body_bytes = settings.max_body_bytes
        self._tapes: Recent[tuple[str, tuple[str, ...]], _Held] = Recent(_TAPES)
        self._lock = threading.Lock()
        """Of `_tapes`."""
        self._loading = threading.Lock()
        self._tools = Tools(store, admission=self._admission, max_body_bytes=settings.max_body_bytes)

    def open(self, project: str) -> None:
        """Read its episodes, so that the first request need not wait for them."""
        if self._episodes and self._is_alone:
            self._look(project, self._episodes)

    def routes(self) -> list[Route]:
        """Its routes in an app."""
        return [
            Route(PREFIX, self._status, methods=["GET"]),
            Route(PREFIX, self._rewind, methods=["DELETE"]),
            Route(PREFIX + "/{path:path}", _Door(self), methods=["POST"]),
        ]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        project = self._admitted(scope, needs="read")
        address = address_of(scope["path"], scope["headers"], prefix=PREFIX)
        if self._tools.are_at(address.path):
            await self._tools.serve(
                scope, receive, send, project=project, episodes=self._named, address=address
            )
            return
        with self._admission.ticket() as ticket:
            body = await read_body(
                receive,
                content_length=text_of(scope["headers"], "content-length"),
                max_bytes=self._max_body_bytes,
                ticket=ticket,
            )
            if body is None:
                return
            coding = coding_of(text_of(scope["headers"], "content-encoding"))
            text = decompress(body, coding=coding, max_bytes=self._max_body_bytes, ticket=ticket)
            answer = await self._answer(project, address, text, scope)
            if isinstance(answer, Passing):
                await answer.pass_on(scope, receive, send, address=address, body=body, ticket=ticket)
                return
        await answer(scope, receive, send)

    def _admitted(self, scope: Scope, *, needs: Right) -> str:
        """The project of a request that can be answered here."""
        project = admitted(scope, needs=needs)
        if not self._is_alone:
            raise InvalidReplay(
                hint="this server has several processes, none of which sees how far a run has come: start one"
                " for replays with --workers 1, or `tracestore replay`"
            )
        return project

    async def _answer(self, project: str, address: Address, text: bytes, scope: Scope) -> Response | Passing:
        dialect, names = _dialect(address.path), address.names
        episodes = self._stated(names)
        held = self._held((project, episodes))
        asked = held.tape.known(dialect, text) if held is not None and held.is_fresh else None
        if asked is not None:  # it was asked before to the byte, and the recording is in memory: mostly
            state_body(names, asked.asker)
            mode = self._mode_of(names, scope)
            if self._stated(names) == episodes and not mode.needs_model:
                assert held is not None, "it knows the request"
                found = held.tape.find(asked, **_who(names, scope))
                if isinstance(found, Played):
                    return self._sent(held.tape, found, asked, run=_run(names))
                return await to_thread.run_sync(_missed, held.tape, found, _run(names))
        # Reading a recording takes time, as does finding the place of a fork in it, and a miss looks through
        # all of it: not on the loop.
        return await to_thread.run_sync(self._read_and_answered, project, names, dialect, text, scope)

    def _read_and_answered(
        self, project: str, names: Names, dialect: Dialect, text: bytes, scope: Scope
    ) -> Response | Passing:
        key = (project, self._stated(names))
        held = None if self._held(key) is None else self._look(*key)
        known = None if held is None else held.tape.known(dialect, text)
        asked = known or _asked(dialect, text)
        state_body(names, asked.asker)
        answer = self._answered(project, names, asked, scope, self._mode_of(names, scope))
        read = self._held((project, self._stated(names)))
        if known is None and read is not None:
            read.tape.learn(dialect, text, asked)
        return answer

    def _answered(
        self, project: str, names: Names, asked: Asked, scope: Scope, mode: Mode
    ) -> Response | Passing:
        held = self._look(project, self._named(names))
        tape, forks, who = held.tape, held.forks, _who(names, scope)
        try:
            found = forks.answer(tape, asked, mode, **who)
        except NotRecorded as error:
            return problem_response(problem_of(error), headers=_NO_RETRY)
        if isinstance(found, Played):
            if mode.name != "record-missing":
                return self._sent(tape, found, asked, run=who["run"])
            try:
                return _response(found, asked, are_times_kept=self._are_times_kept)
            except NotReplayable as error:
                tape.miss(who["run"], error)
            del who["is_retry"]
            found = forks.instead(tape, asked, mode, found, **who)
        assert self.forking is not None, "no mode that needs a model is let through without one"
        return self.forking.passing(project, forks, tape, found, asked=asked, mode=mode, run=_run(names))

    def _sent(self, tape: Tape, played: Played, asked: Asked, *, run: str) -> Response:
        """A recorded answer, or why it cannot be sent again."""
        try:
            return _response(played, asked, are_times_kept=self._are_times_kept)
        except NotReplayable as error:
            tape.miss(run, error)
            return problem_response(problem_of(error), headers=_NO_RETRY)

    def _mode_of(self, names: Names, scope: Scope) -> Mode:
        for stated, reason in names.unusable.items():
            place, _, name = stated.partition(": ")
            if name in _WHO_ANSWERS:
                raise InvalidReplay(
                    name=name, place=place, reason=reason, hint="say who answers, or leave it out"
                )
        mode = mode_of(names.get("mode"), names.number("live-after")) or self._mode
        if not mode.needs_model:
            return mode
        admitted(scope, needs="write")
        if self.forking is None:
            raise InvalidReplay(
                mode=mode.name,
                hint="a model answers what the recording does not: start the server with --upstream URL",
            )
        return mode

    def _stated(self, names: Names) -> tuple[str, ...]:
        # A trace id, which any instrumented client sends, names no recording.
        episode = names.get("episode") if names.places.get("episode") in _NAMING else None
        return self._episodes if episode is None else (episode,)

    def _named(self, names: Names) -> tuple[str, ...]:
        episodes = self._stated(names)
        if not episodes:
            raise InvalidReplay(
                hint="name the episode: base_url = http://HOST/replay/episode=ID/v1, or X-Tracestore-Episode"
            )
        return episodes

    def _look(self, project: str, episodes: tuple[str, ...]) -> _Held:
        """The recorded calls of these episodes, as the store has them now or had them a second ago."""
        key = (project, episodes)
        held = self._held(key)
        if held is None or not held.is_fresh:
            with self._loading:  # two first requests find one tape, with one place in it
                held = self._looked(key, self._held(key))
        return held

    def _held(self, key: tuple[str, tuple[str, ...]]) -> _Held | None:
        with self._lock:
            return self._tapes.get(key)

    def _looked(self, key: tuple[str, tuple[str, ...]], held: _Held | None) -> _Held:
        """What the store has now, in the tape that is held."""
        looked_at = time.monotonic()
        snapshot = self._store.snapshot(key[0])  # before the calls: what comes between is read again
        if held is None:
            tape, forks = Tape(self._calls(*key)), Forks(key[1][0])
        else:
            tape, forks = held.tape, held.forks
            # What a model answers comes into other episodes all the time.
            if held.snapshot != snapshot and not are_untouched(
                self._store, *key, after=held.snapshot, snapshot=snapshot
            ):
                tape.refresh(self._calls(*key))
        found = _Held(tape, forks, snapshot, looked_at)
        with self._lock:
            self._tapes.put(key, found)
            self._make_room()
        return found

    def _make_room(self) -> None:
        """Let go of the calls that were asked for longest ago, not of how far their runs have come."""
        size = 0
        for place, (key, one) in enumerate(reversed(self._tapes.items())):
            size += one.tape.num_bytes
            if place > 0 and size > _MAX_BYTES and one.tape.calls:
                let_go = one.tape.without_calls()
                one.forks.let_go()
                self._tapes.replace(key, _Held(let_go, one.forks, _NOT_READ, looked_at=-math.inf))

    def _calls(self, project: str, episodes: Sequence[str]) -> list[Recorded]:
        events = (self._store.load(project, episode) for episode in episodes)
        return [call for some in events for call in recorded_calls(some)]

    async def _status(self, request: Request) -> Response:
        """What a run has not asked for yet."""
        project, episodes, run = self._wanted(request)
        held = await to_thread.run_sync(self._look, project, episodes)
        tape, fork = held.tape, held.forks.fork(run)
        unasked = [one.call.id for one in tape.unasked(run)]
        facts: dict[str, Any] = {"episodes": list(episodes), "run": run, "calls": len(tape.calls)}
        facts |= {"answered": len(tape.calls) - len(unasked), "unasked": unasked[:_TOLD]}
        facts |= {"num_unasked": len(unasked), "missed": tape.missed(run)}
        facts |= {"tools": await to_thread.run_sync(self._tools.status, project, episodes, run)}
        return StrictJSON(facts | _fork_facts(fork))

    async def _rewind(self, request: Request) -> Response:
        """Let a run begin again."""
        project, episodes, run = self._wanted(request, needs="write")
        held = await to_thread.run_sync(self._look, project, episodes)
        held.tape.rewind(run)
        self._tools.rewind(project, episodes, run)
        fork = held.forks.rewind(run)
        if fork is not None and self.forking is not None:
            await to_thread.run_sync(partial(self.forking.end, fork, patience_s=END_PATIENCE_S))
        return Response(status_code=204)

    def _wanted(self, request: Request, *, needs: Right = "read") -> tuple[str, tuple[str, ...], str]:
        project = self._admitted(request.scope, needs=needs)
        named = request.query_params.getlist("episode")
        if not named and not self._episodes:
            raise InvalidReplay(hint="name the episode: ?episode=ID")
        return project, tuple(named) or self._episodes, request.query_params.get("run", "")


class _Door:
    """ASGI endpoint; Starlette takes a bound method for something else."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._replay.serve(scope, receive, send)


@lru_cache(maxsize=64)
def _dialect(path: str) -> Dialect:
    dialect = Exchange(method="POST", url=path).dialect
    if dialect is None:
        raise InvalidReplay(
            path=path, hint="what is replayed is chat/completions, responses, messages and completions"
        )
    return dialect


def _asked(dialect: Dialect, text: bytes) -> Asked:
    body = request_body(text)
    if body is None or not body.lstrip().startswith(b"{"):
        raise InvalidReplay(dialect=dialect, hint="the body of a request to a model is a JSON object")
    return Asked(dialect, body)


def _run(names: Names) -> str:
    return names.get("run") or ""


def _who(names: Names, scope: Scope) -> dict[str, Any]:
    """Who asks, and whether again: arguments of `Tape.answer`."""
    retries = text_of(scope["headers"], "x-stainless-retry-count")
    return {
        "run": _run(names),
        "agent": names.get("agent") or names.get("agent-name"),
        "is_retry": retries is not None and retries.strip("0") != "",
        "request_id": text_of(scope["headers"], "idempotency-key"),
    }


def _missed(tape: Tape, missing: Missing, run: str) -> Response:
    return problem_response(problem_of(tape.told(missing, run=run)), headers=_NO_RETRY)


def _response(played: Played, asked: Asked, *, are_times_kept: bool) -> Response:
    headers = {"x-tracestore-call": played.recorded.call.id}
    if played.by_arrival:
        headers["x-tracestore-by-arrival"] = "true"
    failed = error_of(played.recorded)
    if failed is not None:
        status, error = failed
        return Response(
            encoded(error), status_code=status, media_type="application/json", headers=headers | _NO_RETRY
        )
    if asked.wants_stream and are_times_kept:
        events = _events(played.recorded, asked)
        return StreamingResponse(
            _timed(events, times_of(played.recorded.call, num_events=len(events))),
            media_type="text/event-stream",
            headers=headers,
        )
    sent, how = played.recorded.sent, (asked.wants_stream, asked.wants_usage)
    if how not in sent:
        is_stream = asked.wants_stream
        sent[how] = b"".join(_events(played.recorded, asked)) if is_stream else whole_of(played.recorded)
    kind = "text/event-stream" if asked.wants_stream else "application/json"
    return Response(sent[how], media_type=kind, headers=headers)


def _events(recorded: Recorded, asked: Asked) -> list[bytes]:
    cut = recorded_cuts(recorded.call)
    # A server that told the usage unasked tells it again.
    with_usage = asked.wants_usage or (cut is not None and not recorded.asked.wants_usage)
    events = stream_of(
        body_of(recorded),
        asked.dialect,
        with_usage=with_usage,
        recorded=recorded_events(recorded.call),
        cut=cut,
    )
    return list(events)


async def _timed(events: Sequence[bytes], times: Sequence[float]) -> AsyncIterator[bytes]:
    """Events, each so many seconds after the first look at them."""
    begun = time.monotonic()
    for event, at in zip(events, times, strict=True):
        await _sleep(max(0.0, begun + at - time.monotonic()))
        if event:
            yield event


def _fork_facts(fork: Fork | None) -> dict[str, Any]:
    """What a status says of the fork that a run made."""
    if fork is None:
        return {"fork": None, "equal_answers": 0}
    made = None
    if fork.origin is not None:
        made = {
            "episode_id": fork.episode_id,
            "forked_from_episode_id": fork.origin,
            "forked_from_call_id": fork.after,
        }
    return {"fork": made, "equal_answers": fork.num_equal}
