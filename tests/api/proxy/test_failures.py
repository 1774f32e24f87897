"""What goes wrong around a call costs the harness nothing more than it would without the proxy."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest
from sqlalchemy.exc import OperationalError

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Running, Said, Upstream, running_proxy, sse
from tests.api.proxy.test_recording import ASKED, chat, post, proxied, said, user
from tracestore.settings import SETTINGS, Settings
from tracestore.store.store import Store
from tracestore_api.proxy import recorder as recording
from tracestore_api.proxy import route

BEGUN = d.events(
    d.chunk({"role": "assistant", "content": "Ich "}),
    d.chunk({"tool_calls": [{"index": 0, **d.TOOL, "function": {"name": "look", "arguments": '{"at": '}}]}),
)

SENT = b"POST /proxy/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ASKED),
    ASKED,
)


def chat_stream(url: str) -> Any:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="sk-1", max_retries=0) as client:
        return list(client.chat.completions.create(model="m", messages=[d.QUESTION], stream=True))


# --- Broken off ------------------------------------------------------------------------------------


def test_a_stream_that_the_upstream_breaks_off_breaks_off_for_the_harness_too(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(sse(BEGUN, breaks=True), sse(BEGUN, breaks=True))
    told = []
    for url in (upstream.url, proxy.url):
        with pytest.raises(openai.APIConnectionError) as caught:
            chat_stream(url)
        told.append(str(caught.value.__cause__))
    assert "incomplete chunked read" in told[0]
    assert told[0] == told[1]
    (call,) = proxy.calls()
    (completion,) = call.completions
    assert (call.status, call.error.type, completion.partial) == ("aborted", "upstream_broke_off", True)
    message = completion.message.value()
    assert message["content"] == "Ich "
    assert message["tool_calls"][0]["function"]["arguments"] == '{"at": '


def test_a_whole_answer_that_is_broken_off_is_kept_as_far_as_it_came(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(Said(d.chat("Ich")[:30], breaks=True))
    with pytest.raises(http.client.IncompleteRead):
        post(proxy, "/v1/chat/completions", ASKED)
    (call,) = proxy.calls()
    assert (call.status, call.error.type, call.completions) == ("aborted", "upstream_broke_off", None)
    assert call.meta.value()["http"]["response"] == d.chat("Ich")[:30].decode()


def test_a_harness_that_hangs_up_stops_the_upstream_and_keeps_what_had_come(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(sse(BEGUN, *[b": more\n\n"] * 200, pause_s=0.02))
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="sk-1", max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=[d.QUESTION], stream=True)
        assert next(iter(stream)).choices[0].delta.content == "Ich "
        stream.close()
    assert upstream.hung_up.wait(5)
    (call,) = proxy.calls()
    assert (call.status, call.error.type) == ("aborted", "client_disconnected")
    assert call.completions[0].message.value()["content"] == "Ich "


def test_a_harness_that_leaves_before_any_answer_leaves_an_aborted_call(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(Said([b"", d.chat("Ich")], pause_s=0.5))
    with socket.create_connection(proxy.host) as connection:
        connection.sendall(SENT)
        while not upstream.seen:
            time.sleep(0.01)
    (call,) = proxy.calls()
    assert (call.status, call.error.type, call.completions) == ("aborted", "client_disconnected", None)
    assert proxy.events("gap") == []


def test_a_harness_that_hangs_up_after_the_last_word_has_its_whole_answer(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(sse(d.CHAT_STREAM, b": goodbye\n\n", pause_s=0.2))
    with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="sk-1", max_retries=0) as client:
        stream = client.chat.completions.create(model="m", messages=[d.QUESTION], stream=True)
        assert [chunk.choices for chunk in stream][-1] == []  # the one with the usage, then [DONE]
        stream.close()
    (call,) = proxy.calls()
    assert (call.status, call.error, call.completions[0].partial) == ("ok", None, None)


def test_an_upstream_that_is_away_is_a_502_that_the_client_may_try_again(
    store: Store, upstream: Upstream
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with running_proxy(store, url) as running:
            status, _, body = post(running, "/v1/chat/completions", ASKED)
            assert (status, json.loads(body)["type"]) == (502, "urn:tracestore:problem:upstream-unreachable")
            (call,) = running.calls()
    assert (call.status, call.error.type) == ("aborted", "upstream_unreachable")


# --- What is not recorded --------------------------------------------------------------------------


class Failing:
    """Makes a store fail so many times."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch, times: float) -> None:
        self.times = times
        self._ingest = store.ingest
        monkeypatch.setattr(store, "ingest", self._maybe)
        monkeypatch.setattr(recording, "_BACKOFF_S", (0.01,))

    def _maybe(self, project: str, items: Sequence[Any]) -> Any:
        if self.times > 0:
            self.times -= 1
            raise OperationalError("INSERT", {}, Exception("database or disk is full"))
        return self._ingest(project, items)


def test_a_store_that_is_away_for_a_while_loses_nothing(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    Failing(proxy.store, monkeypatch, times=5)
    upstream.says(Said(d.chat("A")), Said(d.chat("B")))
    chat(proxy, user("a"))
    chat(proxy, user("a"), said("A"), user("b"))
    assert len(proxy.calls()) == 2
    assert proxy.proxy.status() | {"upstream": ""} == {
        "upstream": "", "inject": False, "passing": 0,
        "recorded": 2, "lost": 0, "gaps": 0, "waiting": 0, "waiting_bytes": 0, "gaps_waiting": 0,
    }  # fmt: skip


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_store_that_stays_away_costs_the_harness_nothing_and_leaves_gaps_when_it_is_back(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(proxy.proxy.recorder, "_patience_s", 0.0)
    failing = Failing(proxy.store, monkeypatch, times=float("inf"))
    upstream.otherwise = lambda seen: Said(d.chat("A"))
    with caplog.at_level(logging.WARNING, "tracestore.proxy"):
        chat(proxy, user("a"), at="/episode=e")
        chat(proxy, user("b"))
        wait_for(lambda: proxy.proxy.status()["gaps_waiting"] == 2)
    assert "passed and is not recorded: recording_failed" in caplog.text
    failing.times = 0
    chat(proxy, user("c"))
    wait_for(lambda: proxy.proxy.status()["gaps_waiting"] == 0)
    assert len(proxy.calls()) == 1
    gaps = proxy.events("gap")
    assert {gap.cause for gap in gaps} == {"recording_failed"}
    assert all("disk is full" in gap.detail for gap in gaps)
    assert "e" in {gap.episode_id for gap in gaps}
    status = proxy.proxy.status()
    assert (status["lost"], status["gaps"], status["recorded"]) == (2, 2, 1)


def test_a_queue_that_is_full_loses_calls_and_says_so(store: Store, upstream: Upstream) -> None:
    settings = Settings(max_body_bytes=1024, max_event_bytes=1024, max_bytes_in_hand=2048)
    upstream.says(Said(d.chat("A")))
    with running_proxy(store, upstream.url, settings=settings) as running:
        chat(running, user("a"))  # counts 4,096 bytes at least
        wait_for(lambda: running.proxy.status()["gaps"] == 1)
        assert running.calls() == []
        (gap,) = running.events("gap")
    assert (gap.cause, gap.detail) == (
        "recording_queue_full",
        "over 2,048 bytes wait to be recorded; it named no episode",
    )


def test_an_answer_that_is_too_large_passes_whole_and_is_a_gap(
    store: Store, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "MAX_RESPONSE_BYTES", 100)
    large = d.chat("x" * 500)
    upstream.says(Said(large))
    with running_proxy(store, upstream.url) as running:
        assert post(running, "/v1/chat/completions", ASKED)[2] == large
        (call,) = running.calls()
        assert (bytes(call.request), call.completions) == (ASKED, None)
        assert "response_too_large" in {gap.cause for gap in running.events("gap")}


def test_a_call_id_that_another_request_has_is_no_name_for_this_one(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(*[Said(d.chat("A"))] * 3)
    mark = {"X-Tracestore-Call": "c1", "X-Tracestore-Episode": "e"}
    chat(proxy, user("a"), headers=mark)
    chat(proxy, user("a"), headers=mark)  # the same call again
    chat(proxy, user("b"), headers=mark)
    first, second = proxy.calls()
    assert (first.id, len(first.attempts), first.request.value()["messages"]) == ("c1", 2, [user("a")])
    assert (second.episode_id, second.request.value()["messages"]) == ("e", [user("b")])
    (gap,) = proxy.events("gap")
    assert (gap.call_id, gap.detail) == (second.id, "call: another request has this id")


def test_what_the_store_refuses_is_a_gap(store: Store, upstream: Upstream) -> None:
    upstream.says(*[Said(d.chat("A"))] * 2)
    mark = {"X-Tracestore-Call": "c1", "X-Tracestore-Episode": "e"}
    for text in ("a", "b"):  # the second server does not remember what the first one recorded
        with running_proxy(store, upstream.url) as running:
            chat(running, user(text), headers=mark)
            assert len(running.calls()) == 1
            wait_for(lambda: running.proxy.status()["gaps"] == (text == "b"))  # noqa: B023 - called at once
            causes = [gap.cause for gap in running.events("gap")]
    assert causes == ["recording_refused"]


def test_a_call_that_cannot_be_read_does_not_end_the_recording(
    proxy: Running, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = proxy.proxy.recorder._calls
    of = calls.of
    monkeypatch.setattr(calls, "of", lambda capture: of(capture) if b"good" in capture.request else 1 / 0)
    upstream.otherwise = lambda seen: Said(d.chat("A"))
    with caplog.at_level(logging.CRITICAL):
        chat(proxy, user("bad"))
        chat(proxy, user("good"))
        assert len(proxy.calls()) == 1
    wait_for(lambda: proxy.proxy.status()["gaps"] == 1)


def test_too_many_requests_at_once_are_sent_away_with_a_time_to_come_back(
    store: Store, upstream: Upstream
) -> None:
    upstream.says(Said([b"", d.chat("A")], pause_s=0.3))
    settings = Settings(max_requests_in_hand=1)
    with running_proxy(store, upstream.url, settings=settings) as running:
        with socket.create_connection(running.host) as first:
            first.sendall(SENT)
            wait_for(lambda: len(upstream.seen) == 1)
            status, headers, _ = post(running, "/v1/chat/completions", ASKED)
            assert (status, headers["retry-after"]) == (503, "1")
            first.recv(1)
        assert len(running.calls()) == 1


# --- Starts ----------------------------------------------------------------------------------------


def test_what_the_harness_posts_of_an_episode_itself_wins(store: Store, upstream: Upstream) -> None:
    upstream.says(Said(d.chat("A")))
    with running_proxy(store, upstream.url) as running:
        chat(running, user("a"), at="/episode=e")
        where = http.client.HTTPConnection(*running.host, timeout=20)
        start = {"v": 1, "kind": "episode", "id": "e", "phase": "start", "group_id": "g"}
        where.request("POST", "/v1/events", json.dumps(start), {"content-type": "application/json"})
        assert where.getresponse().status == 200
        where.close()
    events = store.load("default", "e")
    (episode,) = [one for one in events if one.kind == "episode"]
    assert (episode.group_id, episode.meta) == ("g", None)
    (agent,) = [one for one in events if one.kind == "agent"]
    assert (agent.id, agent.role, agent.depth, agent.phase) == ("e/main", "main", 0, "start")


def test_what_passed_is_recorded_when_the_server_stops(store: Store, upstream: Upstream) -> None:
    upstream.otherwise = lambda seen: Said(d.chat("A"))
    with running_proxy(store, upstream.url) as running:
        for place in range(20):
            chat(running, user(str(place)), at=f"/episode=e{place}")
    assert len(store.groups("default")) == 20
    assert SETTINGS.max_requests_in_hand > 20
    assert proxied(store.load("default", "e0")[0])["named_by"] == {"episode": "path"}
