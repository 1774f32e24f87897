"""Functions under `@tool` give again what they gave, without running: against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.proxy.scripted import Running, Said, running_proxy, scripted_upstream
from tests.databases import empty_store
from tracestore.client import (
    Client,
    ClientError,
    NotReplayed,
    RecordedToolError,
    RequestRefused,
    ServerAway,
    replayed_tools,
    tool,
    tool_use,
)
from tracestore.client.replayed import recorded_error
from tracestore.wire.tool_call import ToolCall
from tracestore_migrations import open_store

RAN: list[Any] = []
"""What ran in truth."""


class ToolError(Exception):
    """Of the harness: no built-in type."""


@tool
def roll(sides: int) -> int:
    RAN.append(sides)
    return len(RAN)


@tool
def fails(how: str) -> None:
    RAN.append(how)
    if how == "key":
        raise KeyError(how)
    if how == "own":
        raise ToolError("it broke: twice")
    if how == "late":
        raise TimeoutError("5 s")


@tool
async def fetch(url: str) -> dict[str, str]:
    RAN.append(url)
    return {"url": url}


@tool
def ask(question: str) -> Any:
    RAN.append(question)
    return {"inputRequests": {"name": question}} if len(RAN) == 1 else "hello"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = open_store(empty_store(tmp_path_factory.mktemp("replayed") / "t.db"))
    with store, running_proxy(store, "http://127.0.0.1:1") as running:
        yield running


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


def url_of(server: Running) -> str:
    return server.url.removesuffix("/proxy")


def replay_of(server: Running, episode: str) -> str:
    return f"{url_of(server)}/replay/episode={episode}"


def harness(server: Running, episode: str) -> list[Any]:
    """What its tools gave or raised."""
    found: list[Any] = []
    with Client(url_of(server)) as client, client.episode(episode) as one, one.agent(name="main") as agent:
        agent.call(messages=[], completion={"message": {}})
        found += [roll(6), roll(6), roll(8), asyncio.run(fetch("a"))]
        for how in ("key", "own", "late", "fine"):
            try:
                found.append(fails(how))
            except (KeyError, TimeoutError) as error:
                found.append((type(error).__name__, str(error)))
            except Exception as error:  # noqa: BLE001 - what harnesses show their models
                found.append((type(error).__name__, str(error)))
    return found


def told(server: Running, episode: str) -> list[tuple[Any, ...]]:
    """What was recorded of its tools."""
    runs = [one for one in server.store.load("default", episode) if isinstance(one, ToolCall)]
    return [(one.name, one.arguments, one.result, one.status, one.error, one.meta) for one in runs]


def test_a_harness_gets_its_results_and_failures_again_and_records_the_same_once_more(
    server: Running,
) -> None:
    first = harness(server, "e")
    assert first[:4] == [1, 2, 3, {"url": "a"}]
    assert first[4:] == [
        ("KeyError", "'key'"),
        ("ToolError", "it broke: twice"),
        ("TimeoutError", "5 s"),
        None,
    ]
    RAN.clear()
    with replayed_tools(replay_of(server, "e")):
        assert harness(server, "again") == first
    assert RAN == []
    assert told(server, "again") == told(server, "e")


def test_a_miss_names_the_nearest_run_and_where_it_differs(server: Running) -> None:
    with Client(url_of(server)) as client, client.episode("miss") as one, one.agent() as agent:
        agent.call(messages=[])
        roll(6)
    with (
        replayed_tools(replay_of(server, "miss")),
        Client(url_of(server)) as client,
        client.episode("missing") as one,
        one.agent() as agent,
    ):
        agent.call(messages=[])
        with pytest.raises(NotReplayed, match="it did not run when") as missed:
            roll(7)
    assert missed.value.values["difference"] == {
        "path": "arguments.sides",
        "byte": None,
        "recorded": "6",
        "asked": "7",
    }
    assert missed.value.values["nearest_tool_call"]
    assert told(server, "missing") == []  # what was not replayed is not recorded as having failed
    assert RAN == [6]


def test_runs_of_a_harness_have_places_of_their_own_and_the_environment_may_say_where(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(url_of(server)) as client, client.episode("env") as one, one.agent() as agent:
        agent.call(messages=[])
        roll(6)
    for run in ("one", "two"):
        with replayed_tools(replay_of(server, "env"), run=run):
            assert roll(6) == 1
    monkeypatch.setenv("TRACESTORE_REPLAY_TOOLS", replay_of(server, "env"))
    assert roll(6) == 1
    with pytest.raises(NotReplayed, match="all its recorded results were given"):
        roll(6)
    monkeypatch.setenv("TRACESTORE_REPLAY_PROJECT", "other")
    with pytest.raises(RequestRefused, match="404"):
        roll(6)
    assert len(RAN) == 1


def test_a_tool_that_asked_answers_by_what_it_was_told(server: Running) -> None:
    answers = {"name": {"action": "accept", "content": "Ada"}}
    with Client(url_of(server)) as client, client.episode("asks") as one, one.agent() as agent:
        agent.call(messages=[])
        with tool_use("call_1"):
            asked = ask("who?")
        with tool_use("call_1", input_responses=answers):
            assert ask("who?") == "hello"
    with replayed_tools(replay_of(server, "asks")):
        with tool_use("call_1", input_responses=answers):
            assert ask("who?") == "hello"
        with tool_use("call_1"):
            assert ask("who?") == asked
        with tool_use("call_1", input_responses={"name": {"action": "decline"}}), pytest.raises(NotReplayed):
            ask("who?")
    with replayed_tools(replay_of(server, "asks"), run="another model"), tool_use("call_2"):
        assert ask("who?") == asked  # no use was recorded under this id


@pytest.mark.parametrize(
    ("configured", "given", "sent"),
    [
        ("{}", None, "Bearer ts_env"),
        ("{}/", None, "Bearer ts_env"),
        (None, None, None),
        ("http://127.0.0.1:1", None, None),
        ("http://127.0.0.1:1", "ts_own", "Bearer ts_own"),
        ("{}", "ts_own", "Bearer ts_own"),
    ],
)
def test_the_key_of_the_environment_goes_to_its_own_server_alone(
    configured: str | None, given: str | None, sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACESTORE_API_KEY", "ts_env")
    with scripted_upstream() as other:
        if configured is None:
            monkeypatch.delenv("TRACESTORE_URL", raising=False)
        else:
            monkeypatch.setenv("TRACESTORE_URL", configured.format(other.url))
        other.says(Said(b'{"result": 6, "status": "ok", "error": null}'))
        with replayed_tools(f"{other.url}/replay/episode=e", api_key=given):
            assert roll(6) == 6
    [seen] = other.seen
    assert (seen.header("authorization"), RAN) == (sent, [])


def test_nobody_there_is_no_miss(server: Running, tmp_path: Path) -> None:
    with replayed_tools("http://127.0.0.1:1/replay/episode=e"), pytest.raises(ServerAway):
        roll(6)
    with replayed_tools(url_of(server) + "/v1/health"), pytest.raises(RequestRefused):
        roll(6)
    with pytest.raises(ClientError, match="name the replay"), replayed_tools():
        pass
    assert RAN == []


@pytest.mark.parametrize(
    ("text", "status", "name", "message", "kinds"),
    [
        ("ValueError: no", "failed", "ValueError", "no", (ValueError,)),
        ("FileNotFoundError: [Errno 2] x", "failed", "FileNotFoundError", "[Errno 2] x", (OSError,)),
        ("UnicodeDecodeError: bad byte", "failed", "UnicodeDecodeError", "bad byte", (ValueError,)),
        ("ReadTimeout: slow", "timeout", "ReadTimeout", "slow", (TimeoutError,)),
        ("ExceptionGroup: a (2)", "failed", "ExceptionGroup", "a (2)", ()),
        ("SystemExit: 1", "failed", "SystemExit", "1", ()),
        ("the machine is offline", "failed", "RecordedToolError", "the machine is offline", ()),
        (None, "failed", "RecordedToolError", "it ended as failed, and nothing says how", ()),
    ],
)
def test_an_error_is_of_the_kind_that_was_raised(
    text: str | None, status: str, name: str, message: str, kinds: tuple[type, ...]
) -> None:
    error = recorded_error(text, status=status)
    assert (type(error).__name__, str(error)) == (name, message)
    for kind in (RecordedToolError, *kinds):
        with pytest.raises(kind):
            raise error
