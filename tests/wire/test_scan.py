"""Spans are the bytes that were posted; everything that is not JSON is refused with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.grammar import Obj, Spelling, spellings, strings, texts, values
from tracestore.wire.base import Raw
from tracestore.wire.errors import (
    DuplicateKey,
    EventTooLarge,
    MalformedJson,
    NotFinite,
    NumberTooLarge,
    TooDeep,
)
from tracestore.wire.limits import Limits
from tracestore.wire.scan import SPAN, Each, cut_array, peek, scan


@given(texts(), st.sampled_from(["", " ", "\n\t", "\r\n "]))
def test_a_span_is_the_text_without_the_white_space_around_it(text: bytes, space: str) -> None:
    assert scan(space.encode() + text + space.encode(), opaque=SPAN) == text


@settings(max_examples=50)
@given(st.lists(values, max_size=5), spellings)
def test_the_elements_of_an_array_are_the_bytes_between_its_commas(
    elements: list[Any], spell: Spelling
) -> None:
    written = [spell.write(element).encode() for element in elements]
    body = (spell.space() + "[" + spell.space()).encode()
    body += spell.comma().encode().join(written) + (spell.space() + "]").encode()
    assert scan(body, opaque=Each(SPAN)) == written
    assert [text.encode() for text in cut_array(body.decode())] == written


@settings(max_examples=50)
@given(st.dictionaries(strings, values, min_size=1, max_size=5), spellings)
def test_the_fields_of_an_object_are_the_bytes_after_their_colons(
    members: dict[str, Any], spell: Spelling
) -> None:
    written = {name: spell.write(value).encode() for name, value in members.items()}
    body = b"{"
    for place, (name, text) in enumerate(written.items()):
        body += (spell.comma() if place else spell.space()).encode()
        body += (spell.string(name) + spell.space() + ":" + spell.space()).encode() + text
    assert scan(body + spell.space().encode() + b"}", opaque=dict.fromkeys(members, SPAN)) == written


def test_what_a_parse_would_change_survives_in_a_span() -> None:
    odd = rb'{"a":"\u0000\ud83d","n":[9007199254740993,-0,1e400,1.0,0.1000],"d":"\/"  }'
    event = scan(b'{"x": ' + odd + b' , "y": 1}', opaque={"x": SPAN})
    assert event == {"x": odd, "y": 1}
    assert isinstance(event["x"], Raw)


def test_an_integer_of_any_length_survives_in_a_span() -> None:
    digits = b"7" * 100_000
    assert scan(b'{"x":[' + digits + b"]}", opaque={"x": SPAN}) == {"x": b"[" + digits + b"]"}


def test_numbers_outside_spans_are_exact() -> None:
    assert scan(b"[9007199254740993, 0.1, 1e22]", opaque={}) == [9007199254740993, 0.1, 1e22]
    assert str(scan(b"-0", opaque={})) == "-0.0"
    assert scan(b"[-0.5, -01]".replace(b"-01", b"-1"), opaque={}) == [-0.5, -1]


def test_a_number_that_no_field_holds_is_refused_and_not_rounded_to_infinity() -> None:
    with pytest.raises(NumberTooLarge, match=r"a\[1\].*1e400"):
        scan(b'{"a": [1, 1e400]}', opaque={"a": Each({})})
    with pytest.raises(NumberTooLarge, match="thousands of digits"):
        scan(b"1" * 5000, opaque={})


def test_a_value_that_is_no_array_is_one_span_where_elements_were_asked_for() -> None:
    assert scan(b'{"system": "be brief"}', opaque={"system": Each(SPAN)}) == {"system": b'"be brief"'}


_BROKEN = [
    (b"", 0),
    (b'{"a":1', 6),
    (b'{"a":1,}', 7),
    (b'{"a" 1}', 5),
    (b"{'a':1}", 1),
    (b'{"a":}', 5),
    (b'{"a":01}', 6),
    (b'{"a":.5}', 5),
    (b'{"a":+1}', 5),
    (b'{"a":[1,]}', 8),
    (b'{"a":1} x', 8),
    (b'{"a":"\x01"}', 6),
    (b'{"a":"\\x"}', 6),
    (b'{"a":"\\u12g4"}', 7),
    (b'{"a":tru}', 5),
    ('{"é":"é",}'.encode(), 11),
    (b"\xef\xbb\xbf{}", 0),
    (b'{"a":"\xff"}', 6),
    (b'{"a":"\xed\xa0\xbd"}', 6),
    ('{"a":\u00a01}'.encode(), 5),
    ('{"a":\u0661}'.encode(), 5),
]
"""A text and the byte at which it breaks."""


@pytest.mark.parametrize(("text", "byte"), _BROKEN)
@pytest.mark.parametrize(
    "opaque", [{}, {"a": SPAN}, {"a": Each(SPAN)}, SPAN], ids=["parsed", "span", "each", "whole"]
)
def test_what_is_not_json_is_refused_at_its_byte(text: bytes, byte: int, opaque: Any) -> None:
    with pytest.raises(MalformedJson) as caught:
        scan(text, opaque=opaque)
    assert abs(caught.value.values["byte"] - byte) <= 1, caught.value


@given(texts(), st.data())
def test_a_text_cut_short_is_refused_or_is_itself_a_value(text: bytes, data: st.DataObject) -> None:
    # A number may be cut into a shorter number; nothing else has a prefix that is JSON.
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        assert scan(cut, opaque=SPAN) == cut.strip(b" \t\r\n")
    except MalformedJson:
        return
    assert text[:1] in b"-0123456789"


def test_line_and_column_say_where() -> None:
    with pytest.raises(MalformedJson, match="line=3, column=7") as caught:
        scan('{\n "ä": 1,\n "b": }'.encode(), opaque={})
    assert caught.value.values["byte"] == 18


@settings(max_examples=50)
@given(st.dictionaries(strings, strings, min_size=1, max_size=3), spellings, st.data())
def test_a_key_named_twice_is_refused_wherever_it_stands(
    members: dict[str, Any], spell: Spelling, data: st.DataObject
) -> None:
    key = data.draw(st.sampled_from(sorted(members)))
    twice = Obj((*members.items(), (key, data.draw(strings))))
    below = Obj((("x", (twice,)),))
    for value, opaque in (
        (twice, {}),
        (twice, SPAN),
        (below, {}),
        (below, {"x": SPAN}),
        (below, {"x": Each({})}),
    ):
        with pytest.raises(DuplicateKey) as caught:
            scan(spell.write(value).encode(), opaque=opaque)
        assert caught.value.values["key"] == key


@pytest.mark.parametrize("opaque", [SPAN, {}, Each(SPAN)])
def test_two_hundred_levels_are_read_and_one_more_is_not(opaque: Any) -> None:
    assert scan(b"[" * 200 + b"]" * 200, opaque=opaque)
    assert scan(b'{"a":' * 200 + b"1" + b"}" * 200, opaque=opaque)
    for text in (b"[" * 201 + b"]" * 201, b"[" * 1_000_000, b'{"a":' * 50_000):
        with pytest.raises(TooDeep, match="limit=200"):
            scan(text, opaque=opaque)


def test_brackets_in_strings_and_beside_each_other_are_not_depth() -> None:
    wide = b"[" + b",".join([b'"[[[\\"[{"', b"[]", b"{}"] * 500) + b"]"
    assert scan(wide, opaque=SPAN) == wide


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("opaque", [{}, {"a": SPAN}])
def test_constants_pass_only_where_allowed(constant: str, opaque: Any) -> None:
    text = f'{{"b": "NaN", "a": [1, {constant}]}}'.encode()
    with pytest.raises(NotFinite, match=f"found='{constant}', byte=22"):
        scan(text, opaque=opaque)
    found = scan(text, opaque=opaque, non_finite=True)["a"]
    assert found == f"[1, {constant}]".encode() if opaque else str(found[1]) == str(float(constant))


def test_a_text_over_the_size_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(EventTooLarge, match="bytes=11, limit=10"):
        scan(b"[[[[[[[[[[[", opaque=SPAN, limits=Limits(max_event_bytes=10))


def test_kind_and_id_are_read_from_a_broken_text_when_they_come_before_the_break() -> None:
    names = frozenset({"kind", "id"})
    assert peek('{"x":{"id":"inner"},"id":"c1","kind":"call","y":[', names) == {"id": "c1", "kind": "call"}
    assert peek('{"id":"c1","y":} "kind":"call"', names) == {"id": "c1"}
    for nothing in ("", "[", '"id"', "{" * 100_000, '{"id":7}', '{"id":"c'):
        assert peek(nothing, names) == {}
