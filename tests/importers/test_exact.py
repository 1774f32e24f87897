from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.wire.grammar import texts
from tracestore.importers import exact
from tracestore.importers.items import raw
from tracestore.wire.base import Raw
from tracestore.wire.canonical import canonical


@given(texts())
@example(b"1e-400")
@example(b"4e-324")
@example(b"-0.0e99999999999999999999")
@example(b"1e-99999999999999999999")
@example(b"[-0, 0.10000000000000000055, 1e400]")
@example(b"1" + b"0" * 5_000)
def test_every_json_text_is_written_again_as_the_same_value(text: bytes) -> None:
    assert canonical(raw(exact.loads(text))) == canonical(text)


@given(before=st.integers(0, 9_000), digits=st.sampled_from([1, 3_999, 4_000, 4_001, 7_999]))
def test_a_number_too_long_for_python_is_found_wherever_it_stands(before: int, digits: int) -> None:
    [_, found] = exact.loads(f'["{"x" * before}", {"7" * digits}]')
    assert found == (Raw(b"7" * digits) if digits > 4_000 else int("7" * digits))


def test_a_number_that_python_writes_back_is_a_number() -> None:
    assert exact.loads(b"[1, 0.5, -1.25e-7, 0.0, 1e22]") == [1, 0.5, -1.25e-7, 0.0, 1e22]
    assert [type(one) for one in exact.loads(b"[-0, 1e400, 1e-400]")] == [Raw, Raw, Raw]


def test_constants_that_are_no_json_become_text_and_are_told() -> None:
    told: list[str] = []
    assert exact.loads(b"[NaN, -Infinity]", on_constant=told.append) == ["NaN", "-Infinity"]
    assert told == ["NaN", "-Infinity"]


def test_a_key_that_stands_twice_is_told_and_the_last_one_is_read() -> None:
    told: list[str] = []
    assert exact.loads(b'{"a": 1, "b": {"c": 2, "c": 3}, "a": 4}', on_repeat=told.append) == {
        "a": 4,
        "b": {"c": 3},
    }
    assert told == ["c", "a"]


@pytest.mark.parametrize("text", [b"", b"{", b"{'a': 1}", b"\xff", b'"\x00"', b"01"])
def test_what_is_no_json_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"char|byte"):
        exact.loads(text)


def test_deep_nesting_is_no_crash() -> None:
    with pytest.raises(RecursionError):
        exact.loads(b"[" * 100_000 + b"]" * 100_000)


def test_lone_surrogates_and_nul_survive_as_escapes() -> None:
    text = b'{"a": "\\u0000 \\ud83d"}'
    assert raw(exact.loads(text)) == json.dumps({"a": "\x00 \ud83d"}, separators=(",", ":")).encode()
