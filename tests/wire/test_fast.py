"""The law of the fast path: with it and without it a text is the same event, or refused in the same words."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.wire.events import any_events, events, spelled
from tests.wire.grammar import Spelling, spellings
from tests.wire.tampered import ODD_VALUES, ordinary, seeds, tampered
from tracestore.wire import decode
from tracestore.wire.base import Raw
from tracestore.wire.decode import SpanMemory, decode_body, decode_event, exact_event
from tracestore.wire.encode import encode
from tracestore.wire.errors import BodyError, DuplicateKey, EventError
from tracestore.wire.events import KINDS, AnyEvent
from tracestore.wire.fast import fast_event
from tracestore.wire.limits import LIMITS, Limits

NDJSON, JSON = "application/x-ndjson", "application/json"
CALL = b'{"v":1,"kind":"call","id":"c","episode_id":"e","agent_id":"a"'
GAP = b'{"v":1,"kind":"gap","id":"g","episode_id":"e","cause":"x"}'


def everything(value: Any) -> Any:
    """All that can be told of an event: types, order of fields, which were named, -0.0 and NaN too."""
    if isinstance(value, BaseModel):
        members = [(name, everything(one)) for name, one in value.__dict__.items()]
        private = value.__pydantic_extra__, value.__pydantic_private__
        return type(value), members, frozenset(value.model_fields_set), private
    if isinstance(value, tuple):
        return tuple, [everything(one) for one in value]
    return type(value), repr(value)


def verdict(text: bytes, *, limits: Limits = LIMITS, **memory: SpanMemory) -> Any:
    try:
        return everything(decode_event(text, limits=limits, **memory))
    except EventError as error:
        return type(error), error.path, error.problem


def exact_verdict(text: bytes, *, limits: Limits = LIMITS) -> Any:
    try:
        return everything(exact_event(text, limits=limits))
    except EventError as error:
        return type(error), error.path, error.problem


# the path is taken


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_ordinary_events_of_every_kind_take_the_fast_path(kind: str, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    for text in (
        encode(event),
        encode(event, arrays="base64"),
        spelled(event, data.draw(spellings)).encode(),
    ):
        plain = ordinary(text)
        found = fast_event(plain, limits=LIMITS, memory=None)
        if found is not None:
            assert everything(found) == exact_verdict(plain)
            continue
        # Positions without a value, and keys that became the same.
        assert b'"nulls"' in plain or exact_verdict(plain)[0] is DuplicateKey


def test_a_call_with_everything_takes_the_fast_path() -> None:
    text = (
        CALL
        + b"""
        , "revision": 0, "started_at": 0, "ended_at": 9223372036854775807, "ordinal": 0, "purpose": "act",
        "model": "m", "policy": {"name": "p", "version": -3}, "request": {"messages": [1, {"seed": -0}]},
        "meta": null, "prompt_token_ids": [0, 2147483647], "dialect": "anthropic_messages",
        "completions": [{"message": null, "token_ids": {"dtype": "int32", "base64": "AQAAAAIAAAA="},
            "logprobs": [0.0, -1], "versions": [{"start": 0, "name": "p", "version": 1}]}, {}],
        "usage": {"cost_usd": 1, "cached_tokens": null}, "attempts": [{"status_code": 500}],
        "status": "failed", "error": {"type": "timeout"}, "non_finite": false }
        """
    )
    # The -0 stands in a span; beside numbers that are 0 it leaves a doubt.
    assert fast_event(text, limits=LIMITS, memory=None) is None
    text = text.replace(b"-0", b"-1")
    found = fast_event(text, limits=LIMITS, memory=None)
    assert found is not None
    assert everything(found) == exact_verdict(text)


# the law


@settings(max_examples=40)
@given(any_events, spellings)
def test_any_spelling_of_an_event_gives_the_same_event_or_error(event: AnyEvent, spell: Spelling) -> None:
    text = spelled(event, spell).encode()
    assert verdict(text) == exact_verdict(text)


@settings(max_examples=50)
@given(any_events, spellings, st.lists(seeds, min_size=8, max_size=8), st.booleans())
def test_a_tampered_text_gives_the_same_event_or_error(
    event: AnyEvent, spell: Spelling, changes: list[int], plain: bool
) -> None:
    text = ordinary(encode(event, arrays="base64") if plain else spelled(event, spell).encode())
    for seed in changes:
        changed = tampered(text, seed)
        assert verdict(changed) == exact_verdict(changed), changed


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=1)
@given(data=st.data())
def test_every_odd_value_in_every_field_gives_the_same_event_or_error(kind: str, data: st.DataObject) -> None:
    event = data.draw(events(kind))
    members = {name: json.dumps(one) for name, one in json.loads(ordinary(encode(event))).items()}
    for name in type(event).model_fields:
        others = ",".join(f'"{key}":{one}' for key, one in members.items() if key != name)
        for odd in ODD_VALUES:
            text = f'{{{others},"{name}":'.encode() + odd + b"}"
            assert verdict(text) == exact_verdict(text), text


@pytest.mark.parametrize("odd", ODD_VALUES)
@pytest.mark.parametrize(
    "place",
    [
        b'%s,"completions":[{"token_ids":%s}]}',
        b'%s,"completions":[{"token_ids":[1],"logprobs":%s}]}',
        b'%s,"completions":[{"token_ids":[],"logprobs":%s}]}',
        b'%s,"completions":[{"message":%s,"partial":false}]}',
        b'%s,"completions":[{"versions":[{"start":%s,"name":"p","version":1}]}]}',
        b'%s,"completions":[%s]}',
        b'%s,"usage":{"cost_usd":%s}}',
        b'%s,"usage":{"cached_tokens":%s}}',
        b'%s,"policy":{"name":"p","version":%s}}',
        b'%s,"attempts":[{"started_at":%s}]}',
        b'%s,"non_finite":true,"request":%s}',
    ],
)
def test_every_odd_value_deep_inside_a_call_gives_the_same_event_or_error(place: bytes, odd: bytes) -> None:
    text = place % (CALL, odd)
    assert verdict(text) == exact_verdict(text)


@pytest.mark.parametrize(
    "name", [b'"v":1,', b'"kind":"gap",', b'"id":"g",', b'"episode_id":"e",', b',"cause":"x"']
)
def test_what_an_event_must_state_is_asked_for_in_the_same_words(name: bytes) -> None:
    text = GAP.replace(name, b"")
    assert issubclass(exact_verdict(text)[0], EventError)
    assert verdict(text) == exact_verdict(text)


@pytest.mark.parametrize("depth", [1, 2, 3, 7, 200])
def test_the_depth_allowed_is_the_same(depth: int) -> None:
    limits = Limits(max_depth=depth)
    for levels in range(max(depth - 4, 0), depth + 3):
        for inside in (b"", b"1", b"{}"):
            value = b"[" * levels + inside + b"]" * levels if levels else inside or b"2"
            text = CALL + b',"request":' + value + b"}"
            assert verdict(text, limits=limits) == exact_verdict(text, limits=limits)


def test_the_size_allowed_is_the_same() -> None:
    for size in (len(GAP) - 1, len(GAP)):
        assert verdict(GAP, limits=Limits(max_event_bytes=size)) == exact_verdict(
            GAP, limits=Limits(max_event_bytes=size)
        )


@given(any_events)
def test_an_event_made_fast_behaves_as_a_validated_one(event: AnyEvent) -> None:
    text = encode(event)
    fast = fast_event(text, limits=LIMITS, memory=None)
    if fast is None:
        return
    exact = exact_event(text)
    assert (fast == exact, hash(fast)) == (True, hash(exact))
    assert repr(fast.model_dump()) == repr(exact.model_dump())
    assert fast.model_dump_json(exclude_unset=True) == exact.model_dump_json(exclude_unset=True)
    assert encode(fast) == encode(exact)
    for again in (copy.copy(fast), copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), fast.model_copy()):
        assert everything(again) == everything(exact)
    with pytest.raises(ValueError, match="frozen"):
        fast.id = "another"


# bodies


def items(body: bytes, *, content_type: str | None, limits: Limits = LIMITS) -> Any:
    try:
        found = decode_body(body, content_type=content_type, limits=limits)
    except BodyError as error:
        return type(error), str(error)
    return [
        (
            one.index,
            one.kind,
            one.id,
            one.text,
            everything(one.event) if one.error is None else (type(one.error), one.error.problem),
        )
        for one in found
    ]


def exact_items(body: bytes, *, content_type: str | None, limits: Limits = LIMITS) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "fast_event", lambda text, **_: None)
        return items(body, content_type=content_type, limits=limits)


@settings(max_examples=25)
@given(st.lists(any_events, min_size=1, max_size=4), spellings, st.none() | seeds)
def test_a_body_is_cut_into_the_same_items(posted: list[AnyEvent], spell: Spelling, seed: int | None) -> None:
    texts = [spelled(event, spell).encode() for event in posted]
    array = (
        (spell.space() + "[").encode() + spell.comma().encode().join(texts) + (spell.space() + "]").encode()
    )
    lines = b"\n".join(text.replace(b"\n", b" ").replace(b"\r", b" ") for text in texts) + b"\n \r\n"
    for body, content_type in (
        (array, JSON),
        (array, None),
        (lines, NDJSON),
        (lines, None),
        (texts[0], JSON),
    ):
        changed = body if seed is None else tampered(body, seed)
        assert items(changed, content_type=content_type) == exact_items(changed, content_type=content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + GAP + b"," + GAP + b"]",
        b" [\r\n" + GAP + b" ,\t" + GAP + b" ] \n",
        b"[]",
        b"[ ]",
        b"[" + GAP + b",]",
        b"[" + GAP + b"]]",
        b"[" + GAP + b"]\x0b",
        b"[" + GAP + b",3," + GAP + b"]",
        b"[" + GAP + b',{"v":1,"kind":"gap","id":"\xff"}]',
        b"[" + GAP + b',{"v":1,"kind":"gap","id":"\x01"}]',
        b"[" + GAP + b"," + b"[" * 900 + b"]" * 900 + b"]",
        b"[" + GAP + b"," + b"[" * 9000 + b"]" * 9000 + b"]",
        b"[" + GAP + b"," * 9 + GAP + b"]",
        b"\xef\xbb\xbf[" + GAP + b"]",
        b"\n{" + GAP[1:],
        GAP + b"\n{" + GAP[1:] + b"\n\n  \n{" + GAP[1:] + b"  ",
    ],
)
@pytest.mark.parametrize("content_type", [None, JSON, NDJSON])
@pytest.mark.parametrize("max_events", [1, 10_000])
def test_odd_bodies_are_cut_into_the_same_items(
    body: bytes, content_type: str | None, max_events: int
) -> None:
    limits = Limits(max_events=max_events)
    assert items(body, content_type=content_type, limits=limits) == exact_items(
        body, content_type=content_type, limits=limits
    )


def test_an_array_of_very_many_elements_is_not_cut_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_raws", None)
    body = b"[" + b"1," * 2**21 + b"1]"
    with pytest.raises(BodyError, match="limit=10000"):
        decode_body(body, content_type=JSON)


def test_a_span_is_of_our_own_type_whichever_path_cut_it() -> None:
    event = fast_event(CALL + b',"request": {"a" : 1} ,"meta":null}', limits=LIMITS, memory=None)
    assert event is not None
    assert type(event.request) is Raw  # type: ignore[union-attr]
    assert event.request == b'{"a" : 1}'  # type: ignore[union-attr]
    assert event.meta is None
    assert "meta" in event.model_fields_set
