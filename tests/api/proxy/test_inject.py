from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore_api.proxy.inject import LADDER, StrippedStream, injected, is_streamed, stripped

CHAT = LADDER["openai_chat"][0]
ADDED = {name: json.loads(value) for name, value in CHAT.items()}


def test_fields_are_added_behind_the_others_and_no_other_byte_changes() -> None:
    body = b' {"model" : "m",\n "temperature": 1.0 } '
    wanted = {"logprobs": b"true", "return_token_ids": b"true"}
    assert injected(body, wanted) == (
        b' {"model" : "m",\n "temperature": 1.0,"logprobs":true,"return_token_ids":true } ',
        {"logprobs": True, "return_token_ids": True},
    )
    assert injected(b"{}", {"logprobs": b"true"})[0] == b'{"logprobs":true}'


def test_a_field_that_says_no_is_replaced_and_one_that_says_yes_stays() -> None:
    assert injected(b'{"logprobs":false,"n":1}', {"logprobs": b"true"}) == (
        b'{"logprobs":true,"n":1}',
        {"logprobs": True},
    )
    for body in (b'{"logprobs":true}', b'{"logprobs":5}'):
        assert injected(body, {"logprobs": b"true"}) == (body, {})


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'"x"', b"[" * 5000])
def test_what_is_no_object_stays_as_it_is(body: bytes) -> None:
    assert injected(body, CHAT) == (body, {})
    assert stripped(body, ADDED) == body
    assert not is_streamed(body)


def test_a_stream_is_asked_for_by_true_alone() -> None:
    assert is_streamed(b'{"stream": true}')
    assert not is_streamed(b'{"stream": false, "x": {"stream": true}}')


VLLM = (
    b'{"id":"c", "choices":[{"index":0,"message":{"content":"\\u00e9 token_ids"},"logprobs":{"content":[]},'
    b'"token_ids":[1, 2]} ],"prompt_token_ids":[3],"usage":{"x":1.50}}'
)


def test_an_answer_loses_what_was_asked_for_in_secret_and_nothing_else() -> None:
    assert stripped(VLLM, ADDED) == (
        b'{"id":"c", "choices":[{"index":0,"message":{"content":"\\u00e9 token_ids"},"logprobs":null,'
        b'"token_ids":null} ],"prompt_token_ids":null,"usage":{"x":1.50}}'
    )
    assert stripped(VLLM, {"return_token_ids": True}).count(b'"logprobs":{"content":[]}') == 1
    assert stripped(VLLM, {}) == VLLM


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"a":1, "sglext": {"input_ids":[1],"output_ids":[[2]]}, "b":2}', b'{"a":1, "b":2}'),
        (b'{"sglext":{"input_ids":[1]} , "b":2}', b'{"b":2}'),
        (b'{"a":1,"sglext":{"output_ids":[]}}', b'{"a":1}'),
        (b'{"sglext":{"output_ids":[],"routed_experts":"x"}}', b'{"sglext":{"routed_experts":"x"}}'),
        (b'{"sglext":{"routed_experts":"x"}}', b'{"sglext":{"routed_experts":"x"}}'),
    ],
)
def test_the_extension_of_sglang_loses_the_ids(body: bytes, expected: bytes) -> None:
    assert stripped(body, ADDED) == expected


def event(delta: dict[str, Any], *, reason: str | None = None, end: bytes = b"\n\n", **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "token_ids": None} | more
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + end


def test_a_stream_loses_it_too_wherever_its_bytes_are_cut() -> None:
    for end in (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n"):
        sent = [
            b": keep-alive" + end,
            event({"role": "assistant", "content": ""}, end=end),
            event({"content": "é"}, end=end, token_ids=[1], logprobs={"content": [{"logprob": -0.5}]}),
            event({}, end=end, token_ids=[2]),  # sent for the ids alone
            event({}, end=end, reason="stop", token_ids=[3]),
            b'data: {"choices":[],"sglext":{"input_ids":[9],"output_ids":[[1,2,3]]}}' + end,
            b"data: [DONE]" + end,
        ]
        expected = [
            b": keep-alive" + end,
            event({"role": "assistant", "content": ""}, end=end),
            event({"content": "é"}, end=end),
            event({}, end=end, reason="stop"),
            b"data: [DONE]" + end,
        ]
        whole = b"".join(sent)
        for step in (1, 2, 7, len(whole)):
            stream = StrippedStream(ADDED)
            passed = b"".join(stream.feed(whole[at : at + step]) for at in range(0, len(whole), step))
            assert passed + stream.end() == b"".join(expected)


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_a_stream_of_anything_passes_whole(pieces: list[bytes]) -> None:
    stream = StrippedStream({})
    assert b"".join(map(stream.feed, pieces)) + stream.end() == b"".join(pieces)


def test_a_stream_that_is_cut_gives_what_had_come() -> None:
    stream = StrippedStream(ADDED)
    assert stream.feed(b'data: {"choi') == b""
    assert stream.end() == b'data: {"choi'
