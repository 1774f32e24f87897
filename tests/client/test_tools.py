"""A decorated function gives and raises what it did; each run is a tool call of the current agent's call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.fake import Fake, fake_server
from tracestore.client import Agent, Client, ClientError, ToolUse, current_agent, tool


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def agent(server: Fake) -> Iterator[Agent]:
    with Client(server.url) as client, client.episode() as episode, episode.agent() as agent:
        yield agent


@tool
def double(n: int, /, *more: int, unit: str = "m", **rest: Any) -> dict[str, Any]:
    """Twice as much."""
    return {"n": 2 * n, "unit": unit}


@tool(name="fetch")
async def fetch_page(url: str) -> object:
    await asyncio.sleep(0)
    if url == "slow":
        raise TimeoutError("too slow")
    return object()


def _recorded(server: Fake, agent: Agent) -> list[Any]:
    agent.client.flush()
    return server.of("tool_call")


def test_a_run_is_recorded_with_arguments_result_and_times(server: Fake, agent: Agent) -> None:
    agent.call(messages=[])
    call = agent.call(messages=[])
    assert double(2, 3, unit="km", deep=[1]) == {"n": 4, "unit": "km"}
    (one,) = _recorded(server, agent)
    assert (one.call_id, one.completion, one.name, one.tool_call_id) == (call.id, 0, "double", None)
    assert one.arguments == '{"n": 2, "more": [3], "unit": "km", "deep": [1]}'
    assert (one.result.value(), one.status, one.error, one.meta) == ({"n": 4, "unit": "km"}, "ok", None, None)
    assert one.started_at <= one.ended_at
    assert double.__doc__ == "Twice as much."


def test_a_use_that_is_named_is_the_one_and_holds_once(server: Fake, agent: Agent) -> None:
    call = agent.call(messages=[], completions=[{"message": {}}, {"message": {}}])
    later = agent.call(messages=[])
    with call[1].tool_use("call_7"):
        double(1)
        double(2)
    first, second = _recorded(server, agent)
    assert (first.call_id, first.completion, first.tool_call_id) == (call.id, 1, "call_7")
    assert (second.call_id, second.tool_call_id) == (later.id, None)


def test_a_tool_inside_a_tool_takes_no_use_of_it(server: Fake, agent: Agent) -> None:
    @tool
    def outer() -> int:
        return int(double(1)["n"])

    call = agent.call(messages=[])
    with call.tool_use("call_1"):
        outer()
    uses = [(one.name, one.tool_call_id) for one in _recorded(server, agent)]
    assert uses == [("double", None), ("outer", "call_1")]


def test_sampled_uses_are_told_apart_by_their_arguments(server: Fake, agent: Agent) -> None:
    call = agent.call(messages=[], completion={"message": {}})
    uses = tuple(
        ToolUse(call.id, 0, f"call_{n}", "double", f'{{"n":{n}}}', f"{call.id}/tool/{n}") for n in range(3)
    )
    agent.last_call = type(call)(agent, call.id, 1, False, uses)
    for n in (1, 5, 2):  # 5: the arguments fit no use, and two of this name are left
        double(n)
    found = [(one.tool_call_id, one.id, one.revision) for one in _recorded(server, agent)]
    assert found[0] == ("call_1", f"{call.id}/tool/1", 1)
    assert found[1][0] is None
    assert found[2] == ("call_2", f"{call.id}/tool/2", 1)


def test_an_async_tool_that_fails_raises_as_before_and_says_so(server: Fake, agent: Agent) -> None:
    agent.call(messages=[])

    async def main() -> None:
        await fetch_page("a")
        with pytest.raises(TimeoutError):
            await fetch_page("slow")
        hanging = asyncio.create_task(fetch_page("b"))
        await asyncio.sleep(0)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging

    asyncio.run(main())
    fine, slow, cancelled = _recorded(server, agent)
    assert fine.result.value().startswith("<object object")
    assert fine.meta.value() == {"result_is_repr": True}
    assert (slow.status, slow.error, slow.result) == ("timeout", "TimeoutError: too slow", None)
    assert cancelled.status == "cancelled"
    assert [one.name for one in (fine, slow, cancelled)] == ["fetch"] * 3


@pytest.mark.parametrize("error", [StopIteration("x"), KeyboardInterrupt()])
def test_whatever_a_tool_raises_passes(server: Fake, agent: Agent, error: BaseException) -> None:
    @tool
    def fail() -> None:
        raise error

    agent.call(messages=[])
    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    (one,) = _recorded(server, agent)
    assert one.status == ("cancelled" if isinstance(error, KeyboardInterrupt) else "failed")


def test_methods_and_arguments_that_are_no_json(server: Fake, agent: Agent) -> None:
    class Shell:
        @agent.client.tool
        def run(self, command: object) -> int:
            return 0

    agent.call(messages=[])
    assert Shell().run(slice(1, 2)) == 0
    (one,) = _recorded(server, agent)
    assert (one.name, one.arguments) == ("run", '{"command": "slice(1, 2, None)"}')
    assert one.meta.value() == {"arguments_hold_repr": True}


def test_outside_of_an_agent_and_after_the_client_ended_it_just_runs(
    server: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    assert current_agent() is None
    assert double(1) == {"n": 2, "unit": "m"}
    with Client(server.url) as client, client.episode() as episode, episode.agent() as agent:
        assert double(1)["n"] == 2
    assert [(gap.cause, gap.agent_id) for gap in server.of("gap")] == [("tool_call_without_call", agent.id)]
    with agent.active():
        agent.last_call = None
        assert double(1)["n"] == 2
    assert "not recorded: The client is closed" in caplog.text


def test_a_generator_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(ClientError, match="a generator has no one result"):

        @tool
        def rows() -> Iterator[int]:
            yield 1
