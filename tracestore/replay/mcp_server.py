"""Recorded tool calls -> an MCP server that gives what they gave, in place of the one that ran them.

What a tool gave is a result of MCP where it was recorded as one (`content` with blocks; `resultType`
`input_required` of a tool that asks), else it stands in it: text as it is, other JSON as text and as
structured content. A tool that failed is a result with `isError`. A call that was never recorded is an error
of the protocol, so that no model reads it; its `data` has the nearest recorded one and the first difference.

A client that asks the user and calls again sends `inputResponses`, which count as the arguments do. The
model's own id of the use may stand in `_meta`, as `tracestore/tool_call_id`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from tracestore.replay.definitions import ToolDefinition
from tracestore.replay.tape import NotRecorded, NotReplayable
from tracestore.replay.tools import AskedTool, ToolTape, asked_tool
from tracestore.wire.base import Raw

USE_ID = "tracestore/tool_call_id"
_BLOCKS: TypeAdapter[list[types.ContentBlock]] = TypeAdapter(list[types.ContentBlock])


def server_of(
    tape: ToolTape,
    definitions: Callable[[], Sequence[ToolDefinition]],
    *,
    name: str = "",
    run: str = "",
    agent: str | None = None,
) -> Server[Any]:
    """An MCP server that answers `tools/list` and `tools/call` from a tape.

    Args:
        definitions: of its tools, looked up when they are listed.
        name: of the server in whose place it stands. Harnesses call its tools `mcp__NAME__TOOL` to their
            models: those are served, under their own names. "": every tool is, as it was called.
        run: name of the run of the harness.
        agent: id or name of the agent that calls.
    """
    prefix = f"mcp__{name}__" if name else ""

    async def list_tools(context: Any, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=one.name.removeprefix(prefix),
                    description=one.description,
                    input_schema=dict(one.input_schema),
                )
                for one in definitions()
                if one.name.startswith(prefix)
            ]
        )

    async def call_tool(
        context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        asked = _asked(prefix, params)
        try:
            outcome = tape.answer(asked, run=run, agent=agent).recorded.outcome()
        except (NotRecorded, NotReplayable) as error:
            facts = {key: value for key, value in error.values.items() if value is not None}
            raise MCPError(types.INVALID_PARAMS, str(error), facts | {"hint": error.hint}) from None
        return result_of(outcome)

    return Server(name or "tracestore-replay", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


def _asked(prefix: str, params: types.CallToolRequestParams) -> AskedTool:
    use_id = (params.meta or {}).get(USE_ID)
    responses = params.model_dump(mode="json", by_alias=True, exclude_none=True).get("inputResponses")
    return asked_tool(
        prefix + params.name,
        Raw(json.dumps(params.arguments or {}).encode("ascii")),
        tool_call_id=use_id if isinstance(use_id, str) else None,
        input_responses=None if responses is None else Raw(json.dumps(responses).encode("ascii")),
    )


def result_of(outcome: dict[str, Any]) -> types.CallToolResult | types.InputRequiredResult:
    """What a tool gave as a result of MCP: see the module.

    Args:
        outcome: as `RecordedTool.outcome` gives it.
    """
    result = None if outcome["result"] is None else outcome["result"].value()
    failed = outcome["status"] in ("failed", "timeout")
    if outcome["result"] is None:
        text = outcome["error"] or f"it ended as {outcome['status']}, and nothing says how"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=failed)
    found = _as_posted(result)
    if found is not None:
        return found
    blocks = _blocks(result)
    if blocks is not None:
        return types.CallToolResult(content=blocks, is_error=failed)
    text = result if isinstance(result, str) else bytes(outcome["result"]).decode("utf-8")
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text)],
        structured_content=result if isinstance(result, dict) else None,
        is_error=failed,
    )


def _as_posted(result: Any) -> types.CallToolResult | types.InputRequiredResult | None:
    """A result that was recorded as MCP has it."""
    if not isinstance(result, dict):
        return None
    try:
        if result.get("resultType") == "input_required":
            return types.InputRequiredResult.model_validate(result)
        if isinstance(result.get("content"), list):
            return types.CallToolResult.model_validate(result)
    except ValidationError:
        pass  # a tool's own object that only looks like one
    return None


def _blocks(result: Any) -> list[types.ContentBlock] | None:
    """The blocks that a message showed of it."""
    if not isinstance(result, list) or not result:
        return None
    try:
        return _BLOCKS.validate_python(result)
    except ValidationError:
        return None


async def serve_stdio(server: Server[Any]) -> None:
    """Answer one client over stdin and stdout, until it closes them."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
