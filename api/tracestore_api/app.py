"""A store -> the HTTP service: routes, limits, the wall around them, and one place for errors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import to_thread
from fastapi import FastAPI
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tracestore.replay.modes import STRICT, Mode
from tracestore.settings import SETTINGS, Settings
from tracestore.store.blobs import Blobs
from tracestore.store.retain import Retention
from tracestore.store.store import Store
from tracestore_api import deletions, exports, lists, problems, reads, redactions, sessions
from tracestore_api.access import Callers
from tracestore_api.blobs import blob_route
from tracestore_api.body import Admission
from tracestore_api.guard import Entrance, Wall
from tracestore_api.ingest import EventsRoute
from tracestore_api.logs import Logs
from tracestore_api.openapi import complete
from tracestore_api.parameters import DEFAULT_PROJECT
from tracestore_api.rates import Rates
from tracestore_api.replay import Replay, Times
from tracestore_api.rewards import RewardRoute
from tracestore_api.sql import SqlRoute
from tracestore_api.traces import TracesRoute

if TYPE_CHECKING:
    # Its HTTP client takes a fifth of the time in which a server starts, and most servers have no proxy.
    from tracestore_api.proxy.route import Proxy

READ_THREADS = 12
"""Reads at once. The store's pool has 15 connections, and one of them commits."""
_PLAIN = re.compile(r"[^{]*|/[^/{]+/{path:path}")
"""Paths of doors that need no router."""
API_VERSION = "1.0"
"""Of the routes and their answers, apart from the version of the product that serves them."""


class Service(FastAPI):
    """A FastAPI app that is entered through the wall around it."""

    entrance: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.entrance is not None, "create_app makes it"
        scope["app"] = self
        await self.entrance(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The document that describes the service, made once."""
        if self.openapi_schema is None:
            doors = {
                (method, re.sub(r":\w+}", "}", route.path))
                for route in self.routes
                if type(route) is Route
                for method in route.methods or ()
            }
            self.openapi_schema = complete(super().openapi(), doors=doors)
        return self.openapi_schema


def create_app(
    store: Store,
    *,
    settings: Settings = SETTINGS,
    blobs: Blobs | None = None,
    own_hosts: Collection[str] = (),
    proxy: Proxy | None = None,
    retention: Sequence[Retention] = (),
    exported: Sequence[str] = (),
    replayed: Sequence[str] = (),
    replay_mode: Mode = STRICT,
    replayed_project: str = DEFAULT_PROJECT,
    replay_times: Times = "at-once",
    is_alone: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The service over an open store, which the caller closes after it.

    Args:
        settings: what an event and a body may be, what may be in hand at once, who may call.
        blobs: where payloads are kept; None: they are not taken.
        own_hosts: addresses that it is reached at besides loopback, as they stand in a URL.
        proxy: records what passes through it to a model; None: nothing does.
        retention: rules of what is deleted when (`store.retain`).
        exported: folders under which exports are served.
        replayed: episodes that answer a replay which names none.
        replay_mode: how such a replay is answered where it does not say.
        replayed_project: whose they are, where a request says nothing else; they are read before the first.
        replay_times: when the events of a replayed stream are sent.
        is_alone: whether all requests come to this process; where not, nothing is replayed.
        clock: seconds, for rates and for how long a key is remembered.
    """
    limits = settings.limits
    replay = Replay(
        store,
        settings=settings,
        episodes=replayed,
        mode=replay_mode,
        proxy=proxy,
        times=replay_times,
        is_alone=is_alone,
    )
    app = Service(
        title="tracestore",
        version=API_VERSION,
        openapi_url="/v1/openapi.json",
        # The pages that FastAPI offers load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        lifespan=partial(_running, proxy=proxy, replay=replay, replayed_project=replayed_project),
    )
    problems.install(app)
    admission = Admission(max_requests=settings.max_requests_in_hand, max_bytes=settings.max_bytes_in_hand)
    posts: dict[str, Any] = {
        "limits": limits,
        "admission": admission,
        "max_threads": settings.max_threads,
        "blobs": blobs,
    }
    traces: dict[str, Any] = {name: one for name, one in posts.items() if name != "blobs"}
    sql = SqlRoute(store, settings=settings, admission=admission)
    app.router.routes += [
        Route("/v1/events", EventsRoute(store, **posts), methods=["POST"], name="post_events"),
        Route("/v1/rewards", RewardRoute(store, **posts), methods=["POST"], name="post_reward"),
        Route("/v1/traces", TracesRoute(store, **traces), methods=["POST"], name="post_traces"),
        Route("/v1/sql", sql, methods=["POST"], name="post_sql"),
        blob_route(store, blobs, limits=limits),
        *(() if proxy is None else proxy.routes()),
        *replay.routes(),
    ]
    app.state.store = store
    app.state.limits = limits
    app.state.blobs = blobs
    app.state.exports = tuple(os.path.realpath(folder) for folder in exported)
    app.state.logs = Logs()
    app.include_router(reads.router)
    app.include_router(lists.router)
    app.include_router(sessions.router)
    app.include_router(deletions.router)
    app.include_router(redactions.router)
    app.include_router(exports.router)
    app.state.deleter = deletions.Deleter(store, blobs, retention=retention)
    app.state.callers = Callers(store.engine, clock=clock)
    rates = Rates(
        requests_per_s=settings.max_requests_per_s, bytes_per_s=settings.max_bytes_per_s, clock=clock
    )
    app.entrance = Entrance(
        super(Service, app).__call__,
        wall=Wall(settings, callers=app.state.callers, rates=rates, own_hosts=own_hosts),
        doors=_plain_doors(app.routes),
        handlers=app.exception_handlers,
    )
    return app


def _plain_doors(routes: Iterable[BaseRoute]) -> dict[tuple[str, str], ASGIApp]:
    """The doors that are ASGI themselves, by method and path: one without parameters, or all that begin with
    a name (`/replay/`)."""
    return {
        (method, route.path.removesuffix("{path:path}")): route.app
        for route in routes
        if type(route) is Route and route.app is route.endpoint and _PLAIN.fullmatch(route.path)
        for method in route.methods or ()
    }


@asynccontextmanager
async def _running(
    app: FastAPI, *, proxy: Proxy | None, replay: Replay, replayed_project: str
) -> AsyncIterator[None]:
    # Reads wait for a thread, not for one of the store's pooled connections: that would end in an error.
    to_thread.current_default_thread_limiter().total_tokens = READ_THREADS
    deleter: deletions.Deleter = app.state.deleter
    await to_thread.run_sync(deleter.start)
    await to_thread.run_sync(replay.open, replayed_project)
    try:
        async with nullcontext() if proxy is None else proxy.running():
            yield
        if replay.forking is not None:
            await to_thread.run_sync(replay.forking.close)
    finally:
        await to_thread.run_sync(deleter.close)
