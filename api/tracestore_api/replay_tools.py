"""`POST /replay/.../tools/call`: a tool that would run -> what came back when it ran.

    {"name": "search", "arguments": {"query": "x"}, "tool_call_id": "call_1"}
    -> {"result": ["..."], "status": "ok", "error": null, "exit_status": null, "tool_call": "...", ...}

A tool that failed is answered too: `status` says so, `error` how. `tool_call_id` may be left out;
`input_responses` is what the user answered to what the tool asked, where it is called again for that. What
was never recorded is 409, as it is for models (`replay`), and so is what was deleted or redacted since. The
same tools over MCP are in `replay_mcp`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from anyio import to_thread
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tracestore.graph.spans import first_byte, members
from tracestore.importers.documents import embedded
from tracestore.replay.answers import encoded
from tracestore.replay.definitions import ToolDefinition, tool_definitions
from tracestore.replay.tape import NotRecorded, NotReplayable
from tracestore.replay.tools import AskedTool, ToolTape, asked_tool, recorded_tools
from tracestore.store.changes import are_untouched
from tracestore.store.store import Store
from tracestore.wire.base import Raw
from tracestore_api.body import Admission, coding_of, decompress, read_body
from tracestore_api.errors import InvalidReplay
from tracestore_api.problems import problem_of, problem_response
from tracestore_api.proxy.capture import text_of
from tracestore_api.proxy.lineage import Recent
from tracestore_api.proxy.names import Address, Names
from tracestore_api.replay_mcp import serve_mcp, server_named

_CALL = "/tools/call"
_FIELDS = frozenset({"name", "arguments", "tool_call_id", "input_responses"})
_TAPES = 10_000
"""Sets of episodes of which it is known how far their runs have come."""
_MAX_BYTES = 2**28
"""Of recorded tool calls, and of the requests that define tools, that are held in memory."""
_FRESH_S = 1.0
"""For how long what was read is taken to be what there is."""
_NOT_READ = -1
"""Snapshot of a tape whose tool calls were let go."""
_LOCKS = 64

_Episodes = tuple[str, ...]
_Key = tuple[str, _Episodes]
"""A project, and some of its episodes."""


@dataclass(frozen=True)
class _Held:
    """The tools of some episodes, and the state of the store that they are of."""

    tape: ToolTape
    requests: tuple[Raw | None, ...]
    """Of their calls, which define tools."""
    snapshot: int
    looked_at: float
    num_bytes: int

    @property
    def is_fresh(self) -> bool:
        """Whether it may answer without another look."""
        return time.monotonic() - self.looked_at < _FRESH_S


class Tools:
    """The recorded tool calls of a store; an episode is read when the first of its tools is asked for."""

    def __init__(self, store: Store, *, admission: Admission, max_body_bytes: int) -> None:
        self._store = store
        self._admission = admission
        self._max_body_bytes = max_body_bytes
        self._tapes: Recent[_Key, _Held] = Recent(_TAPES)
        self._lock = threading.Lock()
        """Of `_tapes`."""
        self._loading = [threading.Lock() for _ in range(_LOCKS)]
        """By hash of the key: while a long episode is read, others answer."""

    @staticmethod
    def are_at(path: str) -> bool:
        """Whether a path, without the names before it, is of a tool."""
        return path == _CALL or server_named(path) is not None

    async def serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        project: str,
        episodes: Callable[[Names], _Episodes],
        address: Address,
    ) -> None:
        """Answer one request.

        Args:
            episodes: that names stand for.
        """
        names, server = address.names, server_named(address.path)
        if server is None:
            response = await self._answered(scope, receive, project, episodes, names)
            if response is not None:
                await response(scope, receive, send)
            return
        held = await to_thread.run_sync(self._look, project, episodes(names))
        listed = partial(_definitions, held)
        await serve_mcp(
            *(held.tape, listed), name=server, names=names, scope=scope, receive=receive, send=send
        )

    async def _answered(
        self,
        scope: Scope,
        receive: Receive,
        project: str,
        episodes: Callable[[Names], _Episodes],
        names: Names,
    ) -> Response | None:
        """None: the client went away."""
        headers, most = scope["headers"], self._max_body_bytes
        with self._admission.ticket() as ticket:
            length = text_of(headers, "content-length")
            body = await read_body(receive, content_length=length, max_bytes=most, ticket=ticket)
            if body is None:
                return None
            coding = coding_of(text_of(headers, "content-encoding"))
            asked = tool_of(decompress(body, coding=coding, max_bytes=most, ticket=ticket))
            held = await to_thread.run_sync(self._look, project, episodes(names))
            return tool_response(held.tape, asked, names)

    def status(self, project: str, episodes: _Episodes, run: str) -> dict[str, Any] | None:
        """How far a run has come; None: nobody has asked for a tool of these episodes."""
        if self._held((project, episodes)) is None:
            return None
        return self._look(project, episodes).tape.status(run)

    def rewind(self, project: str, episodes: _Episodes, run: str) -> None:
        """Let a run begin again."""
        held = self._held((project, episodes))
        if held is not None:
            held.tape.rewind(run)

    def _look(self, project: str, episodes: _Episodes) -> _Held:
        """What the store has now, or had a second ago."""
        key = (project, episodes)
        held = self._held(key)
        if held is None or not held.is_fresh:
            with self._loading[hash(key) % _LOCKS]:  # two first requests find one tape, with one place in it
                held = self._held(key)
                if held is None or not held.is_fresh:
                    held = self._read(key, held)
                    with self._lock:
                        self._tapes.put(key, held)
                        self._make_room()
        return held

    def _held(self, key: _Key) -> _Held | None:
        with self._lock:
            return self._tapes.get(key)

    def _read(self, key: _Key, held: _Held | None) -> _Held:
        project, episodes = key
        looked_at = time.monotonic()
        snapshot = self._store.snapshot(project)  # before the events: what comes between is read again
        if held is not None and (
            held.snapshot == snapshot
            or are_untouched(self._store, *key, after=held.snapshot, snapshot=snapshot)
        ):
            return replace(held, snapshot=snapshot, looked_at=looked_at)
        events = [self._store.load(project, episode) for episode in episodes]
        tools = [one for some in events for one in recorded_tools(some)]
        if held is None:
            tape = ToolTape(tools)
        else:
            tape = held.tape
            tape.refresh(tools)
        requests = tuple(event.request for some in events for event in some if event.kind == "call")
        size = tape.num_bytes + sum(len(one) for one in requests if one is not None)
        return _Held(tape, requests, snapshot, looked_at, size)

    def _make_room(self) -> None:
        """Let go of the tool calls that were asked for longest ago, not of how far their runs have come."""
        size = 0
        for place, (key, one) in enumerate(reversed(self._tapes.items())):
            size += one.num_bytes
            if place > 0 and size > _MAX_BYTES and one.num_bytes:
                let_go = _Held(one.tape.without_calls(), (), _NOT_READ, looked_at=-math.inf, num_bytes=0)
                self._tapes.replace(key, let_go)


def _definitions(held: _Held) -> list[ToolDefinition]:
    return tool_definitions(held.requests, also=held.tape.names)


def tool_of(text: bytes) -> AskedTool:
    """A request's body as a run of a tool.

    Raises:
        InvalidReplay: it is no JSON object, or has other fields.
        NotARun: its fields are not what they should be.
    """
    body = embedded(text.decode("utf-8", "backslashreplace"))
    if body is None or first_byte(body) != b"{":
        raise InvalidReplay(path=_CALL, hint="the body is a JSON object with name and arguments")
    fields = {name: Raw(body[start:end]) for name, (start, end) in members(body).items()}
    if unknown := sorted(fields.keys() - _FIELDS):
        raise InvalidReplay(path=_CALL, field=unknown[0], hint=f"fields are {', '.join(sorted(_FIELDS))}")
    given = {name: value for name, value in fields.items() if value != b"null"}
    plain = {name: given[name].value() for name in ("name", "tool_call_id") if name in given}
    return asked_tool(
        plain.get("name"),
        given.get("arguments"),
        tool_call_id=plain.get("tool_call_id"),
        input_responses=given.get("input_responses"),
    )


def tool_response(tape: ToolTape, asked: AskedTool, names: Names) -> Response:
    """What a run gave, or the problem that it was never recorded."""
    agent = names.get("agent") or names.get("agent-name")
    try:
        played = tape.answer(asked, run=names.get("run") or "", agent=agent)
        facts = played.recorded.outcome()
    except (NotRecorded, NotReplayable) as error:
        return problem_response(problem_of(error), headers={"x-should-retry": "false"})
    facts |= {
        "tool_call": played.recorded.id,
        "tool_call_id": played.recorded.run.tool_call_id,
        "occurrence": played.occurrence,
        "by_arrival": played.by_arrival,
    }
    return Response(encoded(facts), media_type="application/json")
