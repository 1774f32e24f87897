"""The wall around the doors: a request passes it, or is answered here, before the app sees it.

In this order: the name it calls us by (421), where its page comes from (403), a key in its address (400),
who calls (401), how much that project sends (429). A browser lets any web page send requests to localhost
and to the network it is in: the `Host` allow-list stops DNS rebinding (a foreign name that resolves to us),
the `Origin` check stops plain cross-site posts, and CORS headers go to the origins of the settings only.

`Wall` also shortens the way to the doors that are plain ASGI at a fixed path: they are called directly.
FastAPI's stack of middlewares costs a post as much as decoding a small event.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracestore.errors import TracestoreError
from tracestore.settings import Settings
from tracestore_api.access import CALLER, KEY_HEADER, Caller, Callers, shown
from tracestore_api.errors import ForeignHost, ForeignOrigin, KeyInUrl, NoKey, RefusedKey
from tracestore_api.parameters import DEFAULT_PROJECT, PROJECT_HEADER, encoded_path, project_of
from tracestore_api.problems import problem_of, problem_response
from tracestore_api.proxy.names import PREFIX as PROXY
from tracestore_api.proxy.names import unfolded
from tracestore_api.rates import Rates

HEALTH = "/v1/health"
REPLAY = "/replay"
_LOOPBACK = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])", re.IGNORECASE)
_HOST = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::\d{1,5})?")
_KEY = re.compile(r"ts_[0-9A-Za-z]{8}_[0-9A-Za-z]")
_KEY_PARAMETER = re.compile(
    r"(?:^|[&;])(?:x-tracestore-key|api[_-]?key|access[_-]?token|key|token)=", re.IGNORECASE
)
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_METHODS = ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
_CORS_MAX_AGE_S = 600

Handler = Callable[[Request, Any], Response | Awaitable[Response]]


class Wall:
    """What is asked of every request; see the module."""

    def __init__(
        self, settings: Settings, *, callers: Callers, rates: Rates, own_hosts: Collection[str] = ()
    ) -> None:
        """
        Args:
            own_hosts: addresses that the server listens on, as they stand in a URL.
        """
        self._callers = callers
        self._rates = rates
        self._hosts = frozenset(name.lower() for name in (*settings.allow_host, *own_hosts))
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.allow_origin)
        self._is_ours = lru_cache(maxsize=256)(self._is_our_name)

    def cors(self, app: ASGIApp) -> ASGIApp:
        """The app, with CORS headers for the origins of the settings; as it is where there are none."""
        if not self._origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=sorted(self._origins),
            allow_methods=_METHODS,
            allow_headers=["Authorization", "Content-Type", "Content-Encoding", KEY_HEADER, PROJECT_HEADER],
            expose_headers=["Retry-After"],
            max_age=_CORS_MAX_AGE_S,
        )

    async def admit(self, scope: Scope, receive: Receive) -> Receive:
        """Let a request pass, and leave who calls in its scope. Its body is read from what is returned.

        Raises:
            ForeignHost, ForeignOrigin, KeyInUrl, NoKey, RefusedKey, TooMuch: it does not pass.
        """
        hosts: list[bytes] = []
        origins: list[bytes] = []
        key = authorization = cookie = None
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"authorization":
                authorization = value
            elif name == b"x-tracestore-key":
                key = value
            elif name == b"cookie":
                cookie = value
            elif name == b"origin":
                origins.append(value)
        host = self._own_host(hosts)
        is_own_page = self._is_own_page(origins, host)
        if scope["path"] == HEALTH:
            scope[CALLER] = None
            return receive
        _require_no_key_in(scope)
        # A cookie sent to the proxy is meant for the upstream: a session does not open it.
        is_ours = not scope["path"].startswith(f"{PROXY}/")
        caller = await self._callers.caller(shown(key, authorization, cookie if is_ours else None))
        if caller is not None and caller.in_session and not is_own_page:
            _require_same_origin(scope, origins)
        scope[CALLER] = caller
        return receive if not self._rates.are_set else self._rates.admit(_payer(scope, caller), receive)

    def _own_host(self, hosts: Sequence[bytes]) -> str:
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if not self._is_ours(host):
            named = ", ".join(one.decode("latin-1") for one in hosts)
            hint = "localhost, 127.0.0.1, [::1], the address it listens on, and what --allow-host names"
            raise ForeignHost(host=named or None, hint=hint)
        return host

    def _is_our_name(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and (
            _LOOPBACK.fullmatch(match[1]) is not None or match[1].lower() in self._hosts
        )

    def _is_own_page(self, origins: Sequence[bytes], host: str) -> bool:
        """Whether the page is one of this server, False for no page at all. Raises for a foreign one."""
        own = (f"http://{host.lower()}", f"https://{host.lower()}")
        is_own = False
        for origin in origins:
            text = origin.decode("latin-1").lower()
            is_own = text in own
            if not is_own and text not in self._origins:
                raise ForeignOrigin(
                    origin=origin.decode("latin-1"),
                    hint="pages of this server may call it, and of the origins that --allow-origin names",
                )
        return is_own


def _require_no_key_in(scope: Scope) -> None:
    path: str = scope["path"]
    query: str = scope["query_string"].decode("latin-1")
    is_key = ("ts_" in path or "ts_" in query) and _KEY.search(f"{path}?{query}")
    # What a query to the upstream of the recording proxy holds is the upstream's affair.
    if is_key or (query and not path.startswith(f"{PROXY}/") and _KEY_PARAMETER.search(query)):
        raise KeyInUrl(
            hint=f"send it in the header Authorization (Bearer) or {KEY_HEADER}, and revoke this one"
        )


def _require_same_origin(scope: Scope, origins: Sequence[bytes]) -> None:
    """A browser sends the cookie along whoever asks; `SameSite` does not tell ports of one host apart."""
    if origins or scope["method"] not in _SAFE_METHODS:
        raise ForeignOrigin(
            origin=origins[0].decode("latin-1") if origins else None,
            hint="in a session, pages of this server itself may change something; others send a key",
        )


def _payer(scope: Scope, caller: Caller | None) -> str:
    """The project whose rate a request is counted for."""
    if caller is not None:
        return caller.key.project
    is_named = any(name == b"x-tracestore-project" for name, _ in scope["headers"])
    return project_of(Request(scope).headers) if is_named else DEFAULT_PROJECT


def refusal(error: TracestoreError) -> Response:
    """An error as a response. A 401 says how to be let in, as RFC 9110 asks."""
    headers = {}
    if isinstance(error, (NoKey, RefusedKey)):
        challenge = 'Bearer realm="tracestore"'
        headers["www-authenticate"] = (
            challenge if isinstance(error, NoKey) else f'{challenge}, error="invalid_token"'
        )
    return problem_response(problem_of(error), headers=headers)


class Entrance:
    """ASGI: through the wall, then straight to a plain door, or else into the app."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        wall: Wall,
        doors: Mapping[tuple[str, str], ASGIApp],
        handlers: Mapping[Any, Handler],
    ) -> None:
        """
        Args:
            doors: by method and path; of one that ends with `/`, all paths that begin with its name.
            handlers: for the errors of doors, by class, as the app itself has them.
        """
        self._app = app
        self._wall = wall
        self._doors = doors
        self._handlers = handlers
        self._answer = wall.cors(self._guarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = encoded_path(scope)
            if scope["path"].startswith((PROXY, REPLAY)):
                scope["headers"] = unfolded(scope["headers"])
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            receive = await self._wall.admit(scope, receive)
        except TracestoreError as error:
            await refusal(error)(scope, receive, send)
            return
        except Exception as error:  # noqa: BLE001 - the database of the keys may fail in any way
            response = await self._answer_to(error, Request(scope))
            await response(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        first = path[: path.find("/", 1) + 1]  # "" where there is but one name
        door = self._doors.get((method, path)) or self._doors.get((method, first))
        if door is None:
            await self._app(scope, receive, send)
        else:
            await self._through(door, scope, receive, send)

    async def _through(self, door: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def noting(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await door(scope, receive, noting)
        except Exception as error:
            if is_answered:
                raise
            response = await self._answer_to(error, Request(scope, receive))
            await response(scope, receive, send)

    async def _answer_to(self, error: Exception, request: Request) -> Response:
        for kind in type(error).__mro__:
            if kind in self._handlers:
                try:
                    return await _response(self._handlers[kind](request, error))
                except Exception as fault:  # noqa: BLE001 - a handler gives back what is not for it to answer
                    error = fault
                    break
        return await _response(self._handlers[Exception](request, error))


async def _response(made: Response | Awaitable[Response]) -> Response:
    return made if isinstance(made, Response) else await made
