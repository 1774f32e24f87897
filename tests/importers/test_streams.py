from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import fixture
from tracestore.importers.exchanges import answered
from tracestore.importers.items import raw
from tracestore.importers.streams import Answer, sent, streamed, whole
from tracestore.wire.call import Usage

SDK_STREAMS = "cassettes/anthropics__anthropic-sdk-python/tests/lib/streaming/fixtures/"
OTEL = (
    "cassettes/open-telemetry__opentelemetry-python-contrib/instrumentation-genai/"
    "opentelemetry-instrumentation-openai-v2/tests/cassettes/"
)


def of(*events: Any) -> Answer:
    """The answer of a stream of these events; a text stands for itself."""
    answer = streamed(event if isinstance(event, str) else json.dumps(event) for event in events)
    assert answer is not None
    return answer


def messages(answer: Answer) -> list[Any]:
    return [raw(choice.message).value() for choice in answer.choices]


# --- Server-sent events ----------------------------------------------------------------------------


def test_events_end_at_blank_lines_whatever_ends_a_line_and_comments_say_nothing() -> None:
    for end in ("\n", "\r", "\r\n"):
        text = end.join([": hello", "event: a", "data: 1", "data:2", "", "data: 3", "", "", "data: cut"])
        assert [(one.event, one.data) for one in sent(text)] == [("a", "1\n2"), (None, "3"), (None, "cut")]


def test_a_keep_alive_without_data_is_no_event() -> None:
    answer = of("", {"choices": [{"index": 0, "delta": {"content": "hi"}}]}, "  ")
    assert answer.event_types["unread"] == 0
    assert messages(answer) == [{"content": "hi"}]


# --- OpenAI Chat Completions -----------------------------------------------------------------------


def chunk(index: int = 0, /, *, reason: str | None = None, **delta: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": reason}
    return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def test_interleaved_choices_are_put_together_by_their_index() -> None:
    answer = of(
        chunk(1, role="assistant", content="B"),
        chunk(0, role="assistant", content="A"),
        chunk(0, content="a"),
        chunk(1, content="b", reason="length"),
        chunk(0, reason="stop"),
        {"id": "c1", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}},
        "[DONE]",
    )
    assert messages(answer) == [
        {"role": "assistant", "content": "Aa"},
        {"role": "assistant", "content": "Bb"},
    ]
    assert [choice.finish_reason for choice in answer.choices] == ["stop", "length"]
    assert [choice.partial for choice in answer.choices] == [False, False]
    assert answer.usage == Usage(prompt_tokens=3, completion_tokens=4)
    assert (answer.provider_id, answer.model) == ("c1", "m")
    assert answer.rest == {"chunks": [{"object": "chat.completion.chunk"}] * 5}


def test_tool_calls_come_in_pieces_by_index_and_their_arguments_stay_as_sent() -> None:
    def use(index: int, **fields: Any) -> dict[str, Any]:
        return chunk(tool_calls=[{"index": index, **fields}])

    answer = of(
        use(0, id="t0", type="function", function={"name": "look", "arguments": ""}),
        use(0, function={"arguments": '{"at": '}),
        use(1, id="t1", type="function", function={"name": "ask", "arguments": "{}"}),
        use(0, id="t0", function={"name": "look", "arguments": "1e2"}),
    )
    assert messages(answer)[0]["tool_calls"] == [
        {"id": "t0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1e2'}},
        {"id": "t1", "type": "function", "function": {"name": "ask", "arguments": "{}"}},
    ]
    assert answer.choices[0].partial


def test_parallel_tool_calls_that_all_have_index_0_are_several_by_their_ids() -> None:
    uses = [
        {"index": 0, "id": one, "function": {"name": "f", "arguments": f'["{one}"]'}} for one in ("a", "b")
    ]
    (message,) = messages(of(chunk(tool_calls=uses[:1]), chunk(tool_calls=uses[1:])))
    assert [use["function"]["arguments"] for use in message["tool_calls"]] == ['["a"]', '["b"]']


def test_a_giant_index_takes_no_memory() -> None:
    (message,) = messages(of(chunk(tool_calls=[{"index": 10**12, "function": {"arguments": "{}"}}])))
    assert message["tool_calls"] == [{"function": {"arguments": "{}"}}]


def test_reasoning_in_typed_pieces_repeats_its_labels_and_not_its_text() -> None:
    pieces = [{"type": "reasoning.text", "format": "f1", "index": 0, "text": text} for text in ("ab", "cd")]
    (message,) = messages(of(chunk(reasoning_details=pieces[:1]), chunk(reasoning_details=pieces[1:])))
    assert message["reasoning_details"] == [{"type": "reasoning.text", "format": "f1", "text": "abcd"}]


def test_ids_and_logprobs_of_chunks_are_laid_end_to_end() -> None:
    def sampled(ids: list[int], *logprobs: Any) -> dict[str, Any]:
        content = [{"token": str(one), "logprob": one} for one in logprobs]
        choice = {"index": 0, "delta": {"content": "x"}, "token_ids": ids, "logprobs": {"content": content}}
        return {"choices": [choice], "prompt_token_ids": [7, 8]}

    answer = of(sampled([1, 2], -0.5, -9999.0), sampled([3], -0.25))
    (choice,) = answer.choices
    assert (choice.token_ids, answer.prompt_token_ids) == ([1, 2, 3], [7, 8])
    assert choice.logprobs is not None
    assert choice.logprobs.json() == [-0.5, -9999.0, -0.25]
    # One logprob is missing: none of them is given to an id. They stay as the server gave them.
    (choice,) = of(sampled([1, 2], -0.5, -1.0), sampled([3])).choices
    assert (choice.token_ids, choice.logprobs) == ([1, 2, 3], None)
    assert len(choice.top_logprobs["content"]) == 2


def test_tokens_that_are_spelled_as_ids_are_ids() -> None:
    content = [{"token": "token_id:5", "logprob": -1}, {"token": "token_id:0", "logprob": None}]
    (choice,) = of({"choices": [{"delta": {"content": "ab"}, "logprobs": {"content": content}}]}).choices
    assert choice.token_ids == [5, 0]
    assert choice.logprobs is not None
    assert choice.logprobs.json() == [-1.0, None]


def test_infinite_logprobs_are_what_they_are() -> None:
    text = '{"choices": [{"message": {"content": "a"}, "token_ids": [1, 2, 3], "logprobs": {"content": ['
    text += '{"logprob": -Infinity}, {"logprob": NaN}, {"logprob": -9999}]}}]}'
    answer = answered(text)
    assert answer is not None
    assert answer.choices[0].logprobs is not None
    assert [str(one) for one in answer.choices[0].logprobs.array] == ["-inf", "nan", "-9999.0"]


@pytest.mark.parametrize("ids", [[1, -1], [2**31], [1.5], ["1"], [True], []])
def test_what_are_no_ids_is_kept_and_is_no_ids(ids: list[Any]) -> None:
    answer = of({"choices": [{"index": 0, "delta": {"content": "x"}, "token_ids": ids}]})
    assert answer.choices[0].token_ids is None
    assert json.dumps(ids) in json.dumps(answer.rest)


def test_the_last_usage_counts_and_earlier_ones_stay_with_their_chunks() -> None:
    counts = [{"usage": {"prompt_tokens": 2, "completion_tokens": n}, "choices": []} for n in (1, 2)]
    answer = of(chunk(content="x"), *counts)
    assert answer.usage == Usage(prompt_tokens=2, completion_tokens=2)
    assert {"usage": {"prompt_tokens": 2, "completion_tokens": 1}} in answer.rest["chunks"]


def test_what_is_told_whole_and_then_otherwise_is_kept_both_ways() -> None:
    answer = of(chunk(role="assistant"), chunk(role="tool", content="x"), {"choices": [], "model": "other"})
    assert messages(answer) == [{"role": "tool", "content": "x"}]
    assert "assistant" in json.dumps(answer.rest)
    assert answer.model == "m"
    assert "other" in json.dumps(answer.rest)


def test_a_stream_that_was_cut_gives_what_came_marked_partial() -> None:
    answer = of(chunk(role="assistant", content="on"), '{"choices": [{"index": 0, "del')
    assert messages(answer) == [{"role": "assistant", "content": "on"}]
    assert answer.choices[0].partial
    assert answer.rest["unread"] == ['{"choices": [{"index": 0, "del']
    assert not of(chunk(content="all"), "[DONE]").choices[0].partial


def test_texts_of_the_completions_api_are_texts() -> None:
    pieces = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in ("on", "ce")]
    answer = of(*pieces, {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
    assert (answer.dialect, messages(answer)) == ("text", ["once"])
    body = whole({"id": "x", "choices": [{"text": "once", "index": 0, "finish_reason": "stop"}]})
    assert body is not None
    assert (body.dialect, messages(body)) == ("text", ["once"])


def test_an_error_in_a_stream_is_its_error_and_what_came_before_stays() -> None:
    answer = of(chunk(content="ha"), {"error": {"message": "too busy"}})
    assert answer.error == {"message": "too busy"}
    assert (messages(answer), answer.choices[0].partial) == ([{"content": "ha"}], True)
    alone = of({"error": {"message": "no"}})
    assert (alone.error, alone.choices) == ({"message": "no"}, [])


def cuts(text: str, data: st.DataObject) -> list[str]:
    places = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@given(st.text(min_size=1), st.data())
def test_wherever_a_stream_is_cut_into_pieces_the_answer_is_the_same(text: str, data: st.DataObject) -> None:
    pieces = cuts(text, data)
    chat = of(*(chunk(content=piece) for piece in pieces), chunk(reason="stop"))
    assert messages(chat) == [{"content": text}]
    blocks = [{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}]
    blocks += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
        for piece in pieces
    ]
    assert messages(of(*blocks))[0]["content"] == [{"type": "text", "text": text}]
    added = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}}
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": piece} for piece in pieces]
    assert messages(of(added, *deltas))[0][0]["content"] == [{"type": "output_text", "text": text}]


@given(st.dictionaries(st.text(), st.integers() | st.text()), st.data())
def test_arguments_in_any_pieces_are_the_text_that_was_sent(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value, indent=1)
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    events = [{"type": "content_block_start", "index": 0, "content_block": use}]
    for piece in cuts(text, data):
        delta = {"type": "input_json_delta", "partial_json": piece}
        events.append({"type": "content_block_delta", "index": 0, "delta": delta})
    assert of(*events).choices[0].message["content"][0]["input"] == text.encode()


# --- OpenAI Responses ------------------------------------------------------------------------------

RESPONSE = {
    "id": "r1",
    "object": "response",
    "model": "m",
    "status": "completed",
    "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
    "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
}


def test_the_last_event_of_a_response_has_the_whole() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "hi"}
    answer = of(delta, {"type": "response.completed", "response": RESPONSE, "sequence_number": 2})
    assert messages(answer) == [RESPONSE["output"]]
    assert (answer.choices[0].finish_reason, answer.choices[0].partial) == ("completed", False)
    assert answer.usage == Usage(prompt_tokens=5, completion_tokens=2)
    assert answer.rest["events"] == [delta, {"type": "response.completed", "sequence_number": 2}]


def test_a_response_that_was_cut_is_what_its_deltas_amount_to() -> None:
    use = {"type": "function_call", "call_id": "t", "name": "f", "arguments": ""}
    answer = of(
        {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}},
        {
            "type": "response.reasoning_summary_text.delta",
            "output_index": 0,
            "summary_index": 0,
            "delta": "hm",
        },
        {"type": "response.output_item.added", "output_index": 1, "item": use},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a": '},
        {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "[1"},
    )
    assert messages(answer) == [
        [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "t", "name": "f", "arguments": '{"a": [1'},
        ]
    ]
    assert (answer.choices[0].partial, answer.choices[0].finish_reason) == (True, None)
    assert (answer.provider_id, answer.model) == ("r1", "m")


def test_a_response_says_how_it_ended() -> None:
    short = whole({**RESPONSE, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}})
    assert short is not None
    assert (short.choices[0].finish_reason, short.choices[0].partial) == ("length", False)
    failed = whole({**RESPONSE, "status": "failed", "error": {"code": "server_error"}, "output": []})
    assert failed is not None
    assert (failed.error, failed.choices) == ({"code": "server_error"}, [])
    odd = whole({**RESPONSE, "incomplete_details": "none"})
    assert odd is not None
    assert odd.choices[0].finish_reason == "completed"


# --- Anthropic Messages ----------------------------------------------------------------------------


def start(**fields: Any) -> dict[str, Any]:
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "c", "content": []}
    usage = {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}
    return {"type": "message_start", "message": {**message, "usage": usage, **fields}}


def block(index: int, deltas: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": fields},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


END = [
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
]
THOUGHT = block(
    0,
    [
        {"type": "thinking_delta", "thinking": "let "},
        {"type": "thinking_delta", "thinking": "me"},
        {"type": "signature_delta", "signature": "sig=="},
    ],
    type="thinking",
    thinking="",
    signature="",
)


def use(*pieces: str) -> list[dict[str, Any]]:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return block(1, deltas, type="tool_use", id="t1", name="look", input={})


def test_thinking_and_a_tool_use_in_pieces_are_blocks_of_one_message() -> None:
    answer = of(start(), *THOUGHT, {"type": "ping"}, *use("", '{"at":', " 1.50}"), *END)
    (choice,) = answer.choices
    assert raw(choice.message) == (
        b'{"role":"assistant","content":[{"type":"thinking","thinking":"let me","signature":"sig=="},'
        b'{"type":"tool_use","id":"t1","name":"look","input":{"at": 1.50}}]}'
    )
    assert (choice.finish_reason, choice.partial) == ("tool_use", False)
    # 10 read + 5 from cache = 15; the output of message_delta replaces the one of the start.
    assert answer.usage == Usage(prompt_tokens=15, cached_tokens=5, completion_tokens=9)
    assert answer.rest == {"chunks": [{"replaced": {"usage": {"output_tokens": 1}}}]}


def test_tool_input_that_ended_early_stays_the_text_that_came() -> None:
    answer = of(start(), *use('{"name": "taxes', '", "lines": ["a",\n'), *END)
    assert messages(answer)[0]["content"][0]["input"] == '{"name": "taxes", "lines": ["a",\n'
    # The message itself is complete: it was stopped by its limit.
    assert not answer.choices[0].partial


def test_tool_input_with_what_is_no_json_number_is_still_an_event() -> None:
    answer = of(start(), *use('{"a": NaN}'), *END)
    assert messages(answer)[0]["content"][0]["input"] == {"a": "NaN"}
    deep = "[" * 300 + "]" * 300
    assert messages(of(start(), *use(deep), *END))[0]["content"][0]["input"] == deep


def test_a_compaction_is_a_block_of_the_answer() -> None:
    summary = block(0, [{"type": "compaction_delta", "content": "so far"}], type="compaction", content=None)
    (message,) = messages(of(start(), *summary, *END))
    assert message["content"] == [{"type": "compaction", "content": "so far"}]


def test_citations_are_gathered_and_deltas_of_unknown_kinds_are_kept() -> None:
    deltas: list[dict[str, Any]] = [
        {"type": "text_delta", "text": "x", "extra": 1},
        {"type": "citations_delta", "citation": {"n": 1}},
        {"type": "citations_delta", "citation": {"n": 2}},
        {"type": "new_delta", "new": "thing"},
    ]
    answer = of(start(), *block(0, deltas, type="text", text=""), *END)
    assert messages(answer)[0]["content"] == [
        {"type": "text", "text": "x", "citations": [{"n": 1}, {"n": 2}]}
    ]
    kept = json.dumps(answer.rest)
    assert '"delta": {"extra": 1}' in kept
    assert '{"type": "new_delta", "new": "thing"}' in kept


def test_an_error_event_fails_the_message_and_keeps_what_came() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "later"}, "request_id": "q"}
    answer = of(start(), *THOUGHT, error)
    assert answer.error == {"type": "overloaded_error", "message": "later"}
    assert answer.choices[0].partial
    assert messages(answer)[0]["content"][0]["thinking"] == "let me"
    assert "q" in json.dumps(answer.rest)


def test_a_message_without_its_end_is_partial() -> None:
    answer = of(start(), *THOUGHT[:2])
    assert messages(answer)[0]["content"] == [{"type": "thinking", "thinking": "let ", "signature": ""}]
    assert (answer.choices[0].partial, answer.choices[0].finish_reason) == (True, None)


def test_a_message_that_the_server_gave_up_is_kept_beside_the_one_that_replaced_it() -> None:
    answer = of(start(id="first"), *THOUGHT, *use('{"a":')[:2], start(id="second"), *use("{}"), *END)
    assert answer.provider_id == "second"
    assert [one["type"] for one in messages(answer)[0]["content"]] == ["tool_use"]
    (given_up,) = [one["given_up"] for one in answer.rest["chunks"] if "given_up" in one]
    assert given_up["id"] == "first"
    assert given_up["content"][1]["input"] == '{"a":'


def test_a_recorded_stream_with_truncated_tool_json_keeps_it_as_sent() -> None:
    text = fixture(f"{SDK_STREAMS}incomplete_partial_json_response.txt").read_text()
    answer = answered(text)
    assert answer is not None
    arguments = answer.choices[0].message["content"][1]["input"]
    assert isinstance(arguments, str)
    assert arguments.startswith('{"filename": "taxes.txt", "lines_of_text": [\n"# COMPREHENSIVE TAX GUIDE')
    assert arguments.endswith('\n"Filing taxes')
    assert answer.choices[0].finish_reason == "max_tokens"


def test_a_recorded_stream_that_its_reader_left_early_is_complete_where_the_server_sent_its_end() -> None:
    text = fixture(f"{OTEL}test_chat_completion_streaming_not_complete.yaml").read_text()
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("data: ")]
    complete = answered("\n\n".join(lines))
    cut = answered("\n\n".join(lines[:-2]))
    assert complete is not None
    assert cut is not None
    assert messages(complete) == messages(cut)
    assert [one.choices[0].partial for one in (complete, cut)] == [False, True]


# --- Gemini ----------------------------------------------------------------------------------------


def candidate(text: str, **fields: Any) -> dict[str, Any]:
    content = {"role": "model", "parts": [{"text": text}]}
    counts = {"promptTokenCount": 4, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 9}
    return {
        "candidates": [{"content": content, "index": 0, **fields}],
        "modelVersion": "g",
        "usageMetadata": counts,
    }


def test_parts_of_gemini_chunks_follow_each_other() -> None:
    chunks = [candidate("a"), candidate("b", finishReason="STOP")]
    for answer in (of(*chunks), answered(json.dumps(chunks)), answered(json.dumps(chunks).encode())):
        assert answer is not None
        assert messages(answer) == [{"role": "model", "parts": [{"text": "a"}, {"text": "b"}]}]
        assert (answer.choices[0].finish_reason, answer.choices[0].partial) == ("STOP", False)
        # 3 said and 2 thought are 5 sampled.
        assert answer.usage == Usage(prompt_tokens=4, completion_tokens=5, reasoning_tokens=2)
    assert of(chunks[0]).choices[0].partial


def test_a_gemini_answer_that_was_blocked_has_no_message() -> None:
    blocked = whole({"promptFeedback": {"blockReason": "SAFETY"}})
    assert blocked is not None
    assert (blocked.choices, blocked.rest) == (
        [],
        {"promptFeedback": {"blockReason": "SAFETY"}},
    )
    silent = whole({"candidates": [{"finishReason": "SAFETY"}]})
    assert silent is not None
    assert (silent.choices[0].message, silent.choices[0].finish_reason) == (None, "SAFETY")


# --- Anything else ---------------------------------------------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "index", "type", "message", "usage", "content", "candidates", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(junk, st.lists(junk, max_size=4))
def test_values_of_other_shapes_are_no_answer_or_one_and_never_an_accident(body: Any, events: Any) -> None:
    whole(body)
    streamed(json.dumps(event) for event in events)


def test_a_body_of_no_known_kind_is_no_answer() -> None:
    bodies: list[Any] = [None, [], {}, "x", {"data": []}, {"object": "list"}]
    for body in bodies:
        assert whole(body) is None
    assert streamed(['{"some": "event"}', "text"]) is None
