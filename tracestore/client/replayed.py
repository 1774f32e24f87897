"""A tool that would run -> what came back when it was recorded; the function itself does not run.

    with replayed_tools("http://127.0.0.1:8421/replay/episode=e1"):
        search("bridges")     # a function under @tool

Or, for a whole process, $TRACESTORE_REPLAY_TOOLS with that URL (and $TRACESTORE_REPLAY_PROJECT), which
`tracestore replay --tools` sets. Where an agent is recorded, so is the replayed run. Values are what JSON
makes of them: a tuple comes back as a list. A tool that failed fails again: see `RecordedToolError`.
"""

from __future__ import annotations

import builtins
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from tracestore.client.errors import ClientError, NotReplayed, RecordedToolError, RequestRefused, ServerAway
from tracestore.client.server import checked_url
from tracestore.client.settings import DEFAULT_URL, Settings

_CURRENT: ContextVar[ToolReplay | None] = ContextVar("tracestore_tool_replay", default=None)
_NOT_VALUES = frozenset({"type", "title", "status", "detail", "hint"})
"""Members of a problem that are no facts of ours."""
_PORTS = {"http": 80, "https": 443}
"""Where a URL names none."""


class ToolReplay:
    """The recorded tool calls of some episodes, at a server.

    Args:
        url: of the replay, such as `http://127.0.0.1:8421/replay/episode=e1`.
        run: name of this run of the harness; each has its own places.
        agent: id or name of the agent whose tools run; without it equal runs of several agents go by
            arrival, where they do not say their tool_call_id.
        api_key: as of `Client`, as is `project`; that of the environment goes to the server that
            $TRACESTORE_URL names alone, for it is of no use to another one.
        timeout_s: for one request.
    """

    def __init__(
        self,
        url: str,
        *,
        run: str | None = None,
        agent: str | None = None,
        api_key: str | None = None,
        project: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        parts = checked_url(url)
        settings = Settings.read(
            url=None, api_key=api_key, project=project, spool_dir=None, environ=_environ_for(parts)
        )
        self.url = url
        self._address = (parts.scheme == "https", parts.hostname, parts.port, timeout_s)
        self._path = f"{parts.path.rstrip('/')}/tools/call"
        stated = {"X-Tracestore-Run": run, "X-Tracestore-Agent": agent}
        headers = settings.headers() | {name: value for name, value in stated.items() if value is not None}
        # Names are UTF-8; http.client would write str as latin-1.
        self._headers = {name: value.encode("utf-8") for name, value in headers.items()}

    def result(
        self, name: str, arguments: str, *, tool_call_id: str | None = None, input_responses: Any = None
    ) -> Any:
        """What this run gave when it was recorded.

        Args:
            arguments: JSON text.

        Raises:
            RecordedToolError: it failed then.
            NotReplayed: it was never recorded, or cannot be given again; with the nearest one.
            ServerAway, RequestRefused: nobody answers, or not to this.
        """
        asked = {"name": name, "arguments": arguments, "tool_call_id": tool_call_id}
        status, told = self._answer(json.dumps(asked | {"input_responses": input_responses}).encode("ascii"))
        if status == 200:
            if told["result"] is None and told["status"] in ("failed", "timeout"):
                raise recorded_error(told["error"], status=told["status"])
            return told["result"]
        if status != 409:
            raise RequestRefused(http_status=status, hint=told.get("detail") or f"{self.url} is no replay")
        values = {key: value for key, value in told.items() if key not in _NOT_VALUES}
        raise NotReplayed(hint=told.get("hint"), **{"tool": name, **values})

    def _answer(self, body: bytes) -> tuple[int, dict[str, Any]]:
        is_secure, host, port, timeout_s = self._address
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        try:
            with closing(kind(host, port, timeout=timeout_s)) as connection:
                connection.request("POST", self._path, body, self._headers)
                response = connection.getresponse()
                told = json.loads(response.read())
        except (OSError, http.client.HTTPException) as error:
            problem = f"{self.url}: {type(error).__name__}: {error}"
            raise ServerAway(problem=problem, hint="is `tracestore replay` running there?") from None
        except ValueError:
            told = None
        if not isinstance(told, dict) or (response.status == 200 and "status" not in told):
            raise RequestRefused(http_status=response.status, hint=f"{self.url} is no replay of tracestore")
        return response.status, told


def _environ_for(replay: Any) -> dict[str, str]:
    """The environment, without the API key where the replay is at another server than the key is for.

    Args:
        replay: the parts of its URL.
    """
    environ = dict(os.environ)
    if _origin(checked_url(environ.get("TRACESTORE_URL") or DEFAULT_URL)) != _origin(replay):
        environ.pop("TRACESTORE_API_KEY", None)
    return environ


def _origin(parts: Any) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname, parts.port or _PORTS[parts.scheme]


@contextmanager
def replayed_tools(url: str | None = None, **options: Any) -> Iterator[ToolReplay]:
    """Functions under `@tool` give what was recorded, in this block and in the asyncio tasks that it starts.

    Args:
        url: of the replay (default: $TRACESTORE_REPLAY_TOOLS).
        options: as of `ToolReplay`.

    Raises:
        ClientError: there is no URL, or it is none.
    """
    url = url or os.environ.get("TRACESTORE_REPLAY_TOOLS")
    if not url:
        raise ClientError(hint="name the replay: replayed_tools('http://127.0.0.1:8421/replay/episode=e1')")
    options.setdefault("project", os.environ.get("TRACESTORE_REPLAY_PROJECT") or None)
    token = _CURRENT.set(ToolReplay(url, **options))
    try:
        replay = _CURRENT.get()
        assert replay is not None
        yield replay
    finally:
        _CURRENT.reset(token)


def current_replay() -> ToolReplay | None:
    """The replay of the innermost `with replayed_tools(...)`, else that of the environment."""
    found = _CURRENT.get()
    if found is not None:
        return found
    url = os.environ.get("TRACESTORE_REPLAY_TOOLS")
    return _of_environment(url, os.environ.get("TRACESTORE_REPLAY_PROJECT") or None) if url else None


@lru_cache(maxsize=8)
def _of_environment(url: str, project: str | None) -> ToolReplay:
    return ToolReplay(url, project=project)


def recorded_error(text: str | None, *, status: str) -> RecordedToolError:
    """What to raise for an error that was recorded as `Type: message`.

    Its class is called as that type was, and is a kind of it where that type is built in, so that whoever
    caught it or showed its name does so again. A timeout is a `TimeoutError`.
    """
    name, colon, message = (text or "").partition(": ")
    if not colon or not name.isidentifier():
        return RecordedToolError(text or f"it ended as {status}, and nothing says how")
    base = getattr(builtins, name, None)
    is_usual = isinstance(base, type) and issubclass(base, Exception) and not issubclass(base, ExceptionGroup)
    bases: list[type] = [base] if is_usual and isinstance(base, type) else []
    if status == "timeout" and not any(issubclass(one, TimeoutError) for one in bases):
        bases.append(TimeoutError)
    kind = type(name, (RecordedToolError, *bases), {})
    error = kind(message)
    assert isinstance(error, RecordedToolError)
    return error
