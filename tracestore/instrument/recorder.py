"""What passed a transport -> the events of a call: request, answer, tool uses, attempts, what is missing."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tracestore.client import Agent, Client, ClientError, Episode, ToolUse, current_agent, current_episode
from tracestore.client.current import call_fields
from tracestore.client.recording import Call, Completion, policy_fields
from tracestore.ids import new_id
from tracestore.importers import cuts
from tracestore.importers.exchanges import Exchange, answered, call_of, request_body
from tracestore.importers.notes import Notes
from tracestore.importers.streams import Answer
from tracestore.wire.call import Call as CallEvent
from tracestore.wire.call import CallError, Policy
from tracestore.wire.tool_call import ToolCall

_log = logging.getLogger("tracestore.client")

_KEPT_HEADERS = frozenset(
    {"x-stainless-retry-count", "x-request-id", "request-id", "openai-processing-ms", "retry-after"}
)
"""Of requests and responses: what tells attempts apart, and what a provider's support asks for."""


@dataclass
class _Tries:
    """One call and its attempts so far."""

    agent: Agent
    names: dict[str, Any]
    rest: dict[str, Any]
    exchanges: list[Exchange] = field(default_factory=list)


_LAST: ContextVar[_Tries | None] = ContextVar("tracestore_last_call", default=None)
"""Of the running code: an SDK tries again where it tried first."""


class Recorder:
    """Which calls are recorded, and under which agent."""

    def __init__(self, *, agent: Agent | None, client: Client | None) -> None:
        self._agent = agent
        self._client = client
        self._lock = threading.Lock()
        self._own_episode: Episode | None = None
        self._own_agents: weakref.WeakKeyDictionary[Episode, Agent] = weakref.WeakKeyDictionary()
        self._is_told = False

    def wants(self, method: str, url: str) -> bool:
        """Whether a request is a call of a model that has a place to be recorded in."""
        if method != "POST" or Exchange(url=url).dialect is None:
            return False
        has_place = self._agent or self._client or current_episode()
        if not has_place and not self._is_told:
            self._is_told = True
            _log.warning("a model call outside of any episode is not recorded: give wrap a client for those")
        return has_place is not None

    async def wait_for_room(self) -> None:
        """Let the event loop go on while the client's queue is full."""
        episode = current_episode()
        client = self._agent.client if self._agent else episode.client if episode else self._client
        if client is not None and client.is_full:
            from anyio import to_thread  # httpx brings it

            await to_thread.run_sync(client.wait_for_room)

    def begin(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Pending:
        """A request that is about to be sent: a call, or another try of the last one."""
        exchange = Exchange(
            method=method,
            url=url,
            request=body,
            request_headers=_kept(headers),
            started_at=time.time_ns(),
        )
        last = _LAST.get()
        if last is None or not exchange.retries or not _is_next_try(exchange, last.exchanges):
            agent = self._agent_now()
            last = _Tries(agent, *_named(agent))
            _LAST.set(last)
        last.exchanges.append(exchange)
        return Pending(last, exchange)

    def _agent_now(self) -> Agent:
        agent = self._agent or current_agent()
        if agent is not None:
            return agent
        with self._lock:
            episode = current_episode() or self._gathering()
            if episode not in self._own_agents:
                # Beside several open agents, none of which is current, it is nobody's.
                self._own_agents[episode] = episode.agent(role=None if episode.has_open_agents else "main")
            return self._own_agents[episode]

    def _gathering(self) -> Episode:
        """The episode of calls that are made outside of any."""
        if self._own_episode is None:
            assert self._client is not None
            self._own_episode = self._client.episode()
        return self._own_episode


def _kept(headers: Mapping[str, str]) -> dict[str, Any]:
    return {name.lower(): value for name, value in headers.items() if name.lower() in _KEPT_HEADERS}


def _is_next_try(exchange: Exchange, before: list[Exchange]) -> bool:
    return exchange.retries == len(before) and exchange.request == before[-1].request


def _named(agent: Agent) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a call's event says of where it belongs, and what goes into its `meta`."""
    stated = call_fields()
    policy = policy_fields(stated.get("policy") or agent.policy)
    parent = stated.get("parent")
    of = parent.call if isinstance(parent, Completion) else parent
    names = {
        "id": new_id(),
        "episode_id": agent.episode.id,
        "agent_id": agent.id,
        "ordinal": agent.next_ordinal(),
        "purpose": stated.get("purpose", "act"),
        "policy": None if policy is None else Policy(**policy),
        "parent_call_id": of and of.id,
        "parent_completion": parent.index if isinstance(parent, Completion) else None,
        "logprobs_are": stated.get("logprobs_are"),
    }
    return {key: one for key, one in names.items() if one is not None}, dict(stated.get("meta") or {})


class Pending:
    """One request on its way, and what has come back so far."""

    def __init__(self, tries: _Tries, exchange: Exchange) -> None:
        self._tries = tries
        self._exchange = exchange
        self._chunks: list[bytes] = []
        self._times: list[int] = []
        self._response: Any = None
        self._is_ended = False
        self.is_whole = False
        """Whether the response came to its end."""

    def answered(self, response: Any) -> None:
        """The response's head has come."""
        self._response = response
        self._exchange.status = response.status_code
        self._exchange.response_headers = _kept(response.headers)

    def take(self, chunk: bytes) -> None:
        """Some bytes of its body have come, as they were sent."""
        now = time.time_ns()
        if not self._chunks and self._is_stream:
            self._tries.names["first_token_at"] = now
        self._chunks.append(chunk)
        self._times.append(now)

    @property
    def _is_stream(self) -> bool:
        return "event-stream" in self._response.headers.get("content-type", "")

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes: the response is whole, was left by its reader, or broke. Records it, once."""
        if self._is_ended:
            return
        self._is_ended = True
        self._exchange.ended_at = time.time_ns()
        if self._exchange.status is not None and 300 <= self._exchange.status < 400:
            return  # sent on to another address, where it is recorded
        try:
            self._record(error)
        # Whatever it is: the harness's own call has succeeded, and must not fail for this.
        except Exception as problem:  # noqa: BLE001
            self._lost(problem)

    def _record(self, error: BaseException | None) -> None:
        exchange, tries, names = self._exchange, self._tries, self._tries.names
        exchange.response = _decoded(self._response, self._chunks) or None
        answer = answered(exchange.response)
        if error is not None:
            exchange.broken = CallError(type=type(error).__name__, message=str(error) or None)
        elif not (self.is_whole or _is_complete(answer)):
            exchange.broken = CallError(type="closed", message="the response was closed before its end")
        if exchange.status is None:
            names = {**names, "status": "failed"}
        items = list(
            call_of(
                tries.exchanges,
                answer=answer,
                request=request_body(exchange.request),
                names=names,
                notes=Notes(),
                rest={**self._stream(answer), **tries.rest},
            )
        )
        for item in items:
            tries.agent.client.record(item.text)
        tries.agent.last_call = _handle(tries.agent, [item.event for item in items])

    def _stream(self, answer: Answer | None) -> dict[str, Any]:
        """How a stream that came was cut, and when."""
        if answer is None or not answer.events:
            return {}
        is_plain = "content-encoding" not in self._response.headers
        since = self._exchange.started_at or 0
        times = cuts.times(self._chunks, self._times, since=since) if is_plain and self._is_stream else None
        found = cuts.told(cuts.cuts_of(answer), times)
        return {} if found is None else {cuts.KEPT_AS: found}

    def _lost(self, problem: Exception) -> None:
        _log.error("a model call could not be recorded: %s: %s", type(problem).__name__, problem)
        agent = self._tries.agent
        try:
            agent.episode.gap("recording_failed", f"{type(problem).__name__}: {problem}", agent=agent)
        except ClientError as error:
            _log.error("nor could its gap: %s", error)


def _is_complete(answer: Answer | None) -> bool:
    """Whether an answer's last event came, after which a reader need not read on."""
    return answer is not None and bool(answer.choices) and not any(one.partial for one in answer.choices)


def _handle(agent: Agent, events: list[Any]) -> Call:
    (call,) = (event for event in events if isinstance(event, CallEvent))
    uses = tuple(
        ToolUse(call.id, use.completion or 0, use.tool_call_id, use.name, use.arguments, use.id)
        for use in events
        if isinstance(use, ToolCall)
    )
    return Call(agent, call.id, len(call.completions or ()), call.policy is not None, uses)


def _decoded(response: Any, chunks: list[bytes]) -> bytes:
    """A body as far as it came, without its Content-Encoding."""
    encoding = None if response is None else response.headers.get("content-encoding")
    if encoding is None:
        return b"".join(chunks)
    # Its own library decodes whatever it has asked for.
    whole = type(response)(200, headers={"content-encoding": encoding}, content=iter(chunks))
    parts: list[bytes] = []
    try:
        parts.extend(whole.iter_bytes())
    except Exception:  # noqa: BLE001  (the library's own: the body is cut short, and what came is kept)
        _log.debug("a response body in %s is cut short", encoding)
    return b"".join(parts)
