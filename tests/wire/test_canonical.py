"""One canonical text per value: spelling is forgotten, value is not."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.grammar import Num, Obj, Spelling, numbers, spellings, texts, values
from tracestore.wire.canonical import canonical


@given(values, spellings, spellings)
def test_spelling_is_forgotten(value: Any, one: Spelling, other: Spelling) -> None:
    assert canonical(one.write(value).encode()) == canonical(other.write(value).encode())


def _key(value: Any) -> Any:
    """A value as something Python compares as JSON values compare (here: key order is none)."""
    return (
        frozenset((k, _key(v)) for k, v in value.members)
        if isinstance(value, Obj)
        else (tuple(map(_key, value)) if isinstance(value, tuple) else (type(value).__name__, value))
    )


@settings(max_examples=50)
@given(values, values, spellings)
def test_value_is_not_forgotten(one: Any, other: Any, spell: Spelling) -> None:
    same = canonical(spell.write(one).encode()) == canonical(spell.write(other).encode())
    assert same == (_key(one) == _key(other))


@given(numbers, numbers, spellings)
def test_numbers_are_equal_exactly_when_their_decimal_values_are(
    one: Num, other: Num, spell: Spelling
) -> None:
    same = canonical(spell.write(one).encode()) == canonical(spell.write(other).encode())
    assert same == (one == other)


@given(texts())
def test_canonical_text_is_its_own_canonical_text(text: bytes) -> None:
    assert canonical(canonical(text)) == canonical(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_as_python_prints_them_are_kept_by_decimal_value(x: float) -> None:
    assert Decimal(canonical(repr(x).encode()).decode()) == Decimal(repr(x))


@pytest.mark.parametrize(
    ("same", "text"),
    [
        (["1", "1.0", "10e-1", "1e0", "0.1E+1", "100e-002"], b"1"),
        (["0", "0.0", "0e99999", "0.000e-5"], b"0"),
        (["-0", "-0.0", "-0e5"], b"-0.0"),
        (["9007199254740993", "9007199254740993.0", "9.007199254740993e15"], b"9007199254740993"),
        (["1e400", "10e399", "1" + "0" * 400, "1e0000000000000400"], b"1e400"),
        (["0.1", "1e-1", "0.10000"], b"0.1"),
        (["0.10000000000000001"], b"10000000000000001e-17"),
        (["1e999999999999999999999999", "10e999999999999999999999998"], b"1e999999999999999999999999"),
        (["1e-400", "0." + "0" * 399 + "1"], b"1e-400"),
        (["5e-324"], b"5e-324"),
        ([r'"\ud83d\ude00"', '"😀"', r'"\uD83D\uDE00"'], rb'"\ud83d\ude00"'),
        ([r'"\ud83d"'], rb'"\ud83d"'),
        ([r'"\/"', '"/"', r'"\u002f"'], b'"/"'),
        (
            [r'{"b":1, "a":[NaN,-Infinity]}', r'{ "a" : [NaN, -Infinity],"\u0062":1.0}'],
            b'{"a":[NaN,-Infinity],"b":1}',
        ),
        (['[1e50,-0,"-0 \\u0000",true,null]'], rb'[1e50,-0.0,"-0 \u0000",true,null]'),
    ],
)
def test_by_hand(same: list[str], text: bytes) -> None:
    assert {canonical(spelling.encode()) for spelling in same} == {text}


def test_an_exponent_of_thousands_of_digits_is_a_number_like_any_other() -> None:
    power = "3" * 5000
    assert canonical(f"10e{power}".encode()) == f"1e{power[:-1]}4".encode()
    assert canonical(f"1e{'0' * 5000}2".encode()) == b"100"


def test_the_canonical_text_never_outgrows_its_source_by_more_than_a_few_times() -> None:
    text = b"[" + b",".join([b"1e39", b"1e4000", b'"\xc3\xa9"'] * 1000) + b"]"
    assert len(canonical(text)) < 6 * len(text)
