"""Request -> who calls, which project it may touch, and what it may do there: every door asks here first.

`Callers` finds out who calls, before any door is reached (`guard`), and leaves it in the scope; `admitted`
reads it there. A door that does not ask is reached with a key all the same, of any scope.

A key is read from the database and remembered for `REMEMBERED_S` seconds, so that a request costs no query.
That is how long a key that was revoked still works.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request
from sqlalchemy import Engine
from starlette.datastructures import Headers
from starlette.types import Scope

from tracestore.store.keys import Key, Right, find_key, find_session, has_keys, hash_of, is_key
from tracestore_api.errors import ForeignProject, MissingRight, NoKey, RefusedKey
from tracestore_api.parameters import named_project, project_of

CALLER = "tracestore.caller"
KEY_HEADER = "X-Tracestore-Key"
SESSION_COOKIE = "tracestore_session"
REMEMBERED_S = 2.0
_REMEMBERED_KEYS = 1024
_LOOKUPS = 4
"""Threads that look keys up: not those of the reads, behind which a post would have to wait."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    key: Key
    in_session: bool
    """By the cookie of a browser session, not by the key itself."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request shows of itself."""

    key: str | None
    """Text that should be a key of ours, whatever it is."""
    cookie: str | None
    """Of a browser session. A request that shows a key does not need it."""


def shown(header_key: bytes | None, authorization: bytes | None, cookie: bytes | None) -> Shown:
    """What the three headers show; each is None where it is absent.

    `X-Tracestore-Key` wins: behind the recording proxy, `Authorization` belongs to the upstream.
    """
    if header_key is not None:
        return Shown(header_key.decode("latin-1").strip(), None)
    if authorization is not None:
        scheme, _, text = authorization.decode("latin-1").partition(" ")
        return Shown(text.strip() if scheme.lower() == "bearer" else "", None)
    return Shown(None, None if cookie is None else _session_in(cookie.decode("latin-1")))


def _session_in(cookies: str) -> str | None:
    for pair in cookies.split(";"):
        name, _, value = pair.strip().partition("=")
        if name == SESSION_COOKIE:
            return value
    return None


class Callers:
    """Who calls, by the key or the session that a request shows."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Args:
            clock: seconds, for how long something is remembered.
            now: nanoseconds UTC, for when a key expires.
        """
        self._engine = engine
        self._clock = clock
        self._now = now
        self._remembered: dict[bytes, tuple[Key, float]] = {}
        self._looking: dict[bytes, asyncio.Task[Key | None]] = {}
        self._threads = CapacityLimiter(_LOOKUPS)
        # Asked at once: no request may pass while the first answer is awaited.
        self._are_needed = self._has_keys()
        self._asked_at = clock()

    async def caller(self, what: Shown) -> Caller | None:
        """Who shows this; None while the database has no keys, and everybody may do everything.

        Raises:
            NoKey: it shows nothing that could be a key.
            RefusedKey: there is no such key, or it has ended.
        """
        if what.key is not None and is_key(what.key):
            return Caller(await self._live(what.key, is_session=False), False)
        if not (self._are_needed or await self._ask_whether_needed()):
            return None
        if what.key is None and what.cookie:
            return Caller(await self._live(what.cookie, is_session=True), True)
        if what.key is not None and what.key.startswith("ts_"):
            # Cut short, or copied with more than itself: to ask for a key would send its owner the wrong way.
            raise RefusedKey(hint="send the whole key, and nothing else, as it was shown when it was made")
        raise NoKey(hint=f"send Authorization: Bearer ts_..., or {KEY_HEADER}: ts_...")

    def forget(self, text: str) -> None:
        """Look a key or session up again when it is shown next."""
        self._remembered.pop(hash_of(text), None)

    async def _live(self, text: str, *, is_session: bool) -> Key:
        hash_ = hash_of(text)
        found, until = self._remembered.get(hash_, (None, 0.0))
        if found is None or self._clock() >= until:
            found = await self._looked_up(hash_, is_session=is_session)
        if found is None or not found.is_live(now=self._now()):
            # Unknown, expired and revoked are not told apart: that would be news for whoever guesses.
            raise RefusedKey(hint="ask for a new one, or see `tracestore keys list`")
        return found

    async def _looked_up(self, hash_: bytes, *, is_session: bool) -> Key | None:
        """Look it up, once however many requests wait for it."""
        looking = self._looking.get(hash_)
        if looking is None:
            looking = asyncio.create_task(self._look_up(hash_, is_session=is_session))
            self._looking[hash_] = looking
            looking.add_done_callback(lambda _: self._looking.pop(hash_))
        return await asyncio.shield(looking)

    async def _look_up(self, hash_: bytes, *, is_session: bool) -> Key | None:
        until = self._clock() + REMEMBERED_S
        self._remembered.pop(hash_, None)
        find = self._find_session if is_session else self._find_key
        found = await to_thread.run_sync(find, hash_, limiter=self._threads)
        if found is not None:
            self._are_needed = True
            self._remembered[hash_] = found, until
            if len(self._remembered) > _REMEMBERED_KEYS:
                del self._remembered[next(iter(self._remembered))]
        return found

    def _find_key(self, hash_: bytes) -> Key | None:
        with self._engine.connect() as connection:
            found = find_key(connection, hash_)
        return found if found is not None and compare_digest(found.hash, hash_) else None

    def _find_session(self, hash_: bytes) -> Key | None:
        with self._engine.connect() as connection:
            return find_session(connection, hash_, now=self._now())

    async def _ask_whether_needed(self) -> bool:
        """Whether there are keys by now; once there are, there always are."""
        if self._clock() >= self._asked_at + REMEMBERED_S:
            self._asked_at = self._clock()
            self._are_needed = await to_thread.run_sync(self._has_keys, limiter=self._threads)
        return self._are_needed

    def _has_keys(self) -> bool:
        with self._engine.connect() as connection:
            return has_keys(connection)


def admitted(scope: Scope, *, needs: Right | None) -> str:
    """The project of a request that may do what it asks for.

    Args:
        needs: None for what every key may do.

    Raises:
        InvalidProject: the request names a project in a way that cannot be read.
        MissingRight: its key may not do this.
        ForeignProject: it names another project than that of its key.
    """
    caller: Caller | None = scope[CALLER]
    if caller is None:
        return project_of(Headers(scope=scope))
    if needs is not None and needs not in caller.key.rights:
        raise MissingRight(needs=needs, has=list(caller.key.scopes), hint="use a key with this scope")
    named = named_project(Headers(scope=scope))
    if named is not None and named != caller.key.project:
        raise ForeignProject(hint="a key names its project by itself: leave the header out")
    return caller.key.project


def _read(request: Request) -> str:
    return admitted(request.scope, needs="read")


def _any(request: Request) -> str:
    return admitted(request.scope, needs=None)


def _admin(request: Request) -> str:
    return admitted(request.scope, needs="admin")


Project = Annotated[str, Depends(_read)]
"""The project of a read."""
AnyProject = Annotated[str, Depends(_any)]
"""The project of a request that every key may make."""
AdminProject = Annotated[str, Depends(_admin)]
"""The project of a request that only an admin's key may make."""
