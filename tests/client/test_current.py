"""What is current belongs to the running code: threads and asyncio tasks never see each other's."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.client.fake import Fake, fake_server
from tracestore.client import Client, Stats, current_agent, current_call, current_episode


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def client(server: Fake) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def test_blocks_nest_and_end_with_what_was_before(client: Client) -> None:
    assert (current_episode(), current_agent(), current_call()) == (None, None, None)
    with client.episode() as episode:
        assert current_episode() is episode
        assert current_agent() is None
        with episode.agent() as main:
            assert current_agent() is main
            with main.subagent() as helper:
                call = helper.call(messages=[])
                assert (current_agent(), current_call()) == (helper, call)
            assert (current_agent(), current_call()) == (main, None)
    assert (current_episode(), current_agent()) == (None, None)


def test_the_only_open_agent_of_an_episode_is_current(client: Client) -> None:
    with client.episode() as episode:
        main = episode.agent()
        assert current_agent() is main
        helper = main.subagent()
        assert current_agent() is None
        helper.end()
        assert current_agent() is main


def test_tasks_and_threads_keep_apart(client: Client) -> None:
    async def rollout(name: str) -> None:
        with client.episode(name) as episode, episode.agent(f"{name}/main"):
            for _ in range(3):
                await asyncio.sleep(0)
                assert await asyncio.to_thread(_names) == (name, f"{name}/main")
            assert await asyncio.create_task(_later()) == (name, f"{name}/main")

    async def _later() -> tuple[str | None, str | None]:
        return _names()

    async def main() -> None:
        await asyncio.gather(*(rollout(f"e{n}") for n in range(5)))

    asyncio.run(main())
    with client.episode("outer") as episode, episode.agent("a"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(_names).result() == (None, None)
        assert pool.submit(contextvars.copy_context().run, _names).result() == ("outer", "a")


def _names() -> tuple[str | None, str | None]:
    episode, agent = current_episode(), current_agent()
    return episode and episode.id, agent and agent.id


def test_a_block_that_ends_in_another_context_ends_its_scope(client: Client, server: Fake) -> None:
    with client.episode() as episode:
        agent = episode.agent()
        contextvars.copy_context().run(agent.__enter__)
        agent.__exit__(None, None, None)
    client.flush()
    assert [(one.kind, one.status) for one in server.events[-2:]] == [("agent", "ok"), ("episode", "ok")]  # type: ignore[union-attr]


def test_a_reward_for_what_another_process_recorded(client: Client, server: Fake) -> None:
    client.reward("correct", 1.0, episode_id="e", scorer="judge")
    client.reward("step", 0.5, episode_id="e", agent_id="a", call_id="c", completion=0, weight=2.0)
    client.flush()
    late, step = server.of("reward")
    assert (late.name, late.value, late.scorer, late.target.call_id) == ("correct", 1.0, "judge", None)
    assert (step.target.agent_id, step.target.call_id, step.target.completion) == ("a", "c", 0)


def test_stats_say_where_events_are(client: Client) -> None:
    client.event("gap", episode_id="e", cause="x")
    client.flush()
    assert client.stats() == Stats(recorded=1, waiting=0, spooled_files=0, rejected=0, away=None)
