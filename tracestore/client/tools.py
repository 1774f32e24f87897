"""A Python function -> tool calls: `@tool` records each run of it under the current agent and its last call.

    @tool
    def search(query: str) -> list[str]: ...

    with episode.agent(model="m") as agent:
        answer = agent.call(messages=asked, completion=planned)
        with answer.tool_use("call_1"):   # the model's own id; not needed where a wrapped SDK made the call
            search("bridges")

Outside of an agent the function runs unrecorded. Recording never changes what it gives back or raises. Under
a replay (`tracestore.client.replayed`) it does not run: what it gave or raised when recorded comes back.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, overload

from tracestore.client.current import ToolUse, current_agent, current_call, taken_use, using
from tracestore.client.errors import ClientError, NotRecordable
from tracestore.client.outcome import status_of, text_of
from tracestore.client.replayed import ToolReplay, current_replay

if TYPE_CHECKING:
    from tracestore.client.recording import Agent, Call

_log = logging.getLogger("tracestore.client")
_Function = TypeVar("_Function", bound=Callable[..., Any])


@overload
def tool(function: _Function, /) -> _Function: ...
@overload
def tool(*, name: str | None = None) -> Callable[[_Function], _Function]: ...
def tool(function: Any = None, /, *, name: str | None = None) -> Any:
    """Record every run of a function, sync or async, as a tool call: arguments, result or error, times.

    The tool use that it executes is the one named by `with call.tool_use(...)`; else, where the call was
    recorded by a wrapped SDK, the first free one of this name with these arguments, or the only one of this
    name; else unknown. Arguments and results that are no JSON are recorded by their `repr`: `meta` says so.

    Args:
        name: of the tool, where it is not the function's.

    Raises:
        ClientError: the function is a generator, whose run has no one result.
    """
    if function is None:
        return lambda function: tool_named(function, name or function.__name__)
    return tool_named(function, name or function.__name__)


def tool_named(function: Any, name: str) -> Any:
    """The function, recorded under a name."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ClientError(tool=name, hint="a generator has no one result: return a list, or record by hand")
    signature = inspect.signature(function)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            replay = current_replay()
            with _recorded(name, signature, args, kwargs, is_replayed=replay is not None) as ran:
                if replay is None:
                    ran.outcome.append(await function(*args, **kwargs))
                else:
                    ran.outcome.append(await _in_thread(ran.replayed, replay))
                return ran.outcome[0]

        return run_async

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        replay = current_replay()
        with _recorded(name, signature, args, kwargs, is_replayed=replay is not None) as ran:
            ran.outcome.append(function(*args, **kwargs) if replay is None else ran.replayed(replay))
            return ran.outcome[0]

    return run


@dataclass(slots=True)
class _Ran:
    """A run, while it lasts."""

    name: str
    arguments: str = "{}"
    meta: dict[str, Any] = field(default_factory=dict)
    use: ToolUse | None = None
    outcome: list[Any] = field(default_factory=list)
    """Its result, once there is one."""

    def replayed(self, replay: ToolReplay) -> Any:
        """What it gave when it was recorded."""
        use = self.use or _NO_USE
        return replay.result(
            self.name, self.arguments, tool_call_id=use.tool_call_id, input_responses=use.input_responses
        )


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    import asyncio  # is there where a coroutine runs, and would double the import time of the client

    return await asyncio.to_thread(function, *args)


@contextmanager
def _recorded(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    is_replayed: bool,
) -> Iterator[_Ran]:
    """Time what runs in the block and record it, with the result that is put into its outcome."""
    agent, call, ran = current_agent(), current_call(), _Ran(name)
    if agent is None and not is_replayed:
        yield ran
        return
    error: BaseException | None = None
    begin = time.time_ns()
    # Written down before it runs: it may change what it is given.
    ran.arguments, ran.meta = _arguments(signature, args, kwargs)
    ran.use = taken_use() or _matching(call, name, ran.arguments)
    try:
        with using(_NO_USE):  # a tool inside this one executes another use
            yield ran
    except BaseException as raised:
        error = raised
        raise
    finally:
        if agent is not None and not (is_replayed and isinstance(error, ClientError)):
            _record(agent, call, ran, error, begin=begin)


_NO_USE = ToolUse("", 0, None)
_NO_USE.take()


def _arguments(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The arguments as JSON text by name, and what to say of it."""
    try:
        named = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError:  # the function will say so itself
        named = {"args": list(args), **kwargs}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named |= named.pop(parameter.name, {})
    text, is_repr = _json_or_repr({key: one for key, one in named.items() if key not in ("self", "cls")})
    return text, {"arguments_hold_repr": True} if is_repr else {}


def _json_or_repr(value: Any) -> tuple[str, bool]:
    """JSON text, and whether something in it stands there by its `repr`."""
    unknown: list[str] = []

    def shown(one: Any) -> str:
        unknown.append(repr(one))
        return unknown[-1]

    try:
        return json.dumps(value, default=shown), bool(unknown)
    except (TypeError, ValueError, RecursionError):
        return json.dumps(repr(value)), True


def _matching(call: Call | None, name: str, arguments: str) -> ToolUse | None:
    """The use that a run executes, among those that the call is known to hold."""
    named = [use for use in (call.uses if call is not None else ()) if use.name == name and use.is_free]
    same = [use for use in named if _value(use.arguments) == json.loads(arguments)]
    for use in same or (named if len(named) == 1 else []):
        if use.take():
            return use
    return None


def _value(text: str | None) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def _record(agent: Agent, call: Call | None, ran: _Ran, error: BaseException | None, *, begin: int) -> None:
    outcome, meta = ran.outcome, dict(ran.meta)
    use = ran.use if ran.use is not None and ran.use.call_id else None
    if ran.use is not None and ran.use.input_responses is not None:
        meta["input_responses"] = ran.use.input_responses
    if outcome and outcome[0] is None:
        meta["result_is_none"] = True  # null says on the wire that no result is known
    fields: dict[str, Any] = {
        "name": ran.name,
        "arguments": ran.arguments,
        "status": {"interrupted": "cancelled"}.get(status := status_of(error), status),
        "error": text_of(error),
        "started_at": begin,
        "ended_at": time.time_ns(),
    }
    try:
        if use is None and call is None:
            agent.episode.gap(
                "tool_call_without_call", f"{ran.name} ran before any recorded call", agent=agent
            )
            return
        of = use if use is not None else call
        assert of is not None
        try:
            agent.tool_call(of, result=outcome[0] if outcome else None, meta=meta or None, **fields)
        except NotRecordable:
            agent.tool_call(of, result=repr(outcome[0]), meta={**meta, "result_is_repr": True}, **fields)
    except ClientError as problem:
        _log.error("the tool call of %s is not recorded: %s", ran.name, problem)
