"""What the proxy records of what passed: exact, with tokens where they were given, in its place."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Mapping
from typing import Any

import pytest
import zstandard

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Running, Said, Upstream, running_proxy, sse
from tracestore.settings import Settings
from tracestore.store.engine import writer
from tracestore.store.keys import Right, create_key
from tracestore.store.store import Store
from tracestore_api.proxy.capture import unpacked
from tracestore_api.proxy.inject import LADDER, injected

SECRET = "sk-hush-0123456789"
ASKED = (
    b'{"model": "m",  "messages": [{"role": "user", "content": "hei\xc3\x9f?", "n": 1.50}], "seed": 1e400}'
)


def post(
    proxy: Running, path: str, body: bytes, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; the path begins with what stands before the upstream's."""
    connection = http.client.HTTPConnection(*proxy.host, timeout=20)
    try:
        connection.request(
            "POST", f"/proxy{path}", body, {"content-type": "application/json", **(headers or {})}
        )
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


def chat(
    proxy: Running, *messages: Any, headers: Mapping[str, str] | None = None, at: str = "", **more: Any
) -> None:
    body = json.dumps({"model": "m", "messages": messages, **more}).encode()
    assert post(proxy, f"{at}/v1/chat/completions", body, headers)[0] == 200


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def proxied(call: Any) -> dict[str, Any]:
    return dict(call.meta.value()["proxy"])


# --- Exact -----------------------------------------------------------------------------------------


def test_request_and_answer_are_kept_byte_for_byte(proxy: Running, upstream: Upstream, store: Store) -> None:
    message = b'{"role":"assistant" ,\n "content":"Ich \\ud83d und \xc3\xa9", "x": 1e400, "y":-0}'
    upstream.says(
        Said(b'{"id":"c1","model":"m-2","choices":[{"message":' + message + b',"finish_reason":"stop"}]}')
    )
    assert post(proxy, "/episode=e/agent=a/v1/chat/completions?x=1", ASKED)[0] == 200
    (call,) = proxy.calls()
    assert store.request("default", call.id) == ASKED
    assert bytes(call.completions[0].message) == message
    assert (call.model, call.provider_id, call.status) == ("m-2", "c1", "ok")
    assert call.endpoint == f"{upstream.url}/v1/chat/completions?x=1"
    assert upstream.seen[0].body == ASKED
    assert call.started_at <= call.ended_at


def test_blocks_and_items_of_other_dialects_are_kept_byte_for_byte(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(Said(d.body_of(d.ANTHROPIC)), Said(d.body_of(d.response())))
    post(proxy, "/v1/messages", json.dumps({"model": "c", "messages": [user("q")]}).encode())
    post(proxy, "/v1/responses", json.dumps({"model": "c", "input": "q"}).encode())
    first, second = proxy.calls()
    content = json.dumps(d.ANTHROPIC["content"], ensure_ascii=False, indent=1).replace("\n", "\n ")
    assert bytes(first.completions[0].message) == f'{{"role":"assistant","content":{content}}}'.encode()
    assert (
        bytes(second.completions[0].message)
        == json.dumps(d.ITEMS, ensure_ascii=False, indent=1).replace("\n", "\n ").encode()
    )
    assert (first.usage.prompt_tokens, first.usage.cached_tokens) == (4 + 10, 10)
    assert {(one.name, one.tool_call_id) for one in proxy.events("tool_call")} == {
        ("look", "tu_1"),
        ("look", "call_1"),
    }


@pytest.mark.parametrize("coding", ["gzip", "deflate", "zstd"])
def test_a_compressed_answer_passes_packed_and_is_recorded_unpacked(
    coding: str, proxy: Running, upstream: Upstream
) -> None:
    pack = {
        "gzip": gzip.compress,
        "deflate": lambda data: gzip.zlib.compress(data),  # type: ignore[attr-defined]
        "zstd": zstandard.ZstdCompressor().compress,
    }[coding]
    packed = pack(d.CHAT_STREAM)
    kind = ("content-type", "text/event-stream")
    upstream.says(
        Said([packed[:30], packed[30:]], headers=(kind, ("content-encoding", coding)), has_length=False)
    )
    _, headers, body = post(proxy, "/v1/chat/completions", ASKED, {"accept-encoding": f"br, {coding}"})
    assert (body, headers["content-encoding"]) == (packed, coding)
    assert upstream.seen[0].header("accept-encoding") == coding  # br could not be read here
    (call,) = proxy.calls()
    assert call.completions[0].message.value() == d.CHAT_STREAM_MESSAGE


def test_a_packed_body_that_unfolds_without_end_is_cut() -> None:
    # A step of 1,024 bytes of zstd holds at most 256 blocks of 4 bytes, each of 128 KiB: 32 MiB.
    packed = zstandard.ZstdCompressor().compress(bytes(2**27))
    assert 2**20 <= len(unpacked(packed, "zstd", max_bytes=2**20)) <= 2**20 + 2**25
    assert len(unpacked(gzip.compress(bytes(2**22), 1), "gzip", max_bytes=2**20)) == 2**20
    for coding in ("gzip", "deflate", "zstd", "br"):
        assert unpacked(b"no such thing", coding) == b"no such thing"


def test_credentials_pass_and_are_stored_nowhere(proxy: Running, upstream: Upstream, store: Store) -> None:
    reply = (("content-type", "application/json"), ("set-cookie", SECRET), ("x-ratelimit-remaining", "5"))
    upstream.says(Said(d.chat("Ich"), headers=reply))
    body = json.dumps({"messages": [user("q")], "api_key": SECRET}).encode()
    sent = {"authorization": f"Bearer {SECRET}", "cookie": SECRET, "api-key": SECRET, "x-own": "kept"}
    _, headers, _ = post(proxy, f"/v1/chat/completions?sig={SECRET}", body, sent)
    assert headers["set-cookie"] == SECRET
    seen = upstream.seen[0]
    assert (seen.header("authorization"), seen.header("cookie"), seen.body) == (
        f"Bearer {SECRET}",
        SECRET,
        body,
    )
    (call,) = proxy.calls()
    http = call.meta.value()["http"]
    assert (http["request_headers"]["x-own"], http["response_headers"]["x-ratelimit-remaining"]) == (
        "kept",
        "5",
    )
    assert proxied(call)["left_out"] == ["api-key", "authorization", "cookie", "set-cookie"]
    with store.read() as connection:
        dump = "\n".join(connection.connection.driver_connection.iterdump())  # type: ignore[union-attr]
    assert SECRET not in dump
    assert SECRET not in call.model_dump_json()


def test_a_body_that_no_event_may_hold_passes_and_is_kept_as_a_text(
    proxy: Running, upstream: Upstream
) -> None:
    twice = b'{"model":"m","model":"n","messages":[]}'
    deep = b'{"messages":[' + b"[" * 300 + b"]" * 300 + b"]}"
    broken = b'{"messages":["'
    for body in (twice, deep, broken):
        upstream.says(Said(b'{"choices":[{"message":{"a":1,"a":2},"finish_reason":"stop"}]}'))
        post(proxy, "/v1/chat/completions", body)
        assert upstream.seen[-1].body == body
    calls = proxy.calls()
    assert [call.request.value() for call in calls] == [one.decode() for one in (twice, deep, broken)]
    assert [call.completions[0].message.value() for call in calls] == [{"a": 2}] * 3


# --- Streams, candidates, tokens -------------------------------------------------------------------


def test_a_stream_is_assembled_with_tool_calls_reasoning_and_usage(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(sse(d.CHAT_STREAM))
    chat(proxy, d.QUESTION, stream=True)
    (call,) = proxy.calls()
    (completion,) = call.completions
    assert completion.message.value() == d.CHAT_STREAM_MESSAGE
    assert (completion.finish_reason, completion.partial) == ("tool_calls", None)
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (5, 2)
    assert call.started_at <= call.first_token_at <= call.ended_at
    (use,) = proxy.events("tool_call")
    assert (use.call_id, use.name, use.arguments) == (call.id, "look", '{"at": 1.50}')
    assert proxied(call)["events"] == {"chat.completion.chunk": 8}


def test_several_answers_are_candidates(proxy: Running, upstream: Upstream) -> None:
    upstream.says(Said(d.chat("A", "B", "A")))
    upstream.says(
        sse(
            d.events(
                d.chunk({"content": "C"}, index=1, reason="stop"),
                d.chunk({"content": "D"}, reason="stop"),
                done=True,
            )
        )
    )
    chat(proxy, d.QUESTION, n=3)
    chat(proxy, d.QUESTION, n=2, stream=True)
    first, second = proxy.calls()
    assert [one.message.value()["content"] for one in first.completions] == ["A", "B", "A"]
    assert [one.message.value()["content"] for one in second.completions] == ["D", "C"]
    sets = {one.id: one for one in proxy.events("candidate_set")}
    assert [(m.call_id, m.completion) for m in sets[f"{first.id}/candidates"].members] == [
        (first.id, 0),
        (first.id, 1),
        (first.id, 2),
    ]
    assert len(sets[f"{second.id}/candidates"].members) == 2


LOGPROBS = {"content": [{"token": "I", "logprob": -0.25}, {"token": "ch", "logprob": -1.5}]}
VLLM = {"token_ids": [11, 12], "logprobs": LOGPROBS}
MESSAGE = {"role": "assistant", "content": "Ich"}


def one_choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"} | fields]}


FIRST, LAST = ({"content": [one]} for one in LOGPROBS["content"])
SGLEXT = {"sglext": {"input_ids": [1, 2], "output_ids": [[11, 12]]}}
ROWS = {"output_token_logprobs": [[-0.25, 11, None], [-1.5, 12, None]]}
TEXT = {"index": 0, "text": "Ich", "finish_reason": "stop", "prompt_token_ids": [1, 2], "token_ids": [11, 12]}
GIVEN = {
    "vllm": d.body_of(one_choice(**VLLM) | {"prompt_token_ids": [1, 2]}),
    "of a choice": d.body_of(one_choice(**VLLM, prompt_token_ids=[1, 2])),
    "sglext": d.body_of(one_choice(logprobs=LOGPROBS) | SGLEXT),
    "meta_info": d.body_of(one_choice(prompt_token_ids=[1, 2], meta_info=ROWS)),
    "vllm stream": d.events(
        d.chunk({"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2]},
        d.chunk({"content": "I"}, token_ids=[11], logprobs=FIRST),
        d.chunk({"content": "ch"}, reason="stop", token_ids=[12], logprobs=LAST),
        done=True,
    ),
    "sglext stream": d.events(
        d.chunk({"content": "I"}, logprobs=FIRST),
        d.chunk({"content": "ch"}, reason="stop", logprobs=LAST),
        {"id": "c1", "model": "m", "choices": []} | SGLEXT,
        done=True,
    ),
    "text": d.body_of({"choices": [TEXT | {"logprobs": {"token_logprobs": [-0.25, -1.5]}}]}),
    "text stream": d.events(
        {
            "choices": [
                TEXT | {"finish_reason": None, "token_ids": [11], "logprobs": {"token_logprobs": [-0.25]}}
            ]
        },
        {"choices": [{"index": 0, "text": "", "token_ids": [12], "logprobs": {"token_logprobs": [-1.5]}}]},
        done=True,
    ),
}


@pytest.mark.parametrize("body", GIVEN.values(), ids=GIVEN)
def test_token_ids_and_logprobs_are_kept_wherever_a_server_puts_them(
    body: bytes, proxy: Running, upstream: Upstream
) -> None:
    kind = "text/event-stream" if body.startswith(b"data") else "application/json"
    upstream.says(Said(body, headers=(("content-type", kind),)))
    post(proxy, "/v1/chat/completions", ASKED)
    (call,) = proxy.calls()
    (completion,) = call.completions
    assert call.prompt_token_ids.json() == [1, 2]
    assert completion.token_ids.json() == [11, 12]
    assert completion.logprobs.json() == [-0.25, -1.5]


# --- Injection -------------------------------------------------------------------------------------


def test_injected_fields_make_the_server_give_ids_and_the_harness_sees_none(
    injecting: Running, upstream: Upstream
) -> None:
    given = d.body_of(one_choice(**VLLM) | {"prompt_token_ids": [1, 2]})
    plain = d.body_of(one_choice(token_ids=None, logprobs=None) | {"prompt_token_ids": None})
    upstream.says(Said(given))
    status, headers, body = post(injecting, "/v1/chat/completions", ASKED)
    assert json.loads(body) == json.loads(plain)
    assert (status, headers["content-length"]) == (200, str(len(body)))
    (call,) = injecting.calls()
    assert bytes(call.request) == ASKED
    assert call.completions[0].token_ids.json() == [11, 12]
    assert call.completions[0].top_logprobs is None
    # What was sent and what was forwarded: the one is the other with the fields that are told.
    fields = {name: json.dumps(value).encode() for name, value in proxied(call)["injected"].items()}
    assert fields == LADDER["openai_chat"][0]
    assert upstream.seen[0].body == injected(bytes(call.request), fields)[0]


def test_a_stream_loses_what_was_injected_and_keeps_the_rest(injecting: Running, upstream: Upstream) -> None:
    parts = [
        d.chunk({"role": "assistant", "content": ""}, token_ids=None) | {"prompt_token_ids": [1]},
        d.chunk({}, token_ids=[10], logprobs={"content": [{"logprob": -1.0}]}),
        d.chunk({"content": "é"}, token_ids=[11], logprobs={"content": [{"logprob": -0.5}]}),
        d.chunk({}, reason="stop", token_ids=[12], logprobs={"content": [{"logprob": -2.0}]}),
    ]
    unasked = [
        d.chunk({"role": "assistant", "content": ""}, token_ids=None) | {"prompt_token_ids": None},
        d.chunk({"content": "é"}, token_ids=None),
        d.chunk({}, reason="stop", token_ids=None),
    ]
    whole = d.events(*parts, done=True)
    upstream.says(sse(*(whole[at : at + 10] for at in range(0, len(whole), 10))))
    _, _, body = post(injecting, "/v1/chat/completions", ASKED.replace(b'"seed"', b'"stream":true,"seed"'))
    assert body == d.events(*unasked, done=True)
    (call,) = injecting.calls()
    assert call.completions[0].token_ids.json() == [10, 11, 12]
    assert call.completions[0].logprobs.json() == [-1.0, -0.5, -2.0]


def test_what_the_harness_asks_for_itself_it_gets(injecting: Running, upstream: Upstream) -> None:
    given = d.body_of(one_choice(**VLLM))
    upstream.says(Said(given))
    asked = ASKED.replace(b'"seed"', b'"logprobs":true,"return_token_ids":true,"seed"')
    assert post(injecting, "/v1/chat/completions", asked)[2] == given
    assert injecting.calls()[0].completions[0].top_logprobs is not None


def test_a_server_that_refuses_the_fields_is_asked_without_them(
    injecting: Running, upstream: Upstream
) -> None:
    refusal = Said(d.body_of({"error": {"message": "unknown field"}}), status=400)
    upstream.says(refusal, refusal, Said(d.chat("Ich")), Said(d.chat("Ich")))
    assert post(injecting, "/v1/chat/completions", ASKED)[2] == d.chat("Ich")
    assert post(injecting, "/v1/chat/completions", ASKED)[2] == d.chat("Ich")
    assert [seen.body == ASKED for seen in upstream.seen] == [False, False, True, True]  # it has learned
    first, second = injecting.calls()
    assert [one["status"] for one in proxied(first)["refused"]] == [400, 400]
    assert "injected" not in proxied(second)


def test_a_request_that_is_wrong_by_itself_teaches_nothing(injecting: Running, upstream: Upstream) -> None:
    refusal = Said(d.body_of({"error": {"message": "no such model"}}), status=400)
    upstream.says(refusal, refusal, refusal, Said(d.body_of(one_choice(**VLLM))))
    assert post(injecting, "/v1/chat/completions", ASKED)[0] == 400
    assert post(injecting, "/v1/chat/completions", ASKED)[0] == 200
    assert injecting.calls()[1].completions[0].token_ids.json() == [11, 12]


def test_dialects_that_know_no_such_fields_pass_as_they_are(injecting: Running, upstream: Upstream) -> None:
    upstream.says(Said(d.body_of(d.ANTHROPIC)), Said(d.body_of(d.response())), Said(b"{}"))
    for path in ("/v1/messages", "/v1/responses", "/v1/embeddings"):
        body = json.dumps({"input": "q", "messages": []}).encode()
        post(injecting, path, body)
        assert upstream.seen[-1].body == body


# --- Places ----------------------------------------------------------------------------------------


def test_a_conversation_without_names_is_one_episode_found_by_its_messages(
    proxy: Running, upstream: Upstream, store: Store
) -> None:
    upstream.says(Said(d.chat("A1")), Said(d.chat("B1")), Said(d.chat("A2")), Said(d.chat("A3")))
    chat(proxy, user("a"))
    chat(proxy, user("b"))
    chat(proxy, user("a"), said("A1"), user("more"))
    chat(
        proxy,
        user("a"),
        {"content": "A1", "role": "assistant", "refusal": None},
        user("more"),
        said("A2"),
        user("!"),
    )
    a1, b1, a2, a3 = proxy.calls()
    assert a1.episode_id == a2.episode_id == a3.episode_id != b1.episode_id
    assert [call.ordinal for call in (a1, a2, a3)] == [0, 1, 2]
    assert (a2.parent_call_id, a3.parent_call_id) == (a1.id, a2.id)
    assert proxied(a3)["inferred"] == {"prefix": {"call_id": a2.id, "messages": 4, "of": 5}}
    assert proxied(a1)["made"] == ["call_id", "episode_id", "agent_id"]
    graph = store.load_graph("default", a1.episode_id)
    assert graph.links[a3.id].parent == (a2.id, 0)
    assert graph.links[a3.id].exact


def test_equal_requests_without_a_retry_mark_are_calls_of_their_own(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(*[Said(d.chat("A"))] * 5)
    for _ in range(3):
        chat(proxy, user("a"), headers={"x-stainless-retry-count": "0"})
    chat(proxy, user("a"), said("A"), user("b"))
    chat(proxy, user("a"), said("A"), user("b"))
    first, second, third, fourth, fifth = proxy.calls()
    assert len({one.episode_id for one in (first, second, third)}) == 3
    # Which of the three each continues is a guess: another one each, and no parent is stated.
    assert [fourth.episode_id, fifth.episode_id] == [first.episode_id, second.episode_id]
    assert (fourth.parent_call_id, proxied(fourth)["inferred"]["prefix"]["ambiguous"]) == (None, 3)


def test_names_decide_and_the_messages_say_which_call_of_the_episode_is_continued(
    proxy: Running, upstream: Upstream, store: Store
) -> None:
    upstream.says(*[Said(d.chat("A"))] * 4)
    chat(proxy, user("a"), at="/episode=e1/agent-name=planner")
    chat(proxy, user("a"), at="/episode=e2/agent-name=planner")
    more = (user("a"), said("A"), user("b"))
    chat(proxy, *more, at="/episode=e2/agent-name=planner")
    chat(proxy, *more, headers={"X-Tracestore-Episode": "e1", "X-Tracestore-Purpose": "judge"})
    first, second, third, fourth = proxy.calls()
    assert (first.agent_id, third.agent_id, fourth.agent_id) == ("e1/planner", "e2/planner", "e1/planner")
    assert (third.parent_call_id, fourth.parent_call_id) == (second.id, first.id)
    assert (third.ordinal, fourth.purpose) == (1, "judge")
    assert proxied(third)["named_by"] == {"episode": "path", "agent-name": "path"}


def test_everything_a_harness_can_say_by_header_is_in_the_graph(proxy: Running, upstream: Upstream) -> None:
    upstream.says(*[Said(d.chat("A", "B"))] * 2)
    told = {
        "Episode": "e", "Agent": "a", "Call": "c1", "Group": "g", "Task": "t", "Split": "eval",
        "Purpose": "act",
        "Policy": "p", "Policy-Version": "7", "Role": "searcher", "Parent-Agent": "root",
        "Spawned-By-Call": "c0", "Spawned-By-Tool-Call": "call_9",
    }  # fmt: skip
    headers = {f"X-Tracestore-{name}": value for name, value in told.items()}
    _, answered, _ = post(proxy, "/v1/chat/completions", ASKED, headers)
    assert answered["x-tracestore-call"] == "c1"
    follow = {"X-Tracestore-Parent-Call": "c1", "X-Tracestore-Parent-Completion": "1"}
    _, answered, _ = post(proxy, "/v1/chat/completions", ASKED, follow)
    first, second = proxy.calls()
    assert (first.id, second.id) == ("c1", answered["x-tracestore-call"])
    assert (first.policy.name, first.policy.version, first.purpose) == ("p", 7, "act")
    assert (second.episode_id, second.agent_id, second.parent_call_id, second.parent_completion) == (
        "e",
        "a",
        "c1",
        1,
    )
    proxy.proxy.recorder.close()
    (episode,) = proxy.events("episode")
    assert (episode.group_id, episode.task_id, episode.split, episode.phase) == ("g", "t", "eval", "start")
    agent = next(one for one in proxy.events("agent") if one.id == "a")
    assert (agent.role, agent.parent_agent_id, agent.spawned_by_call_id) == ("searcher", "root", "c0")
    assert agent.spawned_by_tool_call_id == "call_9"
    assert not any(name.lower().startswith("x-tracestore") for name, _ in upstream.seen[0].headers)


def test_a_response_that_the_server_keeps_is_continued_by_its_id(
    proxy: Running, upstream: Upstream, store: Store
) -> None:
    upstream.says(
        Said(d.body_of(d.response("resp_1"))),
        Said(d.body_of(d.response("resp_2"))),
        Said(d.body_of(d.response())),
    )
    for body in (
        {"input": [user("a")]},
        {"input": [user("b")], "previous_response_id": "resp_1"},
        {"input": [user("c")], "previous_response_id": "resp_0"},
    ):
        post(proxy, "/v1/responses", json.dumps(body).encode())
    first, second, third = proxy.calls()
    assert (second.context, second.parent_call_id, second.episode_id) == ("delta", first.id, first.episode_id)
    context = [json.loads(one) for one in store.context("default", second.id)]
    assert context == [user("a"), *d.ITEMS, user("b")]
    assert third.episode_id != first.episode_id
    (gap,) = proxy.events("gap")
    assert (gap.call_id, gap.cause) == (third.id, "missing_prompt")


def test_names_that_cannot_be_used_cost_the_call_nothing_and_are_a_gap(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(Said(d.chat("A")))
    chat(proxy, user("a"), headers={"X-Tracestore-Split": "dev", "X-Tracestore-Episode": "e" * 200})
    (call,) = proxy.calls()
    (gap,) = proxy.events("gap")
    assert (gap.cause, gap.call_id) == ("unusable_name", call.id)
    assert "train, eval, test" in gap.detail


def test_ordinals_go_on_after_a_restart(store: Store, upstream: Upstream) -> None:
    upstream.says(*[Said(d.chat("A"))] * 3)
    with running_proxy(store, upstream.url) as first:
        chat(first, user("a"), at="/episode=e")
        chat(first, user("b"), at="/episode=e")
    with running_proxy(store, upstream.url) as second:
        chat(second, user("c"), at="/episode=e")
        assert [call.ordinal for call in second.calls()] == [0, 1, 2]


def test_a_key_of_ours_and_a_project_are_not_the_upstreams_business(
    proxy: Running, upstream: Upstream
) -> None:
    upstream.says(Said(d.chat("A")))
    chat(
        proxy,
        user("a"),
        headers={"X-Tracestore-Project": "other", "authorization": "Bearer sk-1:ts-episode=e"},
    )
    assert upstream.seen[0].header("authorization") == "Bearer sk-1"
    assert upstream.seen[0].header("x-tracestore-project") is None
    (call,) = proxy.events("call", project="other")
    assert call.episode_id == "e"


def test_a_path_in_the_upstreams_url_is_not_doubled(store: Store, upstream: Upstream) -> None:
    upstream.otherwise = lambda seen: Said(d.chat("A"))
    with running_proxy(store, f"{upstream.url}/v1/") as running:
        post(running, "/v1/chat/completions", ASKED)
        post(running, "/chat/completions", ASKED)
    assert [seen.target for seen in upstream.seen] == ["/v1/chat/completions"] * 2


def test_other_requests_pass_and_are_not_recorded(proxy: Running, upstream: Upstream) -> None:
    upstream.otherwise = lambda seen: Said(
        b'{"input_tokens":3}', headers=(("location", "/else"),), status=201
    )
    for path in ("/v1/messages/count_tokens", "/v1/embeddings", "/v1/threads/t/messages"):
        assert post(proxy, path, b'{"role":"user"}')[0] == 201
    assert proxy.calls() == []
    assert proxy.proxy.status()["lost"] == 0


def test_a_request_over_the_limit_is_refused_before_it_is_forwarded(store: Store, upstream: Upstream) -> None:
    settings = Settings(max_body_bytes=1024, max_event_bytes=1024)
    with running_proxy(store, upstream.url, settings=settings) as running:
        assert post(running, "/v1/chat/completions", b"x" * 1025)[0] == 413
    assert upstream.seen == []


def test_behind_keys_only_those_who_may_write_pass_and_ours_never_reaches_the_upstream(
    store: Store, upstream: Upstream
) -> None:
    def made(project: str, scope: Right) -> str:
        with writer(store.engine).begin() as connection:
            return create_key(
                connection, project, name="n", scopes=frozenset({scope}), expires_at=None, now=1
            ).text

    ours, reads = made("p", "write"), made("p", "read")
    upstream.otherwise = lambda seen: Said(d.chat("A"))
    at = "/v1/chat/completions"
    with running_proxy(store, upstream.url) as running:
        assert post(running, at, ASKED, {"authorization": "Bearer sk-1"})[0] == 401
        assert post(running, at, ASKED, {"x-tracestore-key": reads})[0] == 403
        assert upstream.seen == []
        for sent in (
            {"authorization": "Bearer sk-1", "x-tracestore-key": ours},
            {"authorization": f"Bearer sk-1:ts-key={ours},episode=e"},
            {"x-api-key": f"sk-1:ts-key={ours}"},
            {"authorization": f"Bearer {ours}"},
        ):
            assert post(running, at, ASKED, sent)[0] == 200
        assert len(running.events("call", project="p")) == 4
        told = running.proxy.status("p"), running.proxy.status("q")
        assert [status["recorded"] for status in told] == [4, 0]
    sent_on = [(seen.header("authorization"), seen.header("x-api-key")) for seen in upstream.seen]
    assert sent_on == [("Bearer sk-1", None), ("Bearer sk-1", None), (None, "sk-1"), (None, None)]
    assert not any(ours in str(seen.headers) for seen in upstream.seen)
