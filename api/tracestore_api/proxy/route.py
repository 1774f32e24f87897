"""`/proxy/...`: a harness's request -> the upstream and back, byte for byte; what passed -> the recorder.

A request that asks a model (POST to `.../chat/completions`, `.../responses`, `.../messages` or
`.../completions`) is recorded when its last byte has passed. Everything else passes too. `GET /proxy` tells
how much was recorded and what was lost.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any

import aiohttp
from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tracestore.ids import new_id
from tracestore.importers.exchanges import Exchange
from tracestore.settings import Settings
from tracestore.store.store import Store
from tracestore.wire.call import CallError, Dialect
from tracestore_api.access import admitted
from tracestore_api.body import Admission, Ticket, read_body
from tracestore_api.errors import Busy
from tracestore_api.parameters import DEFAULT_PROJECT
from tracestore_api.proxy import capture as captured
from tracestore_api.proxy.capture import Capture, text_of
from tracestore_api.proxy.errors import UpstreamUnreachable
from tracestore_api.proxy.inject import LADDER, REFUSALS, StrippedStream, injected, is_streamed, stripped
from tracestore_api.proxy.names import PREFIX, Address, address_of
from tracestore_api.proxy.recorder import Recorder
from tracestore_api.proxy.upstream import FAILED, Headers, Upstream, chunks, forwarded, returned
from tracestore_api.response import StrictJSON

MAX_RESPONSE_BYTES = 64 * 2**20
"""Of a response that is kept; a larger one passes and is a gap."""
CALL_HEADER = b"x-tracestore-call"
_METHODS = ["DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"]


class Proxy:
    """The recording proxy of one upstream."""

    def __init__(self, store: Store, *, upstream: str, inject: bool = False, settings: Settings) -> None:
        """
        Args:
            upstream: URL of the server that answers, see `Upstream`.
            inject: ask it for token ids and logprobs, see `inject`.
            settings: `max_body_bytes` of a request; `max_requests_in_hand` at once; `max_bytes_in_hand` that
                pass, and as many again that wait to be recorded.

        Raises:
            BadUpstream: `upstream` is no URL of one.
        """
        self._upstream = Upstream(upstream)
        self._inject = inject
        self._max_request_bytes = settings.max_body_bytes
        self._admission = Admission(
            max_requests=settings.max_requests_in_hand, max_bytes=settings.max_bytes_in_hand
        )
        limits = replace(settings.limits, max_event_bytes=settings.max_offloaded_event_bytes)
        self.recorder = Recorder(store, limits=limits, max_bytes=settings.max_bytes_in_hand)
        self._num_passing: Counter[str] = Counter()
        """Requests of each project."""
        self._rungs: dict[tuple[Dialect, bool], int] = {}

    def routes(self) -> list[Route]:
        """Its routes in an app."""
        return [
            Route(PREFIX, self._status, methods=["GET"]),
            Route(PREFIX + "/{path:path}", _Door(self), methods=_METHODS),
        ]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold connections and the recorder; at the end what passed is recorded."""
        self.recorder.start()
        try:
            async with self._upstream.open():
                yield
        finally:
            await to_thread.run_sync(self.recorder.close)

    def status(self, project: str = DEFAULT_PROJECT) -> dict[str, Any]:
        """What of a project passes now, what was recorded, and what was lost."""
        what = {"upstream": self._upstream.url, "inject": self._inject}
        return {**what, "passing": self._num_passing[project], **self.recorder.status(project)}

    async def _status(self, request: Request) -> Response:
        return StrictJSON(self.status(admitted(request.scope, needs="read")))

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, and its response back."""
        project = admitted(scope, needs="write")
        address = address_of(scope["path"], scope["headers"])
        with self._admission.ticket() as ticket:
            body = await read_body(
                receive,
                content_length=text_of(scope["headers"], "content-length"),
                max_bytes=self._max_request_bytes,
                ticket=ticket,
            )
            if body is not None:
                await self.pass_on(
                    scope, receive, send, project=project, address=address, body=body, ticket=ticket
                )

    async def pass_on(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        project: str,
        address: Address,
        body: bytes,
        ticket: Ticket,
        is_kept: Callable[[Capture], bool] = lambda capture: True,
    ) -> None:
        """Pass on a request whose body was read, and record what passed.

        Args:
            body: as it came.
            ticket: that the body has.
            is_kept: asked at the end whether to record it; may add to it. Not to wait in.

        Raises:
            UpstreamUnreachable: there is no response.
        """
        url = self._upstream.target(address.path, scope["query_string"])
        asked = Exchange(method=scope["method"], url=url)
        dialect = asked.dialect if scope["method"] == "POST" else None
        capture = Capture(
            project=project,
            names=address.names,
            call_id=address.names.get("call") or new_id(),
            url=url,
            method=scope["method"],
            request=body,
            request_headers=address.headers,
            room=MAX_RESPONSE_BYTES if dialect is not None else 0,
        )
        passing = _Passing(self, capture, address, ticket, dialect)
        self._num_passing[project] += 1
        try:
            async with _Watch(receive) as watch:
                await passing.run(send)
            if watch.is_gone and capture.ended_at is None:
                capture.end(_broken(captured.CLIENT_GONE, "the client hung up before the end"))
        except asyncio.CancelledError:
            capture.end(_broken(captured.SHUT_DOWN, "the proxy was shut down before the end"))
            raise
        finally:
            if dialect is not None and is_kept(capture):
                self.recorder.offer(capture)
            self._num_passing[project] -= 1
            self._num_passing += Counter()  # forgets those at zero

    async def ask(
        self, capture: Capture, headers: Headers, dialect: Dialect | None
    ) -> aiohttp.ClientResponse:
        """The upstream's response. With `inject`, to the most of LADDER that it takes."""
        ladder: tuple[Mapping[str, bytes], ...] = ({},)
        if self._inject and dialect is not None and capture.url.partition("?")[0].endswith("/completions"):
            ladder = LADDER.get(dialect, ladder)
        kind = (dialect or "text", len(ladder) > 1 and is_streamed(capture.request))
        first = self._rungs.get(kind, 0)
        for rung in range(first, len(ladder)):
            body, added = injected(capture.request, ladder[rung])
            is_last = rung == len(ladder) - 1 or not added
            sent = [*(one for one in headers if one[0] != b"accept-encoding"), _PLAIN] if added else headers
            response = await self._upstream.send(capture.method, capture.url, sent, body)
            if is_last or response.status not in REFUSALS:
                if response.status < 400 and rung > first:
                    self._rungs[kind] = rung
                capture.injected = added
                if added:
                    capture.forwarded_sha256 = hashlib.sha256(body).hexdigest()
                return response
            capture.refused.append({"status": response.status, "fields": added})
            response.release()
        raise AssertionError("the last rung returns")


_PLAIN = (b"accept-encoding", b"identity")
"""What is to be taken out of a response must be read."""


class _Door:
    """ASGI endpoint; Starlette takes a bound method for something else."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._proxy.serve(scope, receive, send)


class _Passing:
    """One request on its way to the upstream, and its response on the way back."""

    def __init__(
        self, proxy: Proxy, capture: Capture, address: Address, ticket: Ticket, dialect: Dialect | None
    ) -> None:
        self._proxy = proxy
        self._capture = capture
        self._address = address
        self._ticket = ticket
        self._dialect = dialect

    async def run(self, send: Send) -> None:
        """Pass both on.

        Raises:
            UpstreamUnreachable: there is no response.
        """
        capture = self._capture
        try:
            response = await self._proxy.ask(capture, forwarded(self._address.headers), self._dialect)
        except FAILED as error:
            reason = f"{type(error).__name__}: {error}"
            capture.end(_broken(captured.UPSTREAM_AWAY, reason))
            raise UpstreamUnreachable(reason=reason, hint="send it again; see --upstream") from error
        try:
            await self._pass_back(response, send)
        except FAILED as error:
            # The harness is to see a response that breaks off, as it would without us: no end is sent.
            capture.end(_broken(captured.UPSTREAM_BROKE, f"{type(error).__name__}: {error}"))
        finally:
            response.close()

    async def _pass_back(self, response: aiohttp.ClientResponse, send: Send) -> None:
        capture = self._capture
        capture.status = response.status
        capture.response_headers = returned(response)
        headers = list(capture.response_headers)
        is_stripped = bool(capture.injected) and text_of(headers, "content-encoding") in (None, "identity")
        if self._address.speaks and self._dialect is not None:
            headers.append((CALL_HEADER, capture.call_id.encode()))
        if is_stripped and not capture.is_stream:
            await self._pass_whole(response, headers, send)
            return
        if is_stripped:
            headers = [one for one in headers if one[0] != b"content-length"]
        stream = StrippedStream(capture.injected) if is_stripped else None
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        async for chunk in chunks(response):
            self._keep(chunk)
            if passed := chunk if stream is None else stream.feed(chunk):
                await send({"type": "http.response.body", "body": passed, "more_body": True})
        capture.end()
        rest = b"" if stream is None else stream.end()
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _pass_whole(self, response: aiohttp.ClientResponse, headers: Headers, send: Send) -> None:
        """A response that must be there before it can be passed on."""
        whole: list[bytes] = []
        async for chunk in chunks(response):
            self._keep(chunk)
            whole.append(chunk)
        self._capture.end()
        body = stripped(b"".join(whole), self._capture.injected)
        headers = [one for one in headers if one[0] != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode("ascii")))
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _keep(self, chunk: bytes) -> None:
        if self._dialect is None or self._capture.is_cut:
            return
        try:
            self._ticket.take(len(chunk))
        except Busy:
            self._capture.cut()
        else:
            self._capture.take(chunk)


class _Watch:
    """Ends the block, without an error, when the client hangs up."""

    def __init__(self, receive: Receive) -> None:
        """
        Args:
            receive: of a request whose body was read.
        """
        self.is_gone = False
        self._receive = receive

    async def __aenter__(self) -> _Watch:
        self._main = asyncio.current_task()
        self._waiting = asyncio.create_task(self._wait())
        return self

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True
        assert self._main is not None
        self._main.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._waiting.cancel()
        if not self.is_gone:
            return False
        assert self._main is not None
        is_ended = isinstance(error, asyncio.CancelledError)
        if not is_ended:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)  # it was told to end when it had just ended by itself
        self._main.uncancel()
        return is_ended


def _broken(kind: str, message: str) -> CallError:
    return CallError(type=kind, message=message)
