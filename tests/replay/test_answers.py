"""Law: what a replay sends reads as what was recorded did, whole and as a stream, in every dialect."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.proxy import dialects as d
from tests.replay.conversations import recorded_of
from tracestore.importers.exchanges import answered
from tracestore.importers.streams import Answer, completion, sent
from tracestore.replay.answers import body_of, encoded, error_of, recorded_events
from tracestore.replay.streams import stream_of
from tracestore.replay.tape import NotReplayable
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.completion import CompletionFields

ASK: dict[str, Any] = {
    "openai_chat": {"model": "m-1", "messages": [d.QUESTION]},
    "openai_responses": {"model": "m-1", "input": "Wie heißt du?"},
    "anthropic_messages": {"model": "claude", "max_tokens": 9, "messages": [d.QUESTION]},
    "text": {"model": "m-1", "prompt": "Wie"},
}
VLLM = json.dumps(
    {
        "id": "c9",
        "object": "chat.completion",
        "created": 7,
        "model": "m-1",
        "system_fingerprint": "fp",
        "prompt_token_ids": [1, 2, 3],
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Ich"},
                "finish_reason": "length",
                "token_ids": [4, 5],
                "logprobs": {
                    "content": [
                        {"token": "token_id:4", "logprob": -0.5, "bytes": None, "top_logprobs": []},
                        {"token": "token_id:5", "logprob": -0.1, "bytes": None, "top_logprobs": []},
                    ]
                },
            }
        ],
        "usage": d.USAGE | {"prompt_tokens_details": {"cached_tokens": 3}},
    }
).encode()
TEXT = json.dumps(
    {
        "id": "t1",
        "object": "text_completion",
        "created": 1,
        "model": "m-1",
        "choices": [{"index": 0, "text": " heißt", "finish_reason": "stop", "logprobs": None}],
        "usage": d.USAGE,
    }
).encode()
RESPONSES = {
    "chat": ("openai_chat", d.chat("Ich", "Du 🙂")),
    "chat stream": ("openai_chat", d.CHAT_STREAM),
    "ids and logprobs": ("openai_chat", VLLM),
    "anthropic": ("anthropic_messages", d.body_of(d.ANTHROPIC)),
    "anthropic stream": ("anthropic_messages", d.ANTHROPIC_STREAM),
    "responses": ("openai_responses", d.body_of(d.response())),
    "responses stream": ("openai_responses", d.RESPONSE_STREAM),
    "text": ("text", TEXT),
}


def facts(answer: Answer | None) -> dict[str, Any]:
    """What an answer says, but for how it came."""
    assert answer is not None
    how = ("rest", "event_types", "events")
    found = {name: value for name, value in asdict(answer).items() if name not in how}
    for choice, one in zip(found["choices"], answer.choices, strict=True):
        choice.pop("span")
        message = completion(one).message
        choice["message"] = None if message is None else message.value()
        if isinstance(choice["message"], dict):
            # A stream says nothing of what is null.
            choice["message"] = {name: one for name, one in choice["message"].items() if one is not None}
    return found


@pytest.mark.parametrize("name", RESPONSES)
def test_a_whole_answer_reads_as_what_was_recorded(name: str) -> None:
    dialect, response = RESPONSES[name]
    body = body_of(recorded_of(dialect, ASK[dialect], response))
    assert facts(answered(encoded(body))) == facts(answered(response))


@pytest.mark.parametrize("name", RESPONSES)
def test_a_stream_reads_as_what_was_recorded(name: str) -> None:
    dialect, response = RESPONSES[name]
    body = body_of(recorded_of(dialect, ASK[dialect], response))
    stream = b"".join(stream_of(body, dialect))  # type: ignore[arg-type]
    assert facts(answered(stream)) == facts(answered(response))


def test_the_events_of_a_responses_stream_come_again_in_their_order() -> None:
    recorded = recorded_of("openai_responses", ASK["openai_responses"], d.RESPONSE_STREAM)
    stream = stream_of(body_of(recorded), "openai_responses", recorded=recorded_events(recorded.call))
    told, said = (
        [(one.event, json.loads(one.data)) for one in sent(text.decode())]
        for text in (b"".join(stream), d.RESPONSE_STREAM)
    )
    assert told == said


def test_what_else_a_response_said_is_said_again() -> None:
    body = body_of(recorded_of("openai_chat", ASK["openai_chat"], VLLM))
    assert (body["id"], body["created"], body["system_fingerprint"]) == ("c9", 7, "fp")


def test_a_message_comes_back_byte_for_byte() -> None:
    message = '{"role": "assistant",  "content": "1.50 \\u00e9 é", "n": 1.0}'
    choices = f'[{{"index":0,"message":{message}}}]'
    response = f'{{"id":"x","object":"chat.completion","model":"m","choices":{choices}}}'
    body = body_of(recorded_of("openai_chat", ASK["openai_chat"], response.encode()))
    assert message.encode() in encoded(body)


@given(
    texts=st.lists(st.text(), min_size=1, max_size=3),
    arguments=st.dictionaries(
        st.text(max_size=4), st.one_of(st.integers(), st.text(), st.none()), max_size=3
    ),
)
def test_any_text_and_any_arguments_come_back(texts: list[str], arguments: dict[str, Any]) -> None:
    chat = {
        "id": "x",
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": place,
                "message": {
                    "role": "assistant",
                    "content": text,
                    "tool_calls": [
                        {
                            "id": "t",
                            "type": "function",
                            "function": {"name": "f", "arguments": json.dumps(arguments)},
                        }
                    ],
                },
                "finish_reason": "tool_calls",
            }
            for place, text in enumerate(texts)
        ],
    }
    blocks = [{"type": "text", "text": text} for text in texts]
    use = {"type": "tool_use", "id": "t", "name": "f", "input": arguments}
    message = d.ANTHROPIC | {"content": [*blocks, use]}
    for dialect, value in (("openai_chat", chat), ("anthropic_messages", message)):
        response = json.dumps(value).encode()
        body = body_of(recorded_of(dialect, ASK[dialect], response))
        assert facts(answered(encoded(body))) == facts(answered(response))
        stream = b"".join(stream_of(body, dialect))  # type: ignore[arg-type]
        assert facts(answered(stream)) == facts(answered(response))


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(), st.sampled_from(["\0" + "0\0", "\0" + "1\0"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
)


@given(JSON, st.data())
def test_a_span_stands_in_an_answer_as_it_is_whatever_stands_around_it(
    value: Any, data: st.DataObject
) -> None:
    spans: list[bytes] = []

    def some_kept(one: Any) -> Any:
        if data.draw(st.booleans()):
            spans.append(json.dumps(one, indent=1).encode())
            return Raw(spans[-1])
        if isinstance(one, dict):
            return {name: some_kept(inner) for name, inner in one.items()}
        return [some_kept(inner) for inner in one] if isinstance(one, list) else one

    text = encoded(some_kept(value))
    assert json.loads(text) == value
    for span in spans:
        assert span in text


def test_logprobs_are_written_as_numbers_are() -> None:
    values = [-0.5, -1e-30, -123.4567890123456789, 0.0]
    answer = CompletionFields(
        message=Raw(b'"x"'), token_ids=TokenIds.of([1, 2, 3, 4]), logprobs=Logprobs.of(values)
    )
    recorded = replace(
        recorded_of("openai_chat", ASK["openai_chat"], d.chat("x")), completions=(answer,), sent={}
    )
    [choice] = json.loads(encoded(body_of(recorded)))["choices"]
    assert [one["logprob"] for one in choice["logprobs"]["content"]] == values
    none = replace(recorded, completions=(replace_ids(answer, []),))
    [choice] = json.loads(encoded(body_of(none)))["choices"]
    assert (choice["token_ids"], choice["logprobs"]) == ([], {"content": []})


def replace_ids(answer: CompletionFields, ids: list[int]) -> CompletionFields:
    return answer.model_copy(update={"token_ids": TokenIds.of(ids), "logprobs": Logprobs.of([])})


def test_a_refusal_is_refused_again() -> None:
    refused = json.dumps({"error": {"type": "invalid_request_error", "message": "too long"}}).encode()
    recorded = recorded_of("openai_chat", ASK["openai_chat"], refused, status=400)
    assert error_of(recorded) == (
        400,
        {"error": {"type": "invalid_request_error", "message": "too long"}},
    )


def test_a_stream_that_broke_off_says_why_it_cannot_be_sent() -> None:
    broken = d.events(d.chunk({"role": "assistant", "content": "Ic"}))
    with pytest.raises(NotReplayable, match="broke off"):
        body_of(recorded_of("openai_chat", ASK["openai_chat"], broken))
