"""The wall of a server without keys: it answers to loopback names, and to pages of its own origin only.

A browser lets any web page send requests to localhost. The Host allow-list stops DNS rebinding (a foreign
name that resolves to 127.0.0.1), the Origin check stops plain cross-site posts, and no CORS header is sent.
"""

from __future__ import annotations

import re

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tracestore_api.errors import ForeignHost, ForeignOrigin
from tracestore_api.problems import problem_of, problem_response

_LOOPBACK = re.compile(r"^(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?$", re.IGNORECASE)


class LoopbackOnly:
    """ASGI middleware: 421 for a foreign Host, 403 for a foreign Origin."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = _refusal(headers.getlist("host"), headers.getlist("origin"))
            if refusal is not None:
                await problem_response(problem_of(refusal))(scope, receive, send)
                return
        await self.app(scope, receive, send)


def _refusal(hosts: list[str], origins: list[str]) -> ForeignHost | ForeignOrigin | None:
    if len(hosts) != 1 or not _LOOPBACK.match(hosts[0]):
        return ForeignHost(
            host=", ".join(hosts) or None, hint="without API keys: localhost, 127.0.0.1 or [::1]"
        )
    own = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
    foreign = [origin for origin in origins if origin.lower() not in own]
    if foreign:
        return ForeignOrigin(origin=foreign[0], hint="only pages that this server itself serves may call it")
    return None
