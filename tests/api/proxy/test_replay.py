"""The official clients, pointed at the replay of what they recorded through the proxy."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import openai
import pytest
from starlette.testclient import TestClient

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Running, Said, Upstream, running_proxy, sse
from tracestore.replay.tape import Tape
from tracestore.store.store import Store
from tracestore_api import replay
from tracestore_api.app import create_app

CHAT: dict[str, Any] = {"model": "m-1", "messages": [d.QUESTION], "temperature": 0.5}
MESSAGES: dict[str, Any] = {"model": "claude", "max_tokens": 9, "messages": [d.QUESTION]}
RESPONSE: dict[str, Any] = {"model": "m-1", "input": "Wie heißt du?", "instructions": "kurz"}


def recording(proxy: Running) -> str:
    return f"{proxy.url}/episode=e/agent-name=main"


def replaying(proxy: Running, **names: str) -> str:
    stated = "".join(
        f"/{name.replace('_', '-')}={value}" for name, value in {"episode": "e", **names}.items()
    )
    return proxy.url.removesuffix("/proxy") + "/replay" + stated


def asked_by_openai(url: str) -> list[Any]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-1") as client:
        with client.responses.stream(**RESPONSE) as events:
            streamed = next(one for one in events if one.type == "response.completed").response
        with client.chat.completions.stream(**CHAT) as chunks:
            chat = chunks.get_final_completion()
        return [
            client.chat.completions.create(**CHAT).model_dump(),
            client.responses.create(**RESPONSE).model_dump(),
            streamed.model_dump(),
            [choice.model_dump() for choice in chat.choices],
            client.completions.create(model="m-1", prompt="Ich h").model_dump(),
        ]


async def asked_by_async_openai(url: str) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-1") as client:
        async with client.responses.stream(**RESPONSE) as events:
            streamed = (await events.get_final_response()).output_text
        async with client.chat.completions.stream(**CHAT) as chunks:
            chat = await chunks.get_final_completion()
        return [
            (await client.chat.completions.create(**CHAT)).model_dump(),
            (await client.responses.create(**RESPONSE)).model_dump(),
            streamed,
            [choice.model_dump() for choice in chat.choices],
            (await client.completions.create(model="m-1", prompt="Ich h")).model_dump(),
        ]


def asked_by_anthropic(url: str) -> list[Any]:
    with anthropic.Anthropic(base_url=url, api_key="sk-1") as client:
        with client.messages.stream(**MESSAGES) as stream:
            streamed = stream.get_final_message()
        return [streamed.model_dump(), client.messages.create(**MESSAGES).model_dump()]


async def asked_by_async_anthropic(url: str) -> list[Any]:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-1") as client:
        async with client.messages.stream(**MESSAGES) as stream:
            streamed = await stream.get_final_message()
        return [streamed.model_dump(), (await client.messages.create(**MESSAGES)).model_dump()]


TEXT = d.body_of(
    {
        "id": "t",
        "object": "text_completion",
        "created": 3,
        "model": "m",
        "choices": [{"index": 0, "text": "eiße", "finish_reason": "stop", "logprobs": None}],
    }
)
OPENAI = (
    sse(d.RESPONSE_STREAM),
    sse(d.CHAT_STREAM),
    Said(d.chat("Ich")),
    Said(d.body_of(d.response())),
    Said(TEXT),
)
ANTHROPIC = (sse(d.ANTHROPIC_STREAM), Said(d.body_of(d.ANTHROPIC)))
ASKING: dict[str, tuple[Callable[[str], Any], tuple[Said, ...]]] = {
    "openai": (asked_by_openai, OPENAI),
    "async openai": (lambda url: asyncio.run(asked_by_async_openai(url)), OPENAI),
    "anthropic": (asked_by_anthropic, ANTHROPIC),
    "async anthropic": (lambda url: asyncio.run(asked_by_async_anthropic(url)), ANTHROPIC),
}


@pytest.mark.parametrize("name", ASKING)
def test_the_clients_read_again_what_they_read_when_it_was_recorded(
    name: str, proxy: Running, upstream: Upstream
) -> None:
    ask, answers = ASKING[name]
    upstream.says(*answers)
    recorded = ask(recording(proxy))
    proxy.settle()
    seen = len(upstream.seen)
    assert ask(replaying(proxy)) == recorded
    assert ask(replaying(proxy, run="second", agent_name="main")) == recorded
    assert len(upstream.seen) == seen
    status = httpx.get(proxy.url.replace("/proxy", "/replay"), params={"episode": "e"}).json()
    assert (status["calls"], status["answered"], status["unasked"], status["missed"]) == (seen, seen, [], [])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "?episode=e"),
        ("DELETE", "?episode=e"),
        ("POST", "/episode=e/v1/chat/completions"),
        ("POST", "/episode=e/tools/call"),
        ("POST", "/episode=e/mcp"),
    ],
)
def test_one_of_several_processes_replays_nothing(method: str, path: str, store: Store) -> None:
    app = create_app(store, replayed=("e",), is_alone=False)
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.request(method, f"/replay{path}", json=CHAT if method == "POST" else None)
    assert answer.status_code == 400
    assert "--workers 1" in answer.json()["hint"]


def test_while_a_miss_is_looked_into_the_server_answers(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a request whose bytes are known: its answer was given."""
    upstream.says(Said(d.chat("Ich")))
    url = f"{replaying(proxy)}/v1/chat/completions"
    httpx.post(f"{recording(proxy)}/v1/chat/completions", json=CHAT).raise_for_status()
    proxy.settle()
    httpx.post(url, json=CHAT).raise_for_status()
    is_looking, may_end, told = threading.Event(), threading.Event(), Tape.told

    def held_up(*args: Any, **names: Any) -> Any:
        is_looking.set()
        assert may_end.wait(10)
        return told(*args, **names)

    monkeypatch.setattr(Tape, "told", held_up)
    with ThreadPoolExecutor() as threads:
        for body in (CHAT, CHAT | {"temperature": 1}):
            missed = threads.submit(httpx.post, url, json=body, timeout=20)
            try:
                assert is_looking.wait(10)
                health = httpx.get(proxy.url.replace("/proxy", "/v1/health"), timeout=5)
                assert health.status_code == 200
            finally:
                may_end.set()
            assert missed.result(timeout=10).status_code == 409
            is_looking.clear()
            may_end.clear()


def test_a_miss_costs_one_request_and_says_where_it_differs(proxy: Running, upstream: Upstream) -> None:
    upstream.says(Said(d.chat("Ich")), Said(d.body_of(d.ANTHROPIC)))
    with openai.OpenAI(base_url=f"{recording(proxy)}/v1", api_key="sk-1") as client:
        client.chat.completions.create(
            **(CHAT | {"messages": [{"role": "user", "content": "Wie heißt er?"}]})
        )
    with anthropic.Anthropic(base_url=recording(proxy), api_key="sk-1") as other:
        other.messages.create(**(MESSAGES | {"max_tokens": 10}))
    proxy.settle()
    asked: list[str] = []
    hooks = {"request": [lambda request: asked.append(str(request.url))]}
    with (
        openai.OpenAI(
            base_url=f"{replaying(proxy)}/v1", api_key="sk-1", http_client=httpx.Client(event_hooks=hooks)
        ) as client,
        pytest.raises(openai.ConflictError) as missed,
    ):
        client.chat.completions.create(**CHAT)
    assert len(asked) == 1
    assert missed.value.body["difference"] == {  # type: ignore[index]
        "path": "messages[0].content",
        "byte": 11,  # "Wie heißt " is 10 characters, one of which takes two bytes
        "recorded": "Wie heißt er?",
        "asked": "Wie heißt du?",
    }
    with (
        anthropic.Anthropic(base_url=replaying(proxy), api_key="sk-1") as other,
        pytest.raises(anthropic.ConflictError, match="max_tokens"),
    ):
        other.messages.create(**MESSAGES)
    status = httpx.get(proxy.url.replace("/proxy", "/replay"), params={"episode": "e"}).json()
    assert [one["difference"]["path"] for one in status["missed"]] == ["messages[0].content", "max_tokens"]


def test_a_retry_of_the_client_uses_no_answer_up(proxy: Running, upstream: Upstream) -> None:
    upstream.says(Said(d.chat("eins")), Said(d.chat("zwei")))
    with openai.OpenAI(base_url=f"{recording(proxy)}/v1", api_key="sk-1") as client:
        for _ in range(2):
            client.chat.completions.create(**CHAT)
    proxy.settle()
    told = []
    with httpx.Client(base_url=replaying(proxy)) as plain:
        for retries in ("0", "1", "2", "0"):
            headers = {"x-stainless-retry-count": retries}
            answer = plain.post("/v1/chat/completions", json=CHAT, headers=headers).json()
            told.append(answer["choices"][0]["message"]["content"])
    assert told == ["eins", "eins", "eins", "zwei"]


def test_a_retry_under_the_id_of_its_request_gets_its_own_answer_again(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(Said(d.chat("eins")), Said(d.chat("zwei")))
    with openai.OpenAI(base_url=f"{recording(proxy)}/v1", api_key="sk-1") as client:
        for _ in range(2):
            client.chat.completions.create(**CHAT)
    proxy.settle()
    told = []
    with openai.OpenAI(base_url=f"{replaying(proxy)}/v1", api_key="sk-1") as client:
        for name, retries in (("a", "0"), ("b", "0"), ("a", "1"), ("b", "1")):
            headers = {"Idempotency-Key": name, "x-stainless-retry-count": retries}
            answer = client.chat.completions.create(**CHAT, extra_headers=headers)
            told.append(answer.choices[0].message.content)
    assert told == ["eins", "zwei", "eins", "zwei"]


@pytest.mark.parametrize("spelled", [{}, {"indent": 1}], ids=["in the same bytes", "in others"])
def test_answers_come_in_order_when_not_all_recordings_have_room_in_memory(
    spelled: Any, proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_MAX_BYTES", 1)
    upstream.says(*(Said(d.chat(f"{episode}{number}")) for number in range(3) for episode in "ef"))
    told, body = [], json.dumps(CHAT).encode()
    with httpx.Client(base_url=proxy.url.removesuffix("/proxy")) as plain:
        for _ in range(3):
            for episode in "ef":
                plain.post(f"/proxy/episode={episode}/v1/chat/completions", content=body).raise_for_status()
        proxy.settle()
        for _ in range(3):
            for episode in "ef":
                url = f"/replay/episode={episode}/v1/chat/completions"
                answer = plain.post(url, content=json.dumps(CHAT, **spelled)).json()
                told.append(answer["choices"][0]["message"]["content"])
    assert told == ["e0", "f0", "e1", "f1", "e2", "f2"]


def read_by_lines(url: str, path: str, body: Any) -> list[str]:
    with (
        httpx.Client() as plain,
        plain.stream("POST", f"{url}{path}", json=body | {"stream": True}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [line for line in answer.iter_lines() if line.startswith("data: ")]


STREAMED = [
    ("/v1/chat/completions", CHAT, d.CHAT_STREAM),
    ("/v1/messages", MESSAGES, d.ANTHROPIC_STREAM),
    ("/v1/responses", RESPONSE, d.RESPONSE_STREAM),
]


@pytest.mark.parametrize(("path", "body", "stream"), STREAMED, ids=["chat", "anthropic", "responses"])
def test_a_stream_comes_again_in_its_events_and_at_its_times(
    path: str,
    body: Any,
    stream: bytes,
    proxy: Running,
    upstream: Upstream,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pieces = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    upstream.says(sse(*pieces))
    first = read_by_lines(recording(proxy), path, body)
    proxy.settle()
    assert len(first) == len(pieces)
    waited: list[float] = []

    async def waiting(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(replay, "_sleep", waiting)
    with running_proxy(store, upstream.url, replay_times="recorded") as timed:
        assert len(read_by_lines(replaying(timed), path, body)) == len(pieces)
    again = read_by_lines(replaying(proxy), path, body)
    assert len(again) == len(pieces)
    assert len(waited) == len(pieces)
    [event] = [event for event in store.load("default", "e") if event.kind == "call"]
    assert event.meta is not None
    kept = event.meta.value()["http_stream"]["ms"]
    assert len(kept) == len(pieces)
    assert min(kept) >= 0


def test_a_replay_may_begin_again(proxy: Running, upstream: Upstream) -> None:
    upstream.says(Said(d.chat("eins")))
    with openai.OpenAI(base_url=f"{recording(proxy)}/v1", api_key="sk-1") as client:
        client.chat.completions.create(**CHAT)
    proxy.settle()
    with httpx.Client(base_url=proxy.url.removesuffix("/proxy")) as plain:

        def status() -> int:
            return plain.post("/replay/episode=e/v1/chat/completions", json=CHAT).status_code

        assert [status(), status()] == [200, 409]
        assert plain.delete("/replay", params={"episode": "e"}).status_code == 204
        assert status() == 200


@pytest.mark.parametrize(
    ("path", "body", "status", "hint"),
    [
        ("/replay/v1/chat/completions", b"{}", 400, "name the episode"),
        ("/replay/episode=none/v1/chat/completions", b"{}", 404, ""),
        ("/replay/episode=e/v1/embeddings", b"{}", 400, "chat/completions"),
        ("/replay/episode=e/v1/chat/completions", b"[1]", 400, "JSON object"),
        ("/replay/episodes=e/v1/chat/completions", b"{}", 404, "names are"),
    ],
)
def test_what_cannot_be_replayed_says_what_can(
    path: str, body: bytes, status: int, hint: str, proxy: Running
) -> None:
    answer = httpx.post(proxy.url.removesuffix("/proxy") + path, content=body)
    assert answer.status_code == status
    assert hint in answer.text


def test_what_was_deleted_since_is_answered_no_more(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FRESH_S", 0.0)
    upstream.says(Said(d.chat("eins")), Said(d.chat("zwei")))
    with openai.OpenAI(base_url=f"{recording(proxy)}/v1", api_key="sk-1") as client:
        client.chat.completions.create(**CHAT)
        proxy.settle()
        with httpx.Client(base_url=proxy.url.removesuffix("/proxy")) as plain:

            def asked() -> int:
                return plain.post("/replay/episode=e/v1/chat/completions", json=CHAT).status_code

            assert [asked(), asked()] == [200, 409]
            client.chat.completions.create(**CHAT)
            proxy.settle()
            assert asked() == 200  # what was recorded meanwhile is known
            assert plain.delete("/v1/episodes/e").status_code == 202
            assert plain.delete("/replay", params={"episode": "e"}).status_code in (204, 404, 410)
            assert asked() in (404, 410)


def test_a_trace_of_an_instrumented_client_names_no_recording(proxy: Running, upstream: Upstream) -> None:
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    url = proxy.url.removesuffix("/proxy") + "/replay/v1/chat/completions"
    assert "name the episode" in httpx.post(url, json=CHAT, headers=headers).text
