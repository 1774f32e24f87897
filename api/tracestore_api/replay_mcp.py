"""`/replay/.../mcp`: the MCP server of a replay over Streamable HTTP, each request on its own.

    http://127.0.0.1:8421/replay/episode=e1/mcp          every recorded tool, as it was called
    http://127.0.0.1:8421/replay/episode=e1/mcp/files    those called mcp__files__TOOL, as TOOL

No session is kept: how far a run of a harness has come is known by its name (`run=NAME` in the path).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from tracestore.replay.definitions import ToolDefinition
from tracestore.replay.tools import ToolTape
from tracestore_api.errors import InvalidReplay
from tracestore_api.proxy.names import Names

_PATH = "/mcp"


def server_named(path: str) -> str | None:
    """The MCP server that a path stands for; "" for all tools, None where it is no such path."""
    if path != _PATH and not path.startswith(f"{_PATH}/"):
        return None
    return path.removeprefix(_PATH).strip("/")


async def serve_mcp(
    tape: ToolTape,
    definitions: Callable[[], Sequence[ToolDefinition]],
    *,
    name: str,
    names: Names,
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer one request.

    Raises:
        InvalidReplay: what speaks MCP is not installed.
    """
    try:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        from tracestore.replay.mcp_server import server_of
    except ModuleNotFoundError as missing:
        raise InvalidReplay(module=missing.name, hint='pip install "tracestore[mcp]"') from missing
    agent = names.get("agent") or names.get("agent-name")
    server = server_of(tape, definitions, name=name, run=names.get("run") or "", agent=agent)
    manager = StreamableHTTPSessionManager(server, stateless=True, json_response=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)
