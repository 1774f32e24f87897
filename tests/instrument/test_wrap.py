"""A wrapped SDK gives what it gives without, and every call is recorded as it passed over the wire."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.client.fake import Fake, fake_server
from tests.instrument.upstream import (
    Reply,
    Upstream,
    chat,
    chat_stream,
    message,
    message_stream,
    response,
    running_upstream,
)
from tracestore.client import Agent, Client, ClientError, current_agent, tool
from tracestore.instrument import wrap
from tracestore.instrument.recorder import Pending

ASKED: list[Any] = [{"role": "user", "content": "wide é 😀?"}]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with running_upstream() as upstream:
        yield upstream


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def client(server: Fake) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
def agent(client: Client) -> Iterator[Agent]:
    with client.episode() as episode, episode.agent(policy=("actor", 3)) as agent:
        yield agent


@pytest.fixture
def sdk(upstream: Upstream) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=upstream.url, api_key="sk-secret", max_retries=0) as sdk:
        yield wrap(sdk)


def _calls(server: Fake, agent: Agent) -> list[Any]:
    agent.client.flush()
    return server.of("call")


def _bare(upstream: Upstream) -> openai.OpenAI:
    return openai.OpenAI(base_url=upstream.url, api_key="sk-secret", max_retries=0)


def test_an_answer_is_the_same_with_and_without_and_recorded_to_the_byte(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI
) -> None:
    tools: Any = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    reply = chat("one", "two", tool=("call_1", "look", '{"at": 1'), ids=[7, 8], prompt_token_ids=[1, 2, 3])
    upstream.replies = [Reply(reply), Reply(reply, is_gzipped=True)]
    asked: Any = {"model": "m", "messages": ASKED, "tools": tools, "n": 2, "temperature": 0.5}
    with _bare(upstream) as bare:
        without = bare.chat.completions.create(**asked)
    assert sdk.chat.completions.create(**asked) == without
    assert upstream.bodies[0] == upstream.bodies[1]
    (call,) = _calls(server, agent)
    assert call.request == upstream.bodies[1]
    assert (call.agent_id, call.ordinal, call.purpose) == (agent.id, 0, "act")
    assert (call.policy.name, call.policy.version) == ("actor", 3)
    assert (call.model, call.provider_id, call.status, call.dialect) == (
        *("m-2026", "chatcmpl-1", "ok"),
        "openai_chat",
    )
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (5, 2)
    assert call.prompt_token_ids.json() == [1, 2, 3]
    assert [one.token_ids.json() for one in call.completions] == [[7, 8], [7, 8]]
    assert [one.message.value()["content"] for one in call.completions] == ["one", "two"]
    assert call.started_at <= call.ended_at
    (use,) = server.of("tool_call")
    assert (use.tool_call_id, use.name, use.arguments) == ("call_1", "look", '{"at": 1')
    assert agent.last_call is not None
    assert (agent.last_call.id, agent.last_call.num_completions) == (call.id, 2)
    assert b"sk-secret" not in b"".join(request.text for request in server.requests)
    assert call.meta.value()["http"]["response_headers"] == {"x-request-id": "req_1"}


def test_a_stream_is_laid_together(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI
) -> None:
    reply = Reply(events=chat_stream("Ak", "ashi ", "Kaikyō"))
    upstream.replies = [reply, reply]
    with _bare(upstream) as bare:
        without = list(bare.chat.completions.create(model="m", messages=ASKED, stream=True))
    assert list(sdk.chat.completions.create(model="m", messages=ASKED, stream=True)) == without
    (call,) = _calls(server, agent)
    assert call.completions[0].message.value() == {"role": "assistant", "content": "Akashi Kaikyō"}
    assert (call.status, call.completions[0].finish_reason, call.completions[0].partial) == (
        "ok",
        "stop",
        None,
    )
    assert call.started_at <= call.first_token_at <= call.ended_at


def _leave(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.create(model="m", messages=ASKED, stream=True) as stream:
        for chunk in stream:
            if chunk.choices[0].delta.content == "half":
                break


def _read_on(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.APIConnectionError):
        list(sdk.chat.completions.create(model="m", messages=ASKED, stream=True))


@pytest.mark.parametrize(
    ("reply", "read", "error"),
    [
        (Reply(events=chat_stream("half", "x" * 100_000)), _leave, "closed"),
        (Reply(events=chat_stream("half", is_done=False), breaks=True), _read_on, "RemoteProtocolError"),
    ],
)
def test_a_stream_that_was_left_or_broke_keeps_its_partial_output(
    upstream: Upstream,
    server: Fake,
    agent: Agent,
    sdk: openai.OpenAI,
    reply: Reply,
    read: Callable[[openai.OpenAI], None],
    error: str,
) -> None:
    upstream.replies = [reply]
    read(sdk)
    (call,) = _calls(server, agent)
    assert (call.status, call.error.type) == ("aborted", error)
    assert call.completions[0].partial is True
    assert call.completions[0].message.value()["content"] == "half"


def test_retries_are_attempts_of_one_call_and_the_same_body_again_is_another(
    upstream: Upstream, server: Fake, agent: Agent
) -> None:
    busy = Reply(
        {"error": {"message": "busy", "type": "overloaded"}}, status=503, headers={"retry-after-ms": "1"}
    )
    upstream.replies = [busy, Reply(breaks=True), Reply(chat("one")), Reply(chat("two"))]
    with wrap(openai.OpenAI(base_url=upstream.url, api_key="k", max_retries=2)) as sdk:
        for _ in range(2):
            sdk.chat.completions.create(model="m", messages=ASKED)
    assert len(set(upstream.bodies)) == 1
    calls = _calls(server, agent)
    ids = list(dict.fromkeys(call.id for call in calls))
    first = [call for call in calls if call.id == ids[0]][-1]
    assert [[call.revision for call in calls if call.id == one] for one in ids] == [[1, 2, 3], [1]]
    assert [one.status_code for one in first.attempts] == [503, None, 200]
    assert "disconnected" in first.attempts[1].error
    assert (first.status, first.ordinal, calls[-1].ordinal) == ("ok", 0, 1)
    assert calls[-1].attempts is None


@pytest.mark.parametrize(
    ("reply", "status", "error"),
    [
        (
            Reply({"error": {"message": "no such model", "type": "invalid"}}, status=404),
            "failed",
            ("invalid", "no such model", 404),
        ),
        (Reply(breaks=True), "failed", ("RemoteProtocolError", None, None)),
    ],
)
def test_a_call_that_fails_raises_as_before_and_is_recorded_with_its_error(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI, reply: Reply, status: str, error: Any
) -> None:
    upstream.replies = [reply]
    with pytest.raises(openai.APIError):
        sdk.chat.completions.create(model="m", messages=ASKED)
    (call,) = _calls(server, agent)
    assert call.status == status
    found = (call.error.type, call.error.message, call.error.status_code)
    assert [one for one, want in zip(found, error, strict=True) if want is not None] == [
        want for want in error if want is not None
    ]


def test_responses_and_their_details(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI
) -> None:
    upstream.replies = [Reply(response("Akashi"))]
    assert sdk.responses.create(model="m", input="which?").output_text == "Akashi"
    (call,) = _calls(server, agent)
    assert (call.dialect, call.request) == ("openai_responses", upstream.bodies[0])
    assert (call.usage.cached_tokens, call.usage.reasoning_tokens) == (3, 1)


def test_anthropic_whole_and_streamed(upstream: Upstream, server: Fake, agent: Agent) -> None:
    upstream.replies = [Reply(message("hm")), Reply(events=message_stream("Akashi"))]
    url = upstream.url.removesuffix("/v1")
    with wrap(anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)) as sdk:
        asked: Any = {"model": "claude", "max_tokens": 9, "messages": ASKED}
        assert sdk.messages.create(**asked).stop_reason == "tool_use"
        with sdk.messages.stream(**asked) as stream:
            assert stream.get_final_text() == "Akashi"
    whole, streamed = _calls(server, agent)
    assert [call.dialect for call in (whole, streamed)] == ["anthropic_messages"] * 2
    assert [call.request for call in (whole, streamed)] == upstream.bodies
    (use,) = server.of("tool_call")
    assert (use.tool_call_id, use.name, json.loads(use.arguments)) == ("toolu_1", "look", {"at": "x"})
    assert (streamed.status, streamed.completions[0].finish_reason) == ("ok", "end_turn")


def test_async_tasks_record_each_under_its_own_agent(
    upstream: Upstream, server: Fake, client: Client
) -> None:
    """One SDK client for both, two calls each, one of them streamed."""

    async def rollout(sdk: openai.AsyncOpenAI, name: str) -> None:
        with client.episode(name) as episode, episode.agent(f"{name}/main"):
            await sdk.chat.completions.create(model=name, messages=ASKED)
            stream = await sdk.chat.completions.create(model=name, messages=ASKED, stream=True)
            async for _ in stream:
                pass

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as sdk:
            wrap(sdk)
            await rollout(sdk, "warm")
            upstream.replies = [Reply(chat("x"))] * 2
            one, other = client.episode("a").agent("a/main"), client.episode("b").agent("b/main")

            async def ask(agent: Agent) -> None:
                with agent.active():
                    await sdk.chat.completions.create(model=agent.id, messages=ASKED)
                    assert current_agent() is agent

            await asyncio.gather(ask(one), ask(other))

    upstream.replies = [Reply(chat("x")), Reply(events=chat_stream("y"))]
    asyncio.run(main())
    client.flush()
    of_agent = {call.agent_id: json.loads(call.request)["model"] for call in server.of("call")[2:]}
    assert of_agent == {"a/main": "a/main", "b/main": "b/main"}
    warm = server.of("call")[:2]
    assert [(call.agent_id, call.ordinal, call.status) for call in warm] == [
        ("warm/main", 0, "ok"),
        ("warm/main", 1, "ok"),
    ]


def test_an_async_call_that_is_cancelled_is_recorded_with_what_had_come(
    upstream: Upstream, server: Fake, agent: Agent
) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=upstream.url, api_key="k", max_retries=0) as sdk:
            wrap(sdk)
            came = asyncio.Event()

            async def read() -> None:
                stream = await sdk.chat.completions.create(model="m", messages=ASKED, stream=True)
                async for chunk in stream:
                    if chunk.choices[0].delta.content == "half":
                        came.set()
                        await asyncio.Event().wait()

            reading = asyncio.create_task(read())
            await came.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    upstream.replies = [Reply(events=chat_stream("half", "x" * 100_000))]
    asyncio.run(main())
    (call,) = _calls(server, agent)
    assert (call.status, call.completions[0].partial) == ("aborted", True)
    assert call.completions[0].message.value()["content"] == "half"


def test_a_decorated_tool_completes_the_use_that_the_model_sampled(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI
) -> None:
    @tool
    def look(at: int, *, far: bool = False) -> dict[str, int]:
        return {"seen": at}

    upstream.replies = [Reply(chat("", tool=("call_1", "look", '{ "at": 1 }')))]
    sdk.chat.completions.create(model="m", messages=ASKED)
    look(at=1)
    agent.client.flush()
    sampled, executed = server.of("tool_call")
    assert (sampled.id, sampled.revision, sampled.arguments) == (executed.id, None, '{ "at": 1 }')
    assert (executed.revision, executed.tool_call_id, executed.arguments) == (1, "call_1", '{"at": 1}')
    assert (executed.status, executed.result.value()) == ("ok", {"seen": 1})
    assert agent.last_call is not None
    assert executed.call_id == agent.last_call.id


def test_what_the_wire_cannot_say_is_said_for_a_block(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI
) -> None:
    upstream.replies = [Reply(chat("one", "two")), Reply(chat("short")), Reply(chat("go on"))]
    sdk.chat.completions.create(model="m", messages=ASKED, n=2)
    first = agent.last_call
    assert first is not None
    with agent.calls_are(purpose="summarize", parent=first[1], meta={"turn": 2}):
        sdk.chat.completions.create(model="m", messages=ASKED)
    agent.policy = ("actor", 4)
    sdk.chat.completions.create(model="m", messages=ASKED)
    _, summary, after = _calls(server, agent)
    assert (summary.purpose, summary.parent_call_id, summary.parent_completion) == ("summarize", first.id, 1)
    assert summary.meta.value()["turn"] == 2
    assert (summary.policy.version, after.policy.version, after.purpose) == (3, 4, "act")


def test_calls_outside_of_an_episode_are_gathered_or_left_out_with_a_word(
    upstream: Upstream, server: Fake, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tracestore.client")
    upstream.replies = [Reply(chat("x"))] * 4
    with _bare(upstream) as sdk:
        for _ in range(2):
            wrap(sdk).chat.completions.create(model="m", messages=ASKED)
        assert caplog.text.count("outside of any episode is not recorded") == 2
        wrap(sdk, client=client)
        for _ in range(2):
            sdk.chat.completions.create(model="m", messages=ASKED)
    client.flush()
    assert [(call.episode_id, call.ordinal) for call in server.of("call")] == [
        (server.of("episode")[0].id, 0),
        (server.of("episode")[0].id, 1),
    ]


def test_if_recording_fails_the_call_succeeds_and_a_gap_says_so(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Pending, "_record", broken)
    upstream.replies = [Reply(chat("one"))]
    assert sdk.chat.completions.create(model="m", messages=ASKED).choices[0].message.content == "one"
    agent.client.flush()
    (gap,) = server.of("gap")
    assert (gap.cause, gap.agent_id) == ("recording_failed", agent.id)
    assert "a fault of ours" in gap.detail


def test_other_requests_pass_unseen(
    upstream: Upstream, server: Fake, agent: Agent, sdk: openai.OpenAI
) -> None:
    upstream.replies = [Reply({"object": "list", "data": [], "model": "m", "usage": {}})]
    sdk.embeddings.create(model="m", input="x", encoding_format="float")
    assert _calls(server, agent) == []


def test_what_is_no_sdk_is_refused() -> None:
    with pytest.raises(ClientError, match="httpx client"):
        wrap(object())


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_the_http_client_that_any_sdk_is_given_can_be_wrapped_itself(
    upstream: Upstream, server: Fake, agent: Agent, library: Any
) -> None:
    upstream.replies = [Reply(chat("one")), Reply(chat("two"), is_gzipped=True)]
    with library.Client() as http:
        assert wrap(http) is http
        wrap(http)  # again: one recorder listens, not two
        for text in ("one", "two"):
            answer = http.post(f"{upstream.url}/chat/completions", content=b'{"messages": [],  "n": 1}')
            assert answer.json()["choices"][0]["message"]["content"] == text
    calls = _calls(server, agent)
    assert [call.request for call in calls] == [b'{"messages": [],  "n": 1}'] * 2
    assert [call.completions[0].message.value()["content"] for call in calls] == ["one", "two"]
