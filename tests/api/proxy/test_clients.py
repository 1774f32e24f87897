"""What the official clients read is the same with and without the proxy, to the byte."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Running, Said, Seen, Upstream, sse

JSON = (("content-type", "application/json"), ("x-request-id", "r1"), ("X-Odd", "a"), ("x-odd", "b"))
CHAT: dict[str, Any] = {"model": "m-1", "messages": [d.QUESTION], "temperature": 0.5}
MESSAGES: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": [d.QUESTION]}
RESPONSE: dict[str, Any] = {"model": "m-1", "input": "Wie heißt du?", "instructions": "kurz"}


def pieces(body: bytes, size: int) -> list[bytes]:
    """A body cut where no event ends."""
    return [body[at : at + size] for at in range(0, len(body), size)]


Heard = list[tuple[int, list[tuple[bytes, bytes]], bytearray]]
"""Of every response its status, its headers but for the date, and its body as it came over the wire."""


def listening(module: Any) -> tuple[Any, Heard]:
    """An HTTP client of a module (httpx, or httpx2 as anthropic uses it), and what it hears."""
    heard: Heard = []

    class Kept(module.SyncByteStream):  # type: ignore[misc]
        def __init__(self, response: Any, kept: bytearray) -> None:
            self._response, self._kept = response, kept

        def __iter__(self) -> Iterator[bytes]:
            for chunk in self._response.stream:
                self._kept += chunk
                yield chunk

        def close(self) -> None:
            self._response.close()

    class Transport(module.BaseTransport):  # type: ignore[misc]
        inner = module.HTTPTransport()

        def handle_request(self, request: Any) -> Any:
            response = self.inner.handle_request(request)
            kept = bytearray()
            headers = [(name.lower(), value) for name, value in response.headers.raw]
            heard.append((response.status_code, [one for one in headers if one[0] != b"date"], kept))
            return module.Response(
                response.status_code,
                headers=response.headers,
                stream=Kept(response, kept),
                extensions=response.extensions,
            )

        def close(self) -> None:
            self.inner.close()

    return module.Client(transport=Transport()), heard


def with_openai(base_url: str, ask: Callable[[Any], Any]) -> tuple[Any, Heard]:
    """What the client makes of the answer, and what came over the wire."""
    client, heard = listening(httpx)
    with openai.OpenAI(
        base_url=f"{base_url}/v1", api_key="sk-1", max_retries=0, http_client=client
    ) as asking:
        return dumped(ask(asking)), heard


def with_anthropic(base_url: str, ask: Callable[[Any], Any]) -> tuple[Any, Heard]:
    client, heard = listening(httpx2)
    with anthropic.Anthropic(base_url=base_url, api_key="sk-1", max_retries=0, http_client=client) as asking:
        return dumped(ask(asking)), heard


def dumped(answer: Any) -> Any:
    if hasattr(answer, "model_dump"):
        return answer.model_dump(warnings=False)
    return [one.model_dump(warnings=False) for one in answer]


def same(seen: Sequence[Seen]) -> None:
    """The upstream was asked the same twice."""
    direct, proxied = seen
    assert (direct.method, direct.target, direct.body) == (proxied.method, proxied.target, proxied.body)
    hop = ("host", "connection", "content-length", "accept-encoding")

    def kept(one: Seen) -> list[tuple[str, str]]:
        return sorted((name.lower(), value) for name, value in one.headers if name.lower() not in hop)

    assert kept(direct) == kept(proxied)


OPENAI: dict[str, tuple[Callable[[Any], Any], Said]] = {
    "chat": (lambda c: c.chat.completions.create(**CHAT), Said(d.chat("Ich"), headers=JSON)),
    "chat stream": (
        lambda c: list(c.chat.completions.create(**CHAT, stream=True)),
        sse(*pieces(d.CHAT_STREAM, 7), pause_s=0.0005),
    ),
    "chat gzip": (
        lambda c: c.chat.completions.create(**CHAT),
        Said(gzip.compress(d.chat("Ich")), headers=(*JSON, ("content-encoding", "gzip"))),
    ),
    "responses": (lambda c: c.responses.create(**RESPONSE), Said(d.body_of(d.response()), headers=JSON)),
    "responses stream": (
        lambda c: list(c.responses.create(**RESPONSE, stream=True)),
        sse(*pieces(d.RESPONSE_STREAM, 11)),
    ),
    "completions": (
        lambda c: c.completions.create(model="m-1", prompt="Ich h"),
        Said(
            d.body_of(
                {
                    "id": "t",
                    "object": "text_completion",
                    "model": "m",
                    "choices": [{"index": 0, "text": "eiße", "finish_reason": "stop", "logprobs": None}],
                }
            )
        ),
    ),
    "models": (lambda c: list(c.models.list()), Said(d.body_of({"object": "list", "data": []}))),
}
ANTHROPIC: dict[str, tuple[Callable[[Any], Any], Said]] = {
    "messages": (lambda c: c.messages.create(**MESSAGES), Said(d.body_of(d.ANTHROPIC), headers=JSON)),
    "messages stream": (
        lambda c: list(c.messages.create(**MESSAGES, stream=True)),
        sse(*pieces(d.ANTHROPIC_STREAM, 5)),
    ),
}


@pytest.mark.parametrize("name", [*OPENAI, *ANTHROPIC])
def test_a_client_gets_identical_bytes_with_and_without_the_proxy(
    name: str, proxy: Running, upstream: Upstream
) -> None:
    ask, said = OPENAI.get(name) or ANTHROPIC[name]
    ask_at = with_openai if name in OPENAI else with_anthropic
    upstream.says(said, said)
    direct, proxied = ask_at(upstream.url, ask), ask_at(proxy.url, ask)
    assert direct == proxied
    assert direct[1][0][2]
    same(upstream.seen)
    assert len(proxy.calls()) == (name != "models")


def test_the_async_clients_get_the_same_too(proxy: Running, upstream: Upstream) -> None:
    async def read(url: str) -> list[Any]:
        found: list[Any] = []
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0) as client:
            found.append((await client.chat.completions.create(**CHAT)).model_dump())
            stream = await client.chat.completions.create(**CHAT, stream=True)
            found.append([one.model_dump() async for one in stream])
            async with client.responses.stream(**RESPONSE) as events:
                found.append([one.type async for one in events])
        async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-1", max_retries=0) as client:
            found.append((await client.messages.create(**MESSAGES)).model_dump())
            async with client.messages.stream(**MESSAGES) as messages:
                found.append((await messages.get_final_message()).model_dump())
        return found

    answers = (
        Said(d.chat("Ich")),
        sse(*pieces(d.CHAT_STREAM, 9)),
        sse(d.RESPONSE_STREAM),
        Said(d.body_of(d.ANTHROPIC)),
        sse(*pieces(d.ANTHROPIC_STREAM, 9)),
    )
    upstream.says(*answers, *answers)
    assert asyncio.run(read(upstream.url)) == asyncio.run(read(proxy.url))
    calls = proxy.calls()
    assert [call.dialect for call in calls] == [
        *("openai_chat", "openai_chat", "openai_responses", "anthropic_messages", "anthropic_messages")
    ]
    assert [call.status for call in calls] == ["ok"] * 5


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_an_error_of_the_upstream_is_the_harnesses_to_see(
    status: int, proxy: Running, upstream: Upstream
) -> None:
    error = d.body_of({"error": {"message": "nein", "type": "t", "code": "c"}})
    said = Said(error, status=status, headers=(*JSON, ("retry-after", "7")))
    upstream.says(said, said)

    def ask(client: Any) -> list[Any]:
        with pytest.raises(openai.APIStatusError, match="nein"):
            client.chat.completions.create(**CHAT)
        return []

    assert with_openai(upstream.url, ask) == with_openai(proxy.url, ask)
    (call,) = proxy.calls()
    assert (call.status, call.error.status_code, call.error.message) == ("failed", status, "nein")
    assert call.completions is None


def test_the_clients_retries_are_attempts_of_one_call(proxy: Running, upstream: Upstream) -> None:
    slow = Said(d.body_of({"error": {"message": "slow"}}), status=429, headers=(("retry-after-ms", "1"),))
    down = Said(b"<html>", status=500, headers=(("retry-after-ms", "1"),))
    upstream.says(slow, down, Said(d.chat("Ich")), slow, Said(d.body_of(d.ANTHROPIC)))
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="sk-1") as client:
        assert client.chat.completions.create(**CHAT).choices[0].message.content == "Ich"
    with anthropic.Anthropic(base_url=proxy.url, api_key="sk-1") as other:
        assert other.messages.create(**MESSAGES).stop_reason == "tool_use"
    first, second = proxy.calls()
    assert [one.status_code for one in first.attempts] == [429, 500, 200]
    assert all(one.started_at <= one.ended_at for one in first.attempts)
    assert (first.status, first.ordinal, first.revision, first.error) == ("ok", 0, 3, None)
    assert [one.status_code for one in second.attempts] == [429, 200]
    assert len(upstream.seen) == 5
    assert "slow" in str(first.meta.value()["http"]["earlier_responses"])


def test_a_client_that_never_heard_an_answer_tries_the_same_call_again(
    proxy: Running, upstream: Upstream
) -> None:
    late = d.chat("zu spät")
    upstream.says(Said([late[:20], late[20:]], pause_s=0.6), Said(d.chat("Ich")))
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="sk-1", timeout=0.3, max_retries=1) as client:
        client.chat.completions.create(**CHAT)
    (call,) = proxy.calls()
    first, second = call.attempts
    assert (first.error, second.error) == ("the client hung up before the end", None)
    assert (call.status, second.status_code) == ("ok", 200)


def test_requests_of_several_clients_at_once_keep_their_answers_apart(
    proxy: Running, upstream: Upstream
) -> None:
    def answer(seen: Seen) -> Said:
        asked = json.loads(seen.body)["messages"][0]["content"]
        return sse(
            *pieces(
                d.events(
                    d.chunk({"role": "assistant", "content": asked * 9}),
                    d.chunk({}, reason="stop"),
                    done=True,
                ),
                13,
            )
        )

    upstream.otherwise = answer

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="sk-1") as client:

            async def one(place: int) -> str:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": f"{place} "}], stream=True
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*map(one, range(24)))

    assert asyncio.run(ask()) == [f"{place} " * 9 for place in range(24)]
    calls = proxy.calls()
    assert len({call.episode_id for call in calls}) == 24
    for call in calls:
        asked = call.request.value()["messages"][0]["content"]
        assert call.completions[0].message.value()["content"] == asked * 9
