"""A request of a harness -> the upstream's response: the same bytes on either side, over kept connections.

Forwarded are method, path, query, headers and body as they came, but for the headers of one hop (RFC 9110,
7.6.1), `Host`, content codings that the recorder could not read, and `Date` of the response, which the
server stamps itself. Redirects and cookies are the harness's business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from tracestore_api.proxy.capture import CODINGS
from tracestore_api.proxy.errors import BadUpstream

FAILED = (aiohttp.ClientError, TimeoutError, OSError)
"""What an upstream that is away, or breaks off, ends in."""
_OF_ONE_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade", b"expect", b"host", b"content-length"),
    }
)
_NOT_BACK = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"trailer", b"transfer-encoding", b"upgrade", b"date"}
)
_CONNECT_S = 30.0
_IDLE_S = 3.0
"""Idle connections are given up before the servers do it themselves (uvicorn: after 5 s): a request that
meets the end of its connection would fail."""
_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
_MAX_HEADER_BYTES = 2**16

Headers = list[tuple[bytes, bytes]]


class Upstream:
    """The server that answers the harness's requests."""

    def __init__(self, url: str) -> None:
        """
        Args:
            url: e.g. `https://api.openai.com`. A path in it stands before that of every request; what both
                have of it (`/v1`) stands there once.

        Raises:
            BadUpstream: it is no http or https URL, or has a query.
        """
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_url = False
        if not is_url or parts.query or parts.fragment or parts.username or parts.password:
            raise BadUpstream(
                upstream=url, hint="as in https://api.openai.com: scheme, host, port, and a path"
            )
        self.url = url.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._session: aiohttp.ClientSession | None = None

    def target(self, path: str, query: bytes) -> str:
        """The URL of a request.

        Example: http://vllm:8000/v1 with /v1/chat/completions -> http://vllm:8000/v1/chat/completions
        """
        before = self._path.split("/")
        shared = ("/".join(["", *before[place:]]) for place in range(1, len(before)))
        twice = next((one for one in shared if path.startswith(f"{one}/")), "")
        asked = f"?{query.decode('latin-1')}" if query else ""
        return f"{self.url.removesuffix(twice)}{path}{asked}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Hold the connections while it is in use."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S, use_dns_cache=True),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_AUTO_HEADERS,
            max_line_size=_MAX_HEADER_BYTES,
            max_field_size=_MAX_HEADER_BYTES,
        ) as session:
            self._session = session
            yield

    async def send(self, method: str, url: str, headers: Headers, body: bytes) -> aiohttp.ClientResponse:
        """The response, when its headers have come. Whoever asks closes it.

        Raises:
            FAILED: there is none.
        """
        assert self._session is not None, "the upstream is not open"
        return await self._session.request(
            method,
            URL(url, encoded=True),
            headers=[(name.decode("latin-1"), _text(value)) for name, value in headers],
            data=body or None,
            allow_redirects=False,
        )


def forwarded(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a request as the upstream is to see them."""
    listed = list(headers)
    dropped = _OF_ONE_HOP | _named_by_connection(listed)
    kept = [(name, value) for name, value in listed if name not in dropped]
    return [(name, _readable(value) if name == b"accept-encoding" else value) for name, value in kept]


def returned(response: aiohttp.ClientResponse) -> Headers:
    """The headers of a response as the harness is to see them, names in lower case."""
    listed = [(name.lower(), value) for name, value in response.raw_headers]
    dropped = _NOT_BACK | _named_by_connection(listed)
    return [(name, value) for name, value in listed if name not in dropped]


def _text(value: bytes) -> str:
    """A header's value such that aiohttp, which writes UTF-8, writes the same bytes."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    values = (value for name, value in headers if name == b"connection")
    return {one.strip().lower() for value in values for one in value.split(b",")}


def _readable(codings: bytes) -> bytes:
    """An Accept-Encoding with the codings that are read here; none of them is `identity`."""
    offered = [one.strip() for one in codings.decode("latin-1").split(",")]
    kept = [one for one in offered if one.partition(";")[0].strip().lower() in CODINGS]
    return ", ".join(kept or ["identity"]).encode("latin-1")


def chunks(response: Any) -> AsyncIterator[bytes]:
    """The pieces of a body, as they come."""
    found: AsyncIterator[bytes] = response.content.iter_any()
    return found
