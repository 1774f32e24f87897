from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from tests.fixtures import fixture
from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_order_free,
    assert_perturbation,
    newest,
    read_data,
    read_paths,
    same_events,
)
from tracestore.importers.cassettes import from_yaml
from tracestore.wire.encode import encode

CHAT = "https://api.openai.com/v1/chat/completions"
BEDROCK = "cassettes/pydantic__pydantic-ai/tests/models/cassettes/test_bedrock/test_stream_cancel.yaml"
SECRET = "sk-hush-0123456789"
ASKED = '{"model": "m",  "messages": [{"role": "user", "content": "hi"}], "temperature": 1.0}'


def answer(text: str = "hello", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"id": "c1", "object": "chat.completion", "model": "m-1", "choices": [choice], **fields}


def pair(request: Any = ASKED, response: Any = None, **fields: Any) -> dict[str, Any]:
    """One interaction as VCR writes it."""
    body = json.dumps(answer() if response is None else response)
    return {
        "request": {
            "method": "POST",
            "uri": fields.get("uri", CHAT),
            "body": request,
            "headers": fields.get("headers", {}),
        },
        "response": {
            "status": {"code": fields.get("status", 200), "message": "OK"},
            "headers": {"content-type": ["application/json"]},
            "body": {"string": fields.get("body", body)},
        },
    }


def cassette(*pairs: dict[str, Any]) -> bytes:
    return json.dumps({"interactions": list(pairs), "version": 1}).encode()


def texts(imported: Imported) -> str:
    """All that an import gives: the events, and what the report shows."""
    said = [encode(event).decode() for event in imported.events]
    return "\n".join([*said, json.dumps(imported.report, default=str)])


YAML = f"""interactions:
- request:
    body: |-
      {ASKED}
    headers:
      X-Day: [2024-02-30, 12:30:45, no, 0x10, 1e400]
    method: POST
    uri: {CHAT}
  response:
    body:
      string: !!binary |
        BODY
    headers: {{content-encoding: [gzip]}}
    recorded: 2026-02-23
    elapsed: 1.50
    status: {{code: 200, message: ok}}
version: 1
"""


def test_a_yaml_cassette_is_read_without_making_dates_or_bools_of_its_texts() -> None:
    packed = base64.b64encode(gzip.compress(json.dumps(answer()).encode())).decode()
    imported = read_data(YAML.replace("BODY", packed).encode())
    (call,) = imported.of("call")
    assert bytes(call.request) == ASKED.encode()
    assert call.completions[0].message.value() == {"role": "assistant", "content": "hello"}
    assert (call.model, call.provider_id, call.endpoint, call.status) == ("m-1", "c1", CHAT, "ok")
    http = call.meta.value()["http"]
    assert http["request_headers"]["X-Day"] == ["2024-02-30", "12:30:45", "no", "0x10", float("inf")]
    assert b'"no","0x10",1e400]' in call.meta
    assert http["response_line"] == {"recorded": "2026-02-23", "elapsed": 1.5, "message": "ok"}
    assert_builds(imported)


def test_yaml_numbers_keep_their_digits_and_everything_else_is_text() -> None:
    text = b"[1, -0, 1.50, 0.10000000000000000055, .inf, +1, 010, true, yes, ~, null, '1', 1_000]"
    plain = [1, 1.5, ".inf", "+1", "010", True, "yes", None, None, "1", "1_000"]
    values = from_yaml(text)
    assert [one for place, one in enumerate(values) if place not in (1, 3)] == plain
    assert [bytes(values[1]), bytes(values[3])] == [b"-0", b"0.10000000000000000055"]
    assert from_yaml(b"1: {true: a}") == {"1": {"True": "a"}}


@pytest.mark.parametrize(
    "text",
    [
        "interactions:\n- request: {a: *b}\n",
        "interactions: &a\n- *a\n",
        "interactions: !!python/object/apply:os.system [ls]\n",
        "interactions:\n" + "".join(f"- &a{n} [{f'*a{n - 1},' * 9 if n else '1'}]\n" for n in range(30)),
        "interactions: [",
        "interactions: " + "[" * 20_000,
    ],
)
def test_a_hostile_yaml_file_is_refused_and_takes_no_memory(text: str) -> None:
    imported = read_data(text.encode())
    assert imported.events == []
    assert imported.notes.refused


def test_ruby_and_go_write_cassettes_too() -> None:
    ruby = f"""---
http_interactions:
- request: {{method: post, uri: {CHAT}, body: {{encoding: UTF-8, string: '{ASKED}'}}, headers: {{}}}}
  response:
    status: {{code: 200, message: OK}}
    body: {{encoding: UTF-8, string: '{{"id":"c1","choices":[]}}'}}
  recorded_at: Fri, 01 Jan 2027 00:00:00 GMT
recorded_with: VCR 6.1.0
"""
    go = f"""---
version: 2
interactions:
- id: 0
  request: {{method: POST, url: {CHAT}, body: '{ASKED}', headers: {{}}}}
  response: {{status: 200 OK, code: 200, headers: {{}}, body: '{{"id":"c1","choices":[]}}'}}
"""
    for text in (ruby, go):
        (call,) = read_data(text.encode()).of("call")
        assert (bytes(call.request), call.provider_id) == (ASKED.encode(), "c1")
        assert call.meta.value()["http"]["status"] == 200


def test_a_har_file_has_times_and_a_stream_in_base64() -> None:
    stream = 'data: {"id": "s", "choices": [{"index": 0, "delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n'
    entry = {
        "startedDateTime": "2026-01-01T00:00:00.000Z",
        "time": 1500.5,
        "request": {
            "method": "POST",
            "url": f"{CHAT}?key={SECRET}&alt=sse",
            "headers": [{"name": "Authorization", "value": SECRET}, {"name": "accept", "value": "*/*"}],
            "cookies": [{"name": "sid", "value": SECRET}],
            "queryString": [{"name": "key", "value": SECRET}],
            "postData": {"mimeType": "application/json", "text": ASKED},
        },
        "response": {
            "status": 200,
            "headers": [{"name": "set-cookie", "value": SECRET}],
            "content": {"text": base64.b64encode(stream.encode()).decode(), "encoding": "base64"},
        },
        "timings": {"wait": 3},
    }
    imported = read_data(json.dumps({"log": {"version": "1.2", "entries": [entry]}}).encode())
    (call,) = imported.of("call")
    begin = 1_767_225_600_000_000_000
    assert (call.started_at, call.ended_at) == (begin, begin + 1_500_500_000)
    assert call.completions[0].message.value() == {"content": "hi"}
    assert call.endpoint == f"{CHAT}?alt=sse"
    http = call.meta.value()["http"]
    assert http["request_headers"] == {"accept": ["*/*"]}
    assert http["timings"] == {"wait": 3}
    assert SECRET not in texts(imported)


def test_nock_records_streams_as_text_and_compressed_bodies_as_hex() -> None:
    packed = gzip.compress(json.dumps(answer()).encode()).hex()
    one = {"scope": "https://api.x.com:443", "method": "POST", "path": "/v1/chat/completions", "status": 200}
    headers = ["Set-Cookie", SECRET, "x", "1"]
    asked = {"body": json.loads(ASKED), "response": [packed[:20], packed[20:]], "rawHeaders": headers}
    stream = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    other = {"method": "GET", "path": "/v1/me", "response": {"token": SECRET}}
    recorded = [one | {"body": "", "response": stream}, one | asked, one | other]
    imported = read_data(json.dumps(recorded).encode())
    first, second = sorted(imported.of("call"), key=lambda call: call.ordinal)
    assert (first.request, first.status) == (None, "aborted")
    assert second.completions[0].message.value() == {"role": "assistant", "content": "hello"}
    assert second.meta.value()["http"]["response_headers"] == {"x": ["1"]}
    assert [gap.cause for gap in imported.of("gap")] == ["missing_prompt"]
    assert imported.notes.rows["http-recording/other exchange"] == 1
    assert SECRET not in texts(imported)


def test_snapshots_and_lone_responses_are_recordings() -> None:
    shot = {
        "request": {"method": "POST", "url": CHAT, "body": ASKED},
        "response": {"status_code": 200, "headers": {}, "body": answer()},
    }
    (call,) = read_data(json.dumps([shot]).encode()).of("call")
    assert call.completions[0].message.value()["content"] == "hello"
    lone = read_data(json.dumps({"status": 200, "headers": {"a": "b"}, "body": answer()}).encode())
    assert lone.of("call")[0].meta.value()["http"]["response_headers"] == {"a": "b"}
    assert [gap.cause for gap in lone.of("gap")] == ["missing_prompt"]


@pytest.mark.parametrize(
    "value",
    [
        {"interactions": [{"name": "a click"}]},
        {"status": 200, "headers": {}, "body": "<html>"},
        {"log": {"entries": 3}},
        [{"scope": "x"}],
        {"messages": []},
    ],
)
def test_files_that_only_look_like_recordings_are_none(value: Any) -> None:
    imported = read_data(json.dumps(value).encode())
    assert imported.notes.rows["http-recording/other exchange"] == 0
    assert imported.events == []


def test_a_data_key_of_a_yaml_file_is_no_stream() -> None:
    assert read_data(b"data:\n  a: 1\n").events == []
    assert read_data(b"data: hello\nevent: x\n").events == []


# --- Which exchanges are calls ---------------------------------------------------------------------


def test_only_requests_to_a_model_are_calls() -> None:
    slack = pair('{"text": "hi"}', {"ok": True}, uri="https://x.com/channels/1/messages")
    listing = pair("", {"data": []}, uri="https://api.openai.com/v1/models")
    embedding = pair(
        '{"input": "hi", "model": "e"}', {"data": [], "model": "e"}, uri="https://x.com/v1/embeddings"
    )
    elsewhere = pair(ASKED, uri="https://gateway.example/ai/run")
    imported = read_data(cassette(slack, listing, embedding, elsewhere))
    (call,) = imported.of("call")
    assert call.endpoint == "https://gateway.example/ai/run"
    assert imported.notes.rows["http-recording/other exchange"] == 3


def test_a_refused_request_is_a_failed_call_with_the_words_of_the_server() -> None:
    said = {"error": {"message": "no such model", "type": "invalid_request_error"}}
    imported = read_data(cassette(pair(response=said, status=404)))
    (call,) = imported.of("call")
    assert (call.status, call.completions) == ("failed", None)
    assert (call.error.type, call.error.message) == ("invalid_request_error", "no such model")
    assert call.error.status_code == 404
    assert imported.of("gap") == []
    (call,) = read_data(cassette(pair(body="<html>Bad gateway", status=502))).of("call")
    assert (call.error.message, call.error.status_code) == (None, 502)
    assert call.meta.value()["http"]["response"] == "<html>Bad gateway"


def test_retries_that_the_client_counts_are_attempts_of_one_call() -> None:
    def attempt(num: int, **fields: Any) -> dict[str, Any]:
        return pair(headers={"X-Stainless-Retry-Count": [str(num)]}, **fields)

    tries = [attempt(0, status=429, response={"error": {"message": "slow"}}), attempt(1)]
    imported = read_data(cassette(*tries))
    (call,) = imported.of("call")
    assert [one.status_code for one in call.attempts] == [429, 200]
    assert (call.status, call.ordinal, call.revision) == ("ok", 0, 2)
    assert "slow" in str(call.meta.value()["http"]["earlier_responses"])
    # The same request without a count is another call, and so is another request after a failure.
    assert len(read_data(cassette(attempt(0), attempt(0))).of("call")) == 2
    other = attempt(1)
    other["request"]["body"] = ASKED.replace("hi", "ho")
    assert len(read_data(cassette(tries[0], other)).of("call")) == 2


def test_a_recording_that_grows_names_the_same_calls() -> None:
    pairs = [
        pair(headers={"x-stainless-retry-count": "0"}, status=500, response={"error": {}}),
        pair(headers={"x-stainless-retry-count": "1"}),
        pair(ASKED.replace("hi", "ho"), answer("ho")),
        pair(ASKED.replace("hi", "ho"), answer("ho")),
    ]
    whole = read_data(cassette(*pairs))
    seen = [event for num in range(1, 5) for event in read_data(cassette(*pairs[:num])).events]
    assert same_events(whole, Imported(list(newest(seen).values()), whole.notes))
    assert sorted(call.ordinal for call in whole.of("call")) == [0, 1, 2]


def test_copies_of_a_recording_in_any_order_are_one() -> None:
    assert_order_free(cassette(pair()), cassette(pair(ASKED.replace("hi", "ho"))), cassette(pair(), pair()))


def test_equal_exchanges_are_several_calls() -> None:
    imported = read_data(cassette(pair(), pair(), pair()))
    assert sorted(call.ordinal for call in imported.of("call")) == [0, 1, 2]


def test_a_success_without_its_answer_is_a_gap_that_is_counted() -> None:
    imported = read_data(
        cassette(pair(body=""), pair(ASKED.replace("hi", "ho"), body='{"choices": []}'), pair())
    )
    gaps = imported.of("gap")
    assert {gap.cause for gap in gaps} == {"unrecorded_stream"}
    assert len({gap.call_id for gap in gaps}) == 2
    assert imported.report["gaps"] == 2


def test_a_binary_event_stream_stays_a_gap_and_is_kept() -> None:
    imported = read_paths(fixture(BEDROCK))
    (call,) = imported.of("call")
    assert (call.status, call.completions) == (None, None)
    assert [gap.cause for gap in imported.of("gap")] == ["unrecorded_stream"]
    assert base64.b64decode(call.meta.value()["http"]["response"]["base64"])
    assert imported.notes.warnings["a response of no known shape, kept in meta"] == 1


def test_ids_that_are_fewer_than_the_usage_counts_are_kept_as_they_came() -> None:
    said = answer(usage={"prompt_tokens": 1, "completion_tokens": 5})
    said["choices"][0] |= {"token_ids": [7, 8]}
    imported = read_data(cassette(pair(response=said)))
    (call,) = imported.of("call")
    assert (call.completions[0].token_ids.json(), call.usage.completion_tokens) == ([7, 8], 5)


# --- Requests --------------------------------------------------------------------------------------


def test_a_request_that_is_text_is_kept_byte_for_byte_and_a_parsed_one_is_written_once() -> None:
    (call,) = read_data(cassette(pair("\n" + ASKED + " "))).of("call")
    assert bytes(call.request) == ASKED.encode()
    parsed = pair("")
    parsed["request"]["parsed_body"] = json.loads(ASKED)
    (call,) = read_data(cassette(parsed)).of("call")
    assert bytes(call.request) == ASKED.replace(" ", "").encode()


def test_a_gemini_request_has_its_contents_as_messages() -> None:
    asked = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}], "generationConfig": {"topK": 1}}
    said = {"candidates": [{"content": {"role": "model", "parts": [{"text": "ho"}]}, "finishReason": "STOP"}]}
    url = f"https://generativelanguage.googleapis.com/v1/models/g:generateContent?key={SECRET}"
    imported = read_data(cassette(pair(json.dumps(asked), said, uri=url)))
    (call,) = imported.of("call")
    assert call.request.value() == {"messages": asked["contents"], "generationConfig": {"topK": 1}}
    assert SECRET not in texts(imported)


def test_bodies_that_no_event_could_hold_are_still_there() -> None:
    odd = json.loads(ASKED)
    deep = ASKED.replace("1.0", "[" * 300 + "]" * 300)
    for body, expected in (
        (json.dumps({**odd, "x": "\ud800"}, ensure_ascii=False), {**odd, "x": "\ud800"}),
        (ASKED.replace("1.0", "NaN"), {**odd, "temperature": "NaN"}),
        (deep, deep),
        (ASKED[:-5], ASKED[:-5]),
    ):
        (call,) = read_data(cassette(pair(body))).of("call")
        assert call.request.value() == expected


def test_credentials_are_stored_nowhere_and_counted() -> None:
    headers = {
        "Authorization": f"Bearer {SECRET}",
        "X-Api-Key": SECRET,
        "cookie": [SECRET],
        "x-goog-api-key": SECRET,
        "X-Amz-Security-Token": SECRET,
        "Ocp-Apim-Subscription-Key": SECRET,
        "referer": f"https://u:{SECRET}@x.com/?token={SECRET}&a=1",
        "Idempotency-Key": "fine",
        "x-ratelimit-remaining-tokens": "5",
    }
    asked = json.loads(ASKED) | {
        "api_key": SECRET,
        "metadata": {"headers": {"authorization": SECRET}},
        "tools": [
            {"type": "mcp", "server_url": "https://x.com", "headers": {"Authorization": SECRET}},
            {"type": "function", "name": "log_in", "parameters": {"password": {"type": "string"}}},
        ],
    }
    signin = pair(f"client_secret={SECRET}", {"access_token": SECRET}, uri="https://x.com/oauth2/token")
    url = f"https://user:{SECRET}@x.com/v1/chat/completions?api-key={SECRET}&key={SECRET}&v=1"
    imported = read_data(cassette(pair(json.dumps(asked), headers=headers, uri=url), signin))
    assert SECRET not in texts(imported)
    assert (
        imported.notes.warnings["a header, URL field or body field that may hold a credential was left out"]
        > 8
    )
    (call,) = imported.of("call")
    kept = call.meta.value()["http"]["request_headers"]
    assert kept == {
        "referer": "https://x.com/?a=1",
        "Idempotency-Key": "fine",
        "x-ratelimit-remaining-tokens": "5",
    }
    assert call.request.value()["tools"][1]["parameters"] == {"password": {"type": "string"}}
    assert call.request.value()["metadata"] == {"headers": {}}


def test_what_a_model_read_or_wrote_is_never_taken_for_a_credential() -> None:
    said = answer()
    said["choices"][0]["message"] = {
        "role": "assistant",
        "content": None,
        "api_key": "mine",
        "signature": "s",
    }
    asked = {"model": "m", "messages": [{"role": "user", "content": "x", "password": "kept"}]}
    (call,) = read_data(cassette(pair(json.dumps(asked), said))).of("call")
    assert bytes(call.request) == json.dumps(asked).encode()
    assert call.completions[0].message.value()["api_key"] == "mine"


# --- Files -----------------------------------------------------------------------------------------


def test_wrong_exchanges_are_shown_and_the_others_pass() -> None:
    data = json.dumps({"interactions": [pair(), "none", {"request": 3}, {}, None]}).encode()
    imported = read_data(data)
    assert len(imported.of("call")) == 1
    assert len(imported.notes.refused) == 2
    assert imported.notes.rows["http-recording/other exchange"] == 2


def test_no_value_of_a_recording_changes_without_a_trace() -> None:
    other = pair("", {"data": [1]}, uri="https://api.openai.com/v1/models")
    assert_perturbation(cassette(pair(headers={"a": ["b"]}), other), limit=200)
    stream = "".join(f"data: {json.dumps({'choices': [{'delta': {'content': one}}]})}\n\n" for one in "abc")
    nock = {"scope": "https://x.com", "method": "POST", "path": "/v1/chat/completions", "status": 200}
    assert_perturbation(json.dumps([{**nock, "response": stream, "more": {"a": 1}}]).encode(), limit=50)


def test_lines_of_a_log_are_no_recording() -> None:
    imported = read_data(as_lines({"request": {"messages": [{"role": "user"}]}, "response": answer()}))
    assert imported.notes.rows["http-recording/model call"] == 0
    assert len(imported.of("call")) == 1
