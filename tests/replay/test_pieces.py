"""Law: a replayed stream says what was recorded in the same pieces, and laid together they are the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.proxy import dialects as d
from tests.fixtures import fixture
from tests.replay.conversations import recorded_of
from tests.replay.test_answers import ASK, facts
from tests.replay.test_cases import SDK_STREAMS
from tracestore.importers.exchanges import answered
from tracestore.importers.streams import sent
from tracestore.replay.answers import body_of, recorded_cuts
from tracestore.replay.pieces import pieces_of
from tracestore.replay.streams import stream_of
from tracestore.replay.tape import Recorded
from tracestore.wire.base import Raw

TEXTS = st.lists(st.text(max_size=4), max_size=5)
HALVES = st.sampled_from([["\ud83d", "\ude42"], ["a\ud83d", "\ude42b"], ["\ud83d", "x"]])
"""An emoji that a server cut in two, and half of one that nothing follows."""
PIECES = st.lists(st.one_of(TEXTS, HALVES), max_size=3).map(
    lambda some: [one for part in some for one in part]
)
ARGUMENTS = st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=3)), max_size=2)


def stream(recorded: Recorded, **how: Any) -> bytes:
    dialect = recorded.call.dialect
    return b"".join(stream_of(body_of(recorded), dialect, cut=recorded_cuts(recorded.call), **how))


def data_of(text: bytes) -> list[Any]:
    return [json.loads(one.data) for one in sent(text.decode()) if one.data != "[DONE]"]


def deltas_of(events: Sequence[Any]) -> list[Any]:
    """What the chunks of a chat stream say, by choice."""
    return [
        [(one["index"], one["delta"], one["finish_reason"]) for one in event["choices"]] for event in events
    ]


def cut(text: str, at: Sequence[int]) -> list[str]:
    ends = sorted({min(one, len(text)) for one in at})
    return [text[first:last] for first, last in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(
    contents=PIECES,
    thoughts=TEXTS,
    uses=st.lists(st.tuples(ARGUMENTS, st.lists(st.integers(0, 20), max_size=3)), max_size=2),
    order=st.randoms(use_true_random=False),
)
def test_a_chat_stream_comes_again_in_its_pieces(
    contents: list[str], thoughts: list[str], uses: Any, order: Any
) -> None:
    said = [d.chunk({"content": one}) for one in contents]
    said += [d.chunk({"reasoning_content": one}) for one in thoughts]
    order.shuffle(said)
    for place, (arguments, at) in enumerate(uses):
        first, *others = cut(json.dumps(arguments), at)
        use = {"index": place, "id": f"t{place}", "type": "function"}
        said.append(d.chunk({"tool_calls": [{**use, "function": {"name": "f", "arguments": first}}]}))
        said += [
            d.chunk({"tool_calls": [{"index": place, "function": {"arguments": one}}]}) for one in others
        ]
    chunks = [d.chunk({"role": "assistant", "content": ""}), *said, d.chunk({}, reason="stop")]
    # As a server writes it: half an emoji is an escape.
    text = b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in chunks) + b"data: [DONE]\n\n"
    recorded = recorded_of("openai_chat", ASK["openai_chat"], text)
    again = stream(recorded)
    assert deltas_of(data_of(again)) == deltas_of(chunks)
    assert facts(answered(again)) == facts(answered(text))


@given(contents=PIECES.filter(bool), arguments=ARGUMENTS, at=st.lists(st.integers(0, 20), max_size=3))
def test_an_anthropic_stream_comes_again_in_its_pieces(
    contents: list[str], arguments: Any, at: list[int]
) -> None:
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    blocks: list[tuple[Any, list[Any]]] = [
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": one} for one in contents]),
        (use, [{"type": "input_json_delta", "partial_json": one} for one in cut(json.dumps(arguments), at)]),
    ]
    events: list[Any] = [
        {"type": "message_start", "message": d.ANTHROPIC | {"content": []}},
        {"type": "ping"},
    ]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}}
    )
    events.append({"type": "message_stop"})
    text = b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events)
    recorded = recorded_of("anthropic_messages", ASK["anthropic_messages"], text)
    again = stream(recorded)
    kinds = ("message_start", "message_delta")
    assert [one for one in data_of(again) if one["type"] not in kinds] == [
        one for one in events if one["type"] not in kinds
    ]
    assert [one["type"] for one in data_of(again)] == [one["type"] for one in events]
    assert facts(answered(again)) == facts(answered(text))


def test_ids_and_logprobs_come_with_the_pieces_that_they_are_of() -> None:
    def token(id_: int, text: str, logprob: float) -> dict[str, Any]:
        content = [{"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}]
        return d.chunk({"content": text}, token_ids=[id_], logprobs={"content": content})

    chunks = [token(4, "I", -0.5), token(5, "ch", -1.25), d.chunk({}, reason="stop")]
    chunks[0]["prompt_token_ids"] = [1, 2]
    recorded = recorded_of("openai_chat", ASK["openai_chat"], d.events(*chunks, done=True))
    told = data_of(stream(recorded))
    names = ("token_ids", "logprobs")
    assert [[one["choices"][0].get(name) for name in names] for one in told] == [
        [one["choices"][0].get(name) for name in names] for one in chunks
    ]
    assert [one.get("prompt_token_ids") for one in told] == [[1, 2], None, None]


def test_the_usage_comes_where_it_came_and_only_to_those_who_ask_for_it() -> None:
    usage = {"choices": [], "usage": d.USAGE}
    chunks = [d.chunk({"content": "Ich"}, reason="stop"), usage | {"id": "c1", "model": "m-1"}]
    recorded = recorded_of("openai_chat", ASK["openai_chat"], d.events(*chunks, done=True))
    assert [one.get("usage") for one in data_of(stream(recorded))] == [None, d.USAGE]
    assert [one.get("usage") for one in data_of(stream(recorded, with_usage=False))] == [None]
    # The place of the event stays, for those who know when each came.
    body, found = body_of(recorded), recorded_cuts(recorded.call)
    assert len(list(stream_of(body, "openai_chat", cut=found, with_usage=False))) == 3


@pytest.mark.parametrize(
    "name", ["basic_response.txt", "tool_use_response.txt", "incomplete_partial_json_response.txt"]
)
def test_recorded_anthropic_streams_come_again_event_by_event(name: str) -> None:
    text = fixture(f"{SDK_STREAMS}{name}").read_bytes()
    events = data_of(text)
    told = data_of(stream(recorded_of("anthropic_messages", ASK["anthropic_messages"], text)))
    kept = [one for one in events if one["type"].startswith("content_block")]
    assert [one for one in told if one["type"].startswith("content_block")] == kept
    assert [one["type"] for one in told] == [one["type"] for one in events]


def test_an_answer_that_was_changed_since_goes_out_in_one_piece() -> None:
    recorded = recorded_of("openai_chat", ASK["openai_chat"], d.CHAT_STREAM)
    answer = recorded.completions[0].model_copy(
        update={"message": Raw(b'{"role":"assistant","content":"[redacted]"}')}
    )
    changed = replace(recorded, completions=(answer,))
    found = recorded_cuts(changed.call)
    assert found is not None
    assert pieces_of(body_of(changed), "openai_chat", found) is None
    told = answered(stream(changed))
    assert told is not None
    assert told.choices[0].message == {"role": "assistant", "content": "[redacted]"}
