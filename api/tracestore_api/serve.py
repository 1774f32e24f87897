"""A database URL -> a listening server: opens the store, says where it listens, and closes it at the end."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from sqlalchemy import make_url
from uvicorn.supervisors import Multiprocess

from tracestore.replay.modes import STRICT, Mode
from tracestore.settings import SETTINGS, Settings
from tracestore.store.blobs import Blobs, default_blobs, open_blobs
from tracestore.store.engine import NoStore
from tracestore.store.keys import has_keys
from tracestore.store.retain import Retention
from tracestore_api.app import create_app
from tracestore_api.errors import AddressUnavailable, NotLoopback, OneProcessOnly
from tracestore_api.parameters import DEFAULT_PROJECT
from tracestore_api.replay import Times
from tracestore_migrations import open_store

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8421
_SHUTDOWN_S = 30
_HUNG_S = 60
"""A worker that says nothing for so long is replaced. While it decodes a large body it says little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What one process of a server opens and answers with; each worker gets a copy."""

    db_url: str
    settings: Settings
    blobs: str | None
    """Where payloads are kept (`open_blobs`); None: beside a SQLite file, else they are not taken."""
    own_hosts: tuple[str, ...]
    upstream: str | None
    """URL of the server that the recording proxy passes requests on to; None: there is no proxy."""
    inject: bool
    retention: tuple[Retention, ...] = ()
    exported: tuple[str, ...] = ()
    replayed: tuple[str, ...] = ()
    replay_mode: Mode = STRICT
    replayed_project: str = DEFAULT_PROJECT
    replay_times: Times = "at-once"
    is_alone: bool = True

    @contextmanager
    def opened(self) -> Iterator[FastAPI]:
        """The service, over a store that is closed at the end."""
        collect_rarely()
        store = open_store(self.db_url)
        try:
            blobs = _blobs(self.blobs or default_blobs(self.db_url))
            proxy = None
            if self.upstream is not None:
                from tracestore_api.proxy.route import Proxy

                proxy = Proxy(store, upstream=self.upstream, inject=self.inject, settings=self.settings)
            yield create_app(
                store,
                settings=self.settings,
                blobs=blobs,
                own_hosts=self.own_hosts,
                proxy=proxy,
                retention=self.retention,
                exported=self.exported,
                replayed=self.replayed,
                replay_mode=self.replay_mode,
                replayed_project=self.replayed_project,
                replay_times=self.replay_times,
                is_alone=self.is_alone,
            )
        finally:
            store.close()

    def __call__(self) -> FastAPI:
        """The service of a worker, whose store is closed when uvicorn has shut the app down."""
        stack = ExitStack()
        app = stack.enter_context(self.opened())
        inner = app.router.lifespan_context

        @asynccontextmanager
        async def until_closed(app: Any) -> AsyncIterator[Any]:
            with stack:
                async with inner(app) as state:
                    yield state

        app.router.lifespan_context = until_closed
        return app


def collect_rarely() -> None:
    """Let Python's cycle collector look at what is new, seldom, and never at what was loaded for good.

    What the store remembers is many small objects that last, and few of them ever form a cycle: with the
    defaults a seventh of a loaded server's time goes into looking through them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def serve(
    db_url: str,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    settings: Settings = SETTINGS,
    workers: int = 1,
    blobs: str | None = None,
    upstream: str | None = None,
    inject: bool = False,
    retention: tuple[Retention, ...] = (),
    exported: tuple[str, ...] = (),
    replayed: tuple[str, ...] = (),
    replay_mode: Mode = STRICT,
    replayed_project: str = DEFAULT_PROJECT,
    replay_times: Times = "at-once",
    on_ready: Callable[[Listening], None] = lambda listening: None,
) -> None:
    """Serve the store at `db_url` until SIGINT or SIGTERM; requests in hand are finished first.

    Args:
        host: a numeric address or `localhost`; while the database has no keys, of this machine only.
        port: 0 lets the system choose a free one.
        workers: processes that share the port; more than one on PostgreSQL only, and then nothing is
            replayed.
        blobs: where payloads are kept (`open_blobs`); None: beside a SQLite file, else they are not taken.
        upstream: where the recording proxy passes requests on to, see `Proxy`; None: there is no proxy.
        inject: whether it asks for token ids and logprobs.
        retention: rules of what is deleted when (`store.retain`).
        exported: folders under which exports are served.
        replayed: episodes that answer a replay which names none.
        replay_mode: how such a replay is answered where it does not say.
        replayed_project: whose they are; they are read before requests are answered.
        replay_times: when the events of a replayed stream are sent.
        on_ready: called once, when requests are answered.

    Raises:
        NotLoopback: `host` can be reached from other machines, and there are no keys.
        OneProcessOnly: several workers on SQLite.
        AddressUnavailable: the port is taken, or `host` is no address of this machine.
        BadBlobStore: `blobs` names no place to keep them.
        BadUpstream: `upstream` is no URL of one.
    """
    address = numeric_address(host)
    _require_one_process(db_url, workers)
    are_keys_needed = _are_keys_needed(db_url)
    if not (address.is_loopback or are_keys_needed):
        raise NotLoopback(
            host=host,
            hint="make a key first (`tracestore keys create`), or use 127.0.0.1, ::1 or localhost",
        )
    own_hosts = () if address.is_unspecified else (_in_url(address),)
    process = Process(
        db_url=db_url,
        settings=settings,
        blobs=blobs,
        own_hosts=own_hosts,
        upstream=upstream,
        inject=inject,
        retention=retention,
        exported=exported,
        replayed=replayed,
        replay_mode=replay_mode,
        replayed_project=replayed_project,
        replay_times=replay_times,
        is_alone=workers == 1,
    )
    with _stopped_by_sigterm(), _listening(address, port) as listener:
        url = f"http://{_in_url(address)}:{listener.getsockname()[1]}"

        def ready() -> None:
            on_ready(Listening(url=url, are_keys_needed=are_keys_needed))

        if workers == 1:
            with process.opened() as app:
                _Server(_config(app), on_started=ready).run(sockets=[listener])
        else:
            # Whatever is wrong with the database or the blobs is told once, here, and not by every worker.
            with process.opened():
                pass
            _Workers(_config(process, workers=workers), [listener], on_started=ready).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A server that answers."""

    url: str
    are_keys_needed: bool


def numeric_address(host: str) -> IPv4Address | IPv6Address:
    """The address that `host` writes in numbers, or `localhost`.

    Raises:
        AddressUnavailable: it is a name, or nothing at all.
    """
    try:
        return ip_address(DEFAULT_HOST if host.lower() == "localhost" else host.strip("[]"))
    except ValueError as error:
        raise AddressUnavailable(
            address=host, hint="write it in numbers, as 127.0.0.1 or 0.0.0.0, or localhost"
        ) from error


def _require_one_process(db_url: str, workers: int) -> None:
    if workers > 1 and make_url(db_url).get_backend_name() == "sqlite":
        raise OneProcessOnly(workers=workers, hint="leave --workers out, or keep the store in PostgreSQL")


def _are_keys_needed(db_url: str) -> bool:
    """Whether the database has keys; one that is not there yet has none."""
    try:
        store = open_store(db_url, create=False)
    except NoStore:
        return False
    with store, store.read() as connection:
        return has_keys(connection)


def _blobs(where: str | None) -> Blobs | None:
    if where is None:
        return None
    blobs = open_blobs(where)
    # What a server that was killed left behind.
    blobs.uploads.sweep()
    return blobs


def _config(app: Process | FastAPI, *, workers: int = 1) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        factory=isinstance(app, Process),
        workers=workers,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        timeout_worker_healthcheck=_HUNG_S,
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, *, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


class _Workers(Multiprocess):
    """Processes that share one listening socket; one that dies is replaced."""

    def __init__(
        self, config: uvicorn.Config, sockets: list[socket.socket], *, on_started: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._on_started = on_started

    def init_processes(self) -> None:
        super().init_processes()
        if all(process.wait_until_ready(_HUNG_S, self.should_exit) for process in self.processes):
            self._on_started()


@contextmanager
def _listening(address: IPv4Address | IPv6Address, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((str(address), port))
        except OSError as error:
            raise AddressUnavailable(
                address=str(address), port=port, reason=error.strerror, hint="another --port"
            ) from error
        yield listener


def _in_url(address: IPv4Address | IPv6Address) -> str:
    return f"[{address}]" if address.version == 6 else str(address)


@contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that the store is closed; both are a normal end.

    uvicorn shuts down on either signal and then raises it again for the handler that was there before.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
