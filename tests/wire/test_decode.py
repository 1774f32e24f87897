"""A posted event is read exactly, or refused with a message that names the field and says what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.events import any_events, spelled
from tests.wire.grammar import Spelling, spellings, texts
from tracestore.wire.base import Raw
from tracestore.wire.call import Call
from tracestore.wire.completion import Completion
from tracestore.wire.decode import OPAQUE, decode_body, decode_event, opaque_fields
from tracestore.wire.errors import BodyError, BodyTooLarge, EventError
from tracestore.wire.events import KINDS, MODELS, AnyEvent
from tracestore.wire.limits import Limits
from tracestore.wire.scan import SPAN, Each

CALL = '"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"a"'
GAP = b'{"v":1,"kind":"gap","id":"g","episode_id":"e","cause":"x"}'


# what is read


@settings(max_examples=50)
@given(any_events, spellings)
def test_an_event_is_read_whatever_its_spelling(event: AnyEvent, spell: Spelling) -> None:
    try:
        read = decode_event(spelled(event, spell).encode())
    except EventError as error:
        assert "declared" in error.problem  # noqa: PT017 - NaN logprobs without a declaration
        assert getattr(event, "non_finite", None) is not True
    else:
        assert repr(read) == repr(event)


@settings(max_examples=50)
@given(texts(), texts(), texts(), spellings)
def test_every_span_is_the_bytes_that_were_posted(
    request: bytes, message: bytes, meta: bytes, spell: Spelling
) -> None:
    space = spell.space
    body = f'{space()}{{"completions":{space()}[{{}}{spell.comma()}{{"message":{space()}'.encode() + message
    body += (
        f'{space()}}}]{spell.comma()}"meta"{space()}:'.encode() + meta + f"{spell.comma()}{CALL},".encode()
    )
    body += b'"request":' + request + f"{space()}}}{space()}".encode()
    event = decode_event(body)
    assert isinstance(event, Call)
    assert event.completions
    found = [event.request, event.completions[1].message, event.meta]
    assert [None if span is None else bytes(span) for span in found] == [
        None if text == b"null" else text for text in (request, message, meta)
    ]


def test_opaque_fields_are_those_typed_raw_nested_ones_included() -> None:
    assert opaque_fields(Call) == {
        "meta": SPAN,
        "request": SPAN,
        "completions": Each({"message": SPAN, "top_logprobs": SPAN}),
    }
    for kind in KINDS:
        assert opaque_fields(MODELS[kind]).items() <= OPAQUE.items()


def test_a_null_span_is_the_absent_value() -> None:
    assert decode_event(f'{{{CALL},"request":null}}'.encode()).request is None  # type: ignore[union-attr]
    assert Call(id="c", episode_id="e", agent_id="a", request=Raw(b"null")).request is None


def test_floats_are_exact_and_odd_text_survives_in_the_envelope() -> None:
    reward = decode_event(
        rb'{"v":1,"kind":"reward","id":"r","target":{"episode_id":"e"},"name":"\u0000\ud83d","value":0.1,"weight":-0}'
    )
    assert (reward.name, reward.value, str(reward.weight)) == ("\x00\ud83d", 0.1, "-0.0")  # type: ignore[union-attr]


def test_logprobs_take_sentinels_nulls_and_declared_constants() -> None:
    answer = '"completions":[{"token_ids":[1,2,3,4,5],"logprobs":[-9999,-100.0,null,-Infinity,-0]}]'
    event = decode_event(f'{{{CALL},{answer},"non_finite":true}}'.encode())
    logprobs = event.completions[0].logprobs  # type: ignore[union-attr,index]
    assert str(logprobs.json()) == "[-9999.0, -100.0, None, -inf, -0.0]"
    late = b'{"v":1,"kind":"completion","id":"k","episode_id":"e","call_id":"c","index":0,"token_ids":[1],'
    found = decode_event(late + b'"logprobs":[NaN],"non_finite":true}')
    assert isinstance(found, Completion)


# what is refused


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        # envelope
        ('"kind":"call","id":"c"', 'v: .*states its wire version: "v": 1'),
        ('"v":2,"kind":"call","id":"c"', "v: .*v='2'; this server reads v = 1"),
        ('"v":true,"kind":"call","id":"c"', "v: .*v='true'"),
        ('"v":1.0,"kind":"call","id":"c"', "v: .*v='1.0'"),
        ('"v":1,"id":"c"', "kind: .*the kinds are group, episode"),
        ('"v":1,"kind":"tool_cal","id":"c"', "kind: .*did you mean 'tool_call'"),
        ('"v":1,"kind":["call"],"id":"c"', "kind: .*'array of 1'"),
        ('"v":1,"kind":"call"', "id: .*needs an id made by its sender"),
        ('"v":1,"kind":"call","id":7', "id: .*an id is a string"),
        ('"v":1,"kind":"call","id":""', "id: .*1-128 bytes"),
        (f'"v":1,"kind":"call","id":"{"é" * 65}"', "id: .*this one has 130"),
        ('"v":1,"kind":"call","id":"a\\nb"', "id: .*no control characters"),
        ('"v":1,"kind":"call","id":"\\ud83d"', "id: .*lone surrogate"),
        # fields
        (f'{CALL},"mesages":[]', "mesages: No such field; fields of your own go under meta"),
        (f'{CALL},"messages":[]', "messages: .*a part of request.*; fields of your own go under meta"),
        (
            f'{CALL},"prompt_tokens_ids":[]',
            "did you mean 'prompt_token_ids'. fields of your own go under meta",
        ),
        (f'{CALL},"completions":[{{}},{{"mesage":1}}]', r"completions\[1\].mesage: .*did you mean 'message'"),
        ('"v":1,"kind":"call","id":"c","episode_id":"e"', "agent_id: A required field is missing"),
        (f'{CALL},"ordinal":"1"', "ordinal: .*found='1'; it should be a valid integer"),
        (f'{CALL},"ordinal":-1', "ordinal: .*greater than or equal to 0"),
        (f'{CALL},"started_at":{10**30}', "started_at: .*less than"),
        (f'{CALL},"started_at":{"1" * 5000}', "started_at: .*thousands of digits"),
        (f'{CALL},"started_at":{"1" * 4000}', "started_at: .*over 40 digits"),
        (f'{CALL},"status":"okay"', "status: .*did you mean 'ok'"),
        (f'{CALL},"usage":{{"cost_usd":1e400}}', "usage: .*1e400.*beyond float64"),
        (f'{CALL},"context":"delta"', "needs parent_call_id"),
        (f'{CALL},"parent_call_id":"c"', "its own parent"),
        (f'{CALL},"completions":{{}}', "completions: "),
        (f'{CALL},"task":1,"extra":2', "fields=2.*task: No such field.*extra: No such field"),
        # arrays
        (f'{CALL},"prompt_token_ids":[1,-2]', r"prompt_token_ids: .*\[0, 2\^31\); position 1 holds -2"),
        (f'{CALL},"prompt_token_ids":[1,2147483648]', "position 1 holds 2147483648"),
        (f'{CALL},"prompt_token_ids":[1,1.0]', "position 1 holds 1.0"),
        (f'{CALL},"prompt_token_ids":[true]', "position 0 holds True"),
        (f'{CALL},"prompt_token_ids":[{"9" * 4000}]', "position 0 holds 9999"),
        (f'{CALL},"prompt_token_ids":{{"dtype":"int64","base64":""}}', "binary arrays are"),
        (f'{CALL},"prompt_token_ids":{{"dtype":"int32","base64":"AAA="}}', "2 bytes are no whole number"),
        (f'{CALL},"prompt_token_ids":{{"dtype":"int32","base64":"é"}}', "prompt_token_ids: "),
        (f'{CALL},"prompt_token_ids":{{"dtype":"int32","base64":"/////w=="}}', "position 0 holds -1"),
        (
            f'{CALL},"completions":[{{"token_ids":[1,2],"logprobs":[-1]}}]',
            r"completions\[0\]: .*1 logprobs for 2",
        ),
        (f'{CALL},"completions":[{{"logprobs":[-1]}}]', r"completions\[0\]: .*logprobs without token_ids"),
        (f'{CALL},"completions":[{{"token_ids":[1],"logprobs":["-1"]}}]', r"\[0\].logprobs: .*position 0"),
        (
            f'{CALL},"completions":[{{"token_ids":[1],"logprobs":[1{"0" * 400}]}}]',
            r"\[0\].logprobs: .*float64",
        ),
        (
            f'{CALL},"completions":[{{"token_ids":[1],"logprobs":[1e400]}}]',
            r"\[0\].logprobs: .*beyond float64",
        ),
        # declared or not
        (
            f'{CALL},"completions":[{{"token_ids":[1],"logprobs":[NaN]}}]',
            r"\[0\].logprobs: NaN.*\"non_finite\": true",
        ),
        (f'{CALL},"request":{{"a":[Infinity]}}', "request: NaN or Infinity.*found='Infinity'"),
        (f'{CALL},"request":{{"a":NaN}},"non_finite":false', "request: NaN or Infinity"),
        (f'{CALL},"usage":{{"cost_usd":NaN}},"non_finite":true', "usage.cost_usd: .*finite"),
        (
            '"v":1,"kind":"reward","id":"r","target":{"episode_id":"e"},"name":"x","value":NaN',
            "value: NaN.*a reward holds finite numbers only",
        ),
        # structure
        (f'{CALL},"request":{{"a":1,"b":{{"c":1,"c":1}}}}', "request: .*twice: key='c'"),
        (f'{CALL},"completions":[{{"message":1,"message":1}}]', r"completions\[0\]: .*twice: key='message'"),
        (f'{CALL},"id":"d"', "twice: key='id'"),
        (f'{CALL},"request":{"[" * 200}{"]" * 200}', "depth=201, limit=200"),
    ],
)
def test_a_bad_event_is_refused_with_its_field_and_what_to_do(fields: str, problem: str) -> None:
    with pytest.raises(EventError, match=problem) as caught:
        decode_event(f"{{{fields}}}".encode())
    assert caught.value.status == 422
    assert "pydantic" not in caught.value.problem
    assert "union" not in caught.value.problem


@pytest.mark.parametrize("text", [b"[]", b"1", b'"call"', b"null", b"true"])
def test_an_event_is_an_object(text: bytes) -> None:
    with pytest.raises(EventError, match="one JSON object"):
        decode_event(text)


# bodies


def test_the_mates_of_a_bad_line_are_read() -> None:
    bad = b'{"v":1,"kind":"gap","id":"bad","episode_id":"e","cause":}'
    body = b"\n".join([GAP, bad, b"", b"  ", b"\xff", GAP + b"\r", b"[" * 5000, GAP])
    found = decode_body(body, content_type="application/x-ndjson")
    assert [one.index for one in found] == [0, 1, 2, 3, 4, 5]
    assert [one.event is not None for one in found] == [True, False, False, True, False, True]
    assert [(one.kind, one.id) for one in found][:3] == [("gap", "g"), ("gap", "bad"), (None, None)]
    assert found[3].text == GAP


@given(st.lists(st.sampled_from([GAP, b'{"v":1}', b"{", b"7", b'{"a":"\\n"}']), min_size=1, max_size=6))
def test_an_ndjson_body_has_one_answer_a_line(lines: list[bytes]) -> None:
    found = decode_body(b"\n".join(lines), content_type="application/x-ndjson; charset=utf-8")
    assert [one.text for one in found] == lines
    assert [one.error is None for one in found] == [line == GAP for line in lines]


def test_an_array_is_cut_into_its_events_and_a_bad_one_fails_alone() -> None:
    deep = (
        b'{"v":1,"kind":"gap","id":"deep","episode_id":"e","cause":"x","meta":'
        + b"[" * 250
        + b"]" * 250
        + b"}"
    )
    twice = GAP.replace(b'"v":1', b'"v":1,"v":1')
    found = decode_body(b" [ " + b"\n,".join([GAP, deep, twice, b"3", GAP]) + b" ]\n")
    assert [one.text for one in found] == [GAP, deep, twice, b"3", GAP]
    assert [one.event is not None for one in found] == [True, False, False, False, True]
    assert [one.id for one in found] == ["g", "deep", "g", None, "g"]
    assert decode_body(b"[]") == []


@pytest.mark.parametrize(
    "body",
    [
        b"[" + GAP,
        b"[" + GAP + b",]",
        b"[" + GAP + b"]x",
        b"[,]",
        b"[" + GAP + b" " + GAP + b"]",
        b"[\xff]",
        b"[" * 9000,
    ],
)
def test_a_malformed_array_stores_nothing(body: bytes) -> None:
    with pytest.raises(BodyError, match="nothing of it was stored; the array cannot be read: ") as caught:
        decode_body(body, content_type="application/json")
    assert caught.value.status == 400


@pytest.mark.parametrize("body", [b"", b" \n\n"])
@pytest.mark.parametrize("content_type", [None, "application/json", "application/x-ndjson"])
def test_an_empty_body_says_what_to_post(body: bytes, content_type: str | None) -> None:
    with pytest.raises(BodyError, match="the body is empty"):
        decode_body(body, content_type=content_type)


@pytest.mark.parametrize(
    "content_type", [None, "application/json", "text/plain", "application/x-www-form-urlencoded"]
)
def test_one_pretty_printed_event_is_one_event(content_type: str | None) -> None:
    pretty = json.dumps(json.loads(GAP), indent=2).encode()
    assert [one.id for one in decode_body(pretty, content_type=content_type)] == ["g"]


@pytest.mark.parametrize("content_type", [None, "text/plain"])
def test_lines_are_told_from_one_object_without_a_content_type(content_type: str | None) -> None:
    assert [one.id for one in decode_body(GAP + b"\n" + GAP + b"\n", content_type=content_type)] == ["g", "g"]


def test_several_objects_posted_as_json_are_told_about_ndjson() -> None:
    (one,) = decode_body(GAP + b"\n" + GAP, content_type="application/json")
    assert one.error is not None
    assert "application/x-ndjson" in one.error.problem


def test_limits_hold_for_events_and_bodies() -> None:
    limits = Limits(max_event_bytes=len(GAP), max_body_bytes=400, max_events=3)
    large = GAP.replace(b'"x"', b'"xx"')
    found = decode_body(GAP + b"\n" + large, limits=limits)
    assert found[0].event is not None
    assert found[1].error is not None
    assert (found[1].error.status, found[1].kind, found[1].id) == (413, "gap", "g")
    assert "blobs" in found[1].error.problem
    with pytest.raises(BodyTooLarge, match="limit=3"):
        decode_body(b"1\n2\n3\n4", content_type="application/x-ndjson", limits=limits)
    with pytest.raises(BodyTooLarge, match="limit=400") as caught:
        decode_body(b" " * 401, limits=limits)
    assert caught.value.status == 413


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_no_body_whatever_breaks_the_reader(body: bytes) -> None:
    for content_type in (None, "application/json", "application/x-ndjson"):
        try:
            found: list[Any] = decode_body(body, content_type=content_type)
        except BodyError:
            continue
        assert all((one.event is None) != (one.error is None) for one in found)


def test_a_body_of_nothing_but_line_breaks_and_digits_is_refused_early() -> None:
    for body, content_type in (
        (b"1\n" * 1_000_000, "application/x-ndjson"),
        (b"[" + b"1," * 1_000_000 + b"1]", "application/json"),
    ):
        with pytest.raises(BodyTooLarge, match="limit=10000"):
            decode_body(body, content_type=content_type)
