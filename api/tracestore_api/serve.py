"""A database URL -> a listening server: opens the store, says where it listens, and closes it at the end."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from tracestore_api.app import create_app
from tracestore_api.errors import AddressUnavailable, NotLoopback
from tracestore_migrations import open_store

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8421
_SHUTDOWN_S = 30


def serve(
    db_url: str,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    on_ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve the store at `db_url` until SIGINT or SIGTERM; requests in hand are finished first.

    Args:
        host: a loopback address or `localhost`; there are no keys yet, so nothing else is allowed.
        port: 0 lets the system choose a free one.
        on_ready: called once with the base URL, when requests are answered.

    Raises:
        NotLoopback: `host` can be reached from other machines.
        AddressUnavailable: the port is taken.
    """
    address = loopback_address(host)
    with _stopped_by_sigterm(), _listening(address, port) as listener:
        store = open_store(db_url)
        try:
            config = uvicorn.Config(
                create_app(store),
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
            _Server(config, on_started=lambda: on_ready(_url(listener))).run(sockets=[listener])
        finally:
            store.close()


def loopback_address(host: str) -> str:
    """The numeric loopback address of `host`.

    Raises:
        NotLoopback: it is none.
    """
    address = DEFAULT_HOST if host.lower() == "localhost" else host.strip("[]")
    try:
        is_loopback = ipaddress.ip_address(address).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise NotLoopback(
            host=host, hint="use 127.0.0.1, ::1 or localhost; reach it from afar through an SSH tunnel"
        )
    return address


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, *, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()


@contextmanager
def _listening(address: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError as error:
            raise AddressUnavailable(
                address=address, port=port, reason=error.strerror, hint="another --port"
            ) from error
        yield listener


def _url(listener: socket.socket) -> str:
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


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
