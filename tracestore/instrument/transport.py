"""An httpx client -> the same, whose transports show a recorder what passes through them.

The transports of httpx and of httpx2 alike: nothing is imported of either. A response keeps its own object;
only its stream is put into one that listens.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import Any

from tracestore.instrument.recorder import Pending, Recorder


def record_client(http_client: Any, recorder: Recorder) -> None:
    """Listen to all transports of an httpx client, those of its proxies too, in place of who did before."""
    http_client._transport = _listening(http_client._transport, recorder)
    mounts = http_client._mounts.items()
    # None stands for the transport above.
    http_client._mounts = {url: one and _listening(one, recorder) for url, one in mounts}


def _listening(transport: Any, recorder: Recorder) -> Any:
    inner = transport.inner if isinstance(transport, _Transport) else transport
    kind = _AsyncTransport if hasattr(inner, "handle_async_request") else _SyncTransport
    return kind(inner, recorder)


class _Transport:
    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self.inner = inner
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _SyncTransport(_Transport):
    def handle_request(self, request: Any) -> Any:
        if not self._recorder.wants(request.method, str(request.url)):
            return self.inner.handle_request(request)
        pending = self._recorder.begin(request.method, str(request.url), request.headers, request.read())
        try:
            response = self.inner.handle_request(request)
        except BaseException as error:
            pending.end(error)
            raise
        pending.answered(response)
        response.stream = _of_library(_SyncStream, _library(response))(response.stream, pending)
        return response

    def __enter__(self) -> _SyncTransport:
        self.inner.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)


class _AsyncTransport(_Transport):
    async def handle_async_request(self, request: Any) -> Any:
        if not self._recorder.wants(request.method, str(request.url)):
            return await self.inner.handle_async_request(request)
        await self._recorder.wait_for_room()
        body = await request.aread()
        pending = self._recorder.begin(request.method, str(request.url), request.headers, body)
        try:
            response = await self.inner.handle_async_request(request)
        except BaseException as error:
            pending.end(error)
            raise
        pending.answered(response)
        response.stream = _of_library(_AsyncStream, _library(response))(response.stream, pending)
        return response

    async def __aenter__(self) -> _AsyncTransport:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.inner.__aexit__(*error)


class _SyncStream:
    def __init__(self, inner: Any, pending: Pending) -> None:
        self._inner = inner
        self._pending = pending

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._inner:
                self._pending.take(chunk)
                yield chunk
        except GeneratorExit:  # its reader has left; `close` follows
            raise
        except BaseException as error:
            self._pending.end(error)
            raise
        self._pending.is_whole = True

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._pending.end(None)


class _AsyncStream:
    def __init__(self, inner: Any, pending: Pending) -> None:
        self._inner = inner
        self._pending = pending

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                self._pending.take(chunk)
                yield chunk
        except GeneratorExit:
            raise
        except BaseException as error:
            self._pending.end(error)
            raise
        self._pending.is_whole = True

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._pending.end(None)


def _library(response: Any) -> str:
    """httpx or httpx2."""
    names = (one.__module__.partition(".")[0] for one in type(response).__mro__ if one.__name__ == "Response")
    return next(names)


@cache
def _of_library(stream: type, library: str) -> Any:
    """A stream that a library takes for one of its own."""
    base = "SyncByteStream" if stream is _SyncStream else "AsyncByteStream"
    return type(stream.__name__, (stream, getattr(sys.modules[library], base)), {})
