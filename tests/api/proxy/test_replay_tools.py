"""`POST /replay/.../tools/call`: what tools gave, over HTTP."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from tests.api.proxy.scripted import Running
from tests.factories import agent, call, episode, posted, raw, tool_call
from tracestore.wire.base import Raw
from tracestore.wire.events import AnyEvent
from tracestore_api import replay_tools


def record(proxy: Running, *results: Any, id: str = "e") -> None:  # noqa: A002
    prefix = "" if id == "e" else f"{id}/"
    runs = [
        tool_call(
            f"{prefix}x{place}",
            f"{prefix}c0",
            episode=id,
            arguments='{"n": 1}',
            tool_call_id=f"t{place}",
            result=result if isinstance(result, Raw) else raw(result),
        )
        for place, result in enumerate(results)
    ]
    named = f"{id}/main"
    events = [
        episode(id),
        agent(named, episode=id),
        call(f"{prefix}c0", episode=id, agent=named),
        *runs,
    ]
    ingested(proxy, *events)


def ingested(proxy: Running, *events: AnyEvent) -> None:
    for item in proxy.store.ingest("default", [posted(event) for event in events]):
        assert item.status == "stored", item


def asking(proxy: Running, *segments: str, id: str = "e") -> str:  # noqa: A002
    return "/".join((proxy.url.removesuffix("/proxy"), "replay", f"episode={id}", *segments, "tools/call"))


def asking_mcp(proxy: Running) -> str:
    return asking(proxy).removesuffix("tools/call") + "mcp"


RUN = {"name": "run", "arguments": {"n": 1}}


def test_equal_runs_get_their_results_in_order_and_the_status_counts_them(proxy: Running) -> None:
    record(proxy, Raw(b'{"exact":  1.50}'), "second")
    status = proxy.url.replace("/proxy", "/replay")
    assert httpx.get(status, params={"episode": "e"}).json()["tools"] is None
    first = httpx.post(asking(proxy), json=RUN)
    assert '"result":{"exact":  1.50}' in first.text
    expected = {"tool_call": "x0", "tool_call_id": "t0", "occurrence": 0, "by_arrival": False, "status": None}
    assert first.json() == expected | {"result": {"exact": 1.5}, "error": None, "exit_status": None}
    assert httpx.post(asking(proxy), json=RUN | {"tool_call_id": "t1"}).json()["result"] == "second"
    assert httpx.post(asking(proxy, "run=other"), json=RUN).json()["occurrence"] == 0
    missed = httpx.post(asking(proxy), json=RUN | {"arguments": '{"n": 2}'})
    assert (missed.status_code, missed.headers["x-should-retry"]) == (409, "false")
    assert missed.json()["difference"]["path"] == "arguments.n"
    told = httpx.get(status, params={"episode": "e"}).json()["tools"]
    assert (told["calls"], told["answered"], [one["tool"] for one in told["missed"]]) == (2, 2, ["run"])
    assert httpx.delete(status, params={"episode": "e"}).status_code == 204
    assert httpx.post(asking(proxy), json=RUN).json()["tool_call"] == "x0"


@pytest.mark.parametrize("max_bytes", [replay_tools._MAX_BYTES, 1], ids=["in memory", "read again"])
def test_results_come_in_order_however_many_episodes_are_asked_in_turn(
    max_bytes: int, proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_tools, "_MAX_BYTES", max_bytes)
    ids = [f"e{number}" for number in range(20)]
    for one in ids:
        record(proxy, f"{one}: first", f"{one}: second", id=one)
    with httpx.Client() as plain:
        told = [
            [plain.post(asking(proxy, id=one), json=RUN).json()["result"] for one in ids] for _ in range(2)
        ]
        status = plain.get(proxy.url.replace("/proxy", "/replay"), params={"episode": "e0"}).json()["tools"]
    assert told == [[f"{one}: {which}" for one in ids] for which in ("first", "second")]
    assert (status["calls"], status["answered"]) == (2, 2)


def test_tools_are_read_again_where_their_episode_was_touched_and_only_there(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_tools, "_FRESH_S", 0.0)
    record(proxy, "first")
    read: list[str] = []
    load = proxy.store.load

    def loading(project: str, episode_id: str, **more: Any) -> Any:
        read.append(episode_id)
        return load(project, episode_id, **more)

    monkeypatch.setattr(proxy.store, "load", loading)
    assert httpx.post(asking(proxy), json=RUN).json()["result"] == "first"
    record(proxy, "of another", id="other")
    assert httpx.post(asking(proxy, "run=2"), json=RUN).json()["result"] == "first"
    assert read == ["e"]
    ingested(proxy, tool_call("x1", arguments='{"n": 1}', tool_call_id="t1", result=raw("second")))
    assert httpx.post(asking(proxy), json=RUN).json()["result"] == "second"
    assert read == ["e", "e"]


def test_the_official_mcp_client_reads_them_over_http(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(proxy, "first", "second")

    async def asking(url: str, name: str) -> list[Any]:
        async with Client(url) as client:
            listed = [one.name for one in (await client.list_tools()).tools]
            given = [await client.call_tool(name, {"n": 1}) for _ in range(2)]
            with pytest.raises(MCPError, match="all its recorded results were given"):
                await client.call_tool(name, {"n": 1})
        return [listed, *(one.content[0] for one in given)]

    url = asking_mcp(proxy)
    listed, *given = asyncio.run(asking(url, "run"))
    assert (listed, [one.text for one in given]) == (["run"], ["first", "second"])
    told = httpx.get(proxy.url.replace("/proxy", "/replay"), params={"episode": "e"}).json()["tools"]
    assert told["answered"] == 2
    assert httpx.get(url).status_code == 405
    assert httpx.post(url.replace("=e", "=none"), json={}).status_code == 404
    monkeypatch.setitem(sys.modules, "mcp.server.streamable_http_manager", None)
    missing = httpx.post(url, json={})
    assert (missing.status_code, 'pip install "tracestore[mcp]"' in missing.json()["hint"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"[]", "a JSON object"),
        (b"", "a JSON object"),
        (b"{}", "which tool runs"),
        (b'{"name": "run", "tool_call_id": 3}', "a text"),
        (b'{"name": "run", "args": {}}', "fields are arguments"),
    ],
)
def test_what_is_no_run_of_a_tool_says_what_is(body: bytes, hint: str, proxy: Running) -> None:
    answer = httpx.post(asking(proxy), content=body)
    assert answer.status_code == 400
    assert hint in answer.text


def test_what_was_redacted_or_deleted_since_is_answered_no_more(
    proxy: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_tools, "_FRESH_S", 0.0)
    record(proxy, "public", "the key is sk-12345")
    api = proxy.url.removesuffix("/proxy")
    assert httpx.post(asking(proxy), json=RUN).json()["result"] == "public"
    rules = {"rules": [{"name": "key", "pattern": "sk-[0-9]+"}]}
    assert httpx.post(f"{api}/v1/redactions", json=rules).status_code == 202
    for _ in range(100):
        redacted = httpx.post(asking(proxy, "run=later"), json=RUN | {"tool_call_id": "t1"})
        if redacted.status_code == 409:
            break
        httpx.delete(f"{api}/replay", params={"episode": "e", "run": "later"})
    assert "redacted" in redacted.json()["hint"]
    assert "sk-" not in redacted.text
    assert httpx.delete(f"{api}/v1/episodes/e").status_code == 202
    assert httpx.post(asking(proxy, "run=last"), json=RUN).status_code in (404, 410)
