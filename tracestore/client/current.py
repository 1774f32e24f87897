"""What the running code belongs to: episode, agent, last call. Each thread and asyncio task has its own.

`with episode:`, `with agent:` and `with agent.active():` say it, for the block and for the asyncio tasks that
are started in it. A thread starts with nothing: run its work in `contextvars.copy_context()`, as
`asyncio.to_thread` does by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracestore.client.recording import Agent, Call, Episode

_EPISODE: ContextVar[Episode | None] = ContextVar("tracestore_episode", default=None)
_AGENT: ContextVar[Agent | None] = ContextVar("tracestore_agent", default=None)
_USE: ContextVar[ToolUse | None] = ContextVar("tracestore_tool_use", default=None)
_CALL_FIELDS: ContextVar[dict[str, Any]] = ContextVar("tracestore_call_fields")
_TAKING = threading.Lock()


@dataclass(slots=True)
class ToolUse:
    """One tool use of a completion, which is executed once at most."""

    call_id: str
    completion: int
    tool_call_id: str | None
    name: str | None = None
    arguments: str | None = None
    event_id: str | None = None
    """Of the event that says what was sampled, where one was recorded."""
    input_responses: Any = None
    """What the user answered to what the tool asked, where it is called again for that. JSON."""
    _is_taken: bool = field(default=False, repr=False)

    def take(self) -> bool:
        """Whether it was free: it is the caller's now."""
        with _TAKING:
            was_free, self._is_taken = not self._is_taken, True
            return was_free

    @property
    def is_free(self) -> bool:
        """Whether nobody has taken it."""
        return not self._is_taken


def current_episode() -> Episode | None:
    """The episode of the innermost `with episode:`, or that of the current agent."""
    agent = _AGENT.get()
    return _EPISODE.get() if agent is None else agent.episode


def current_agent() -> Agent | None:
    """The agent of the innermost `with agent:` or `with agent.active():`, else the one open agent of the
    current episode; None where there is none or several."""
    agent = _AGENT.get()
    if agent is not None:
        return agent
    episode = _EPISODE.get()
    return None if episode is None else episode.only_agent


def current_call() -> Call | None:
    """The last recorded call of the current agent."""
    agent = current_agent()
    return None if agent is None else agent.last_call


def taken_use() -> ToolUse | None:
    """The tool use of the innermost `with call.tool_use(...)`, once."""
    use = _USE.get()
    return use if use is not None and use.take() else None


def call_fields() -> dict[str, Any]:
    """What `with agent.calls_are(...)` says of the calls recorded in it."""
    return _CALL_FIELDS.get({})


def enter_episode(episode: Episode) -> Token[Any]:
    return _EPISODE.set(episode)


def enter_agent(agent: Agent) -> Token[Any]:
    return _AGENT.set(agent)


def leave(token: Token[Any]) -> None:
    """Undo an enter."""
    # Where the block was entered in another context (a fixture, an async generator), that one has ended.
    with suppress(ValueError):
        token.var.reset(token)


@contextmanager
def using(use: ToolUse) -> Iterator[None]:
    token = _USE.set(use)
    try:
        yield
    finally:
        leave(token)


@contextmanager
def tool_use(tool_call_id: str, *, input_responses: Any = None) -> Iterator[None]:
    """The next decorated tool that runs in the block executes this use of the last recorded call.

    Where no call is recorded, as in a replay, it says the id alone. `Call.tool_use` names the call as well.

    Args:
        tool_call_id: the model's own id of the use, as in its message.
        input_responses: what the user answered to what the tool asked, where it is called again for that.
    """
    call = current_call()
    if call is None:
        use = ToolUse("", 0, tool_call_id, input_responses=input_responses)
    else:
        use = call._use(tool_call_id, 0, input_responses)
    with using(use):
        yield


@contextmanager
def active(agent: Agent) -> Iterator[None]:
    token = _AGENT.set(agent)
    try:
        yield
    finally:
        leave(token)


@contextmanager
def calls_with(fields: dict[str, Any]) -> Iterator[None]:
    token = _CALL_FIELDS.set({**call_fields(), **fields})
    try:
        yield
    finally:
        leave(token)
