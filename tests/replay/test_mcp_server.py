"""The official MCP client, in process and over stdio, reads what tools gave."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.factories import agent, answer, assistant, call, episode, posted, raw, tool_call, tool_use, user
from tests.factories import tool as tool_message
from tracestore.replay.definitions import ToolDefinition, tool_definitions
from tracestore.replay.mcp_server import USE_ID, server_of
from tracestore.replay.tools import ToolTape, recorded_tools
from tracestore.store.store import Store
from tracestore.wire.base import Raw
from tracestore.wire.events import AnyEvent

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
ASKS = {
    "resultType": "input_required",
    "inputRequests": {
        "name": {
            "method": "elicitation/create",
            "params": {
                "mode": "form",
                "message": "Who?",
                "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}},
            },
        }
    },
    "requestState": "s1",
}
ANSWERED = {"name": {"action": "accept", "content": {"name": "Ada"}}}


def ran(place: int, name: str, arguments: str, result: Any = None, **fields: Any) -> AnyEvent:
    given = {"tool_call_id": f"t{place}", **fields}
    result = None if result is None else raw(result)
    return tool_call(f"x{place}", "c0", name=name, arguments=arguments, result=result, **given)


EVENTS: list[AnyEvent] = [
    episode(),
    agent("e/main"),
    call(
        "c0",
        [user("go")],
        answer("ok"),
        agent="e/main",
        tools=[
            {
                "type": "function",
                "function": {"name": "read", "description": "A file.", "parameters": SCHEMA},
            },
            {"name": "mcp__files__list", "description": "A folder.", "input_schema": SCHEMA},
        ],
    ),
    ran(0, "read", '{"path": "a"}', "first"),
    ran(1, "read", '{"path": "a"}', "second"),
    ran(2, "stat", '{"path": "a"}', {"size": 3}),
    ran(3, "read", '{"path": "b"}', status="failed", error="OSError: no such file"),
    ran(4, "greet", "{}", ASKS),
    ran(5, "greet", "{}", "hello Ada", meta=raw({"input_responses": ANSWERED})),
    ran(6, "shot", "{}", {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}),
    ran(7, "blocks", "{}", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]),
    ran(8, "mcp__files__list", '{"path": "/"}', ["a", "b"]),
]
Asking = Callable[[Client], Awaitable[None]]


def ask(asking: Asking, *, name: str = "", **options: Any) -> None:
    tape = ToolTape(recorded_tools(EVENTS))
    requests = [event.request for event in EVENTS if event.kind == "call"]
    definitions = tool_definitions(requests, also=tape.names)
    connected(server_of(tape, lambda: definitions, name=name), asking, **options)


def connected(server: Any, asking: Asking, **options: Any) -> None:
    async def main() -> None:
        async with Client(server, **options) as client:
            await asking(client)

    asyncio.run(main())


def text_of(result: types.CallToolResult) -> list[str]:
    return [one.text for one in result.content if isinstance(one, types.TextContent)]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_tools_are_listed_as_they_were_defined_and_give_what_they_gave(mode: str) -> None:
    async def asking(client: Client) -> None:
        tools = {one.name: one for one in (await client.list_tools()).tools}
        assert list(tools) == ["read", "mcp__files__list", "stat", "greet", "shot", "blocks"]
        assert (tools["read"].description, tools["read"].input_schema) == ("A file.", SCHEMA)
        assert (tools["stat"].description, tools["stat"].input_schema) == (None, {"type": "object"})
        given = [await client.call_tool("read", {"path": "a"}) for _ in range(2)]
        assert [text_of(one) for one in given] == [["first"], ["second"]]
        stat = await client.call_tool("stat", {"path": "a"})
        assert (stat.structured_content, text_of(stat)) == ({"size": 3}, ['{"size":3}'])
        failed = await client.call_tool("read", {"path": "b"})
        assert (failed.is_error, text_of(failed)) == (True, ["OSError: no such file"])
        shot = await client.call_tool("shot")
        assert isinstance(shot.content[0], types.ImageContent)
        assert text_of(await client.call_tool("blocks", {})) == ["one", "two"]

    ask(asking, mode=mode)


def test_a_miss_is_an_error_of_the_protocol_with_the_first_difference() -> None:
    async def asking(client: Client) -> None:
        await client.list_tools()
        with pytest.raises(MCPError) as missed:
            await client.call_tool("read", {"path": "c"})
        assert missed.value.data["difference"]["path"] == "arguments.path"
        assert missed.value.data["nearest_tool_call"] == "x0"
        second = await client.call_tool("read", {"path": "a"}, meta={USE_ID: "t1"})
        assert text_of(second) == ["second"]

    ask(asking)


def test_a_tool_that_asks_the_user_is_answered_by_what_the_user_said() -> None:
    said = ["Ada", "Bob"]

    async def elicited(context: Any, params: Any) -> types.ElicitResult:
        assert params.message == "Who?"
        return types.ElicitResult(action="accept", content={"name": said.pop(0)})

    async def asking(client: Client) -> None:
        assert text_of(await client.call_tool("greet", {})) == ["hello Ada"]

    ask(asking, elicitation_callback=elicited)

    async def asking_another(client: Client) -> None:
        with pytest.raises(MCPError) as missed:
            await client.call_tool("greet", {})
        assert missed.value.data["difference"]["path"] == "input_responses.name.content.name"

    ask(asking_another, elicitation_callback=elicited)


def test_it_stands_in_for_one_server_of_several() -> None:
    async def asking(client: Client) -> None:
        assert [one.name for one in (await client.list_tools()).tools] == ["list"]
        assert text_of(await client.call_tool("list", {"path": "/"})) == ['["a","b"]']
        with pytest.raises(MCPError, match="no such tool was recorded"):
            await client.call_tool("read", {"path": "a"})

    ask(asking, name="files")


def test_over_stdio_as_a_harness_starts_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    used = assistant(None, tool_calls=[tool_use("look", '{"at": 1}')])
    shown = [user("go"), used, tool_message("a bridge")]
    events = [
        episode(),
        agent("e/main"),
        call("c0", shown[:1], answer(used), agent="e/main"),
        call("c1", shown, answer("ok"), agent="e/main", parent="c0"),
    ]
    with Store.open(url) as store:
        store.ingest("tau", [posted(event) for event in events])
    words = [
        "-m",
        "tracestore.cli.main",
        "replay",
        "--db",
        url,
        "--project",
        "tau",
        "--episode",
        "e",
        "--mcp",
    ]

    async def asking(client: Client) -> None:
        assert [one.name for one in (await client.list_tools()).tools] == ["look"]
        assert text_of(await client.call_tool("look", {"at": 1})) == ["a bridge"]

    connected(StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ)), asking)


def test_definitions_of_every_dialect_are_read_and_the_first_counts() -> None:
    requests = [
        {"tools": [{"type": "function", "name": "a", "description": "A", "parameters": SCHEMA}]},
        {
            "tools": [
                {"type": "function", "function": {"name": "a", "description": "B"}},
                {"type": "web_search"},
            ]
        },
        {"tools": [{"name": "b", "input_schema": {"properties": {}}}, {"name": "c", "inputSchema": SCHEMA}]},
        {"tools": [{"functionDeclarations": [{"name": "d", "parameters": SCHEMA}]}]},
        {"tools": None},
        {"tools": "odd"},
    ]
    found = tool_definitions([None, *map(raw, requests), Raw(b"{}")], also=["d", "e"])
    any_object = {"type": "object"}
    assert found == [
        ToolDefinition("a", "A", SCHEMA),
        ToolDefinition("b", None, any_object | {"properties": {}}),
        ToolDefinition("c", None, SCHEMA),
        ToolDefinition("d", None, SCHEMA),
        ToolDefinition("e", None, any_object),
    ]
