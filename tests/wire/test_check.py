"""What the C reader takes for certain is JSON to the exact scanner as well, never more."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.grammar import texts
from tests.wire.tampered import ODD_VALUES, SNIPPETS, byte_tampered, seeds
from tracestore.wire.check import certain, holds_negative_zero
from tracestore.wire.errors import EventError
from tracestore.wire.limits import Limits
from tracestore.wire.scan import SPAN, scan


def is_certain(text: bytes, *, levels: int = 200) -> bool:
    try:
        certain(text, levels=levels)
    except ValueError:
        return False
    return True


def is_json(text: bytes, *, levels: int = 200) -> bool:
    try:
        scan(text, opaque=SPAN, limits=Limits(max_depth=levels))
    except EventError:
        return False
    return True


@settings(max_examples=60)
@given(texts(), st.lists(seeds, max_size=6))
def test_whatever_is_certain_is_json(text: bytes, changes: list[int]) -> None:
    assert is_json(text)
    for changed in (text, *(byte_tampered(text, random.Random(seed)) for seed in changes)):
        for levels in (3, 200):
            assert is_json(changed, levels=levels) or not is_certain(changed, levels=levels), changed


@given(st.binary(max_size=12))
def test_no_bytes_whatever_are_certain_without_being_json(text: bytes) -> None:
    assert is_json(text) or not is_certain(text)


@pytest.mark.parametrize("odd", [*ODD_VALUES, *SNIPPETS])
def test_odd_values_are_certain_only_if_they_are_json(odd: bytes) -> None:
    for text in (odd, b"[" + odd + b"]", b'{"x":' + odd + b"}", b" \t\r\n" + odd + b" \t\r\n"):
        assert is_json(text) or not is_certain(text)


@pytest.mark.parametrize("text", [b"1],[2", b"1,2", b"", b" ", b"]", b"[", b"],[", b"1]", b"[1", b"{}{}"])
def test_arrays_put_around_a_text_do_not_make_it_one_value(text: bytes) -> None:
    assert not is_certain(text)
    assert not is_certain(text, levels=3)


@pytest.mark.parametrize("levels", [1, 2, 3, 50, 199, 200])
def test_the_levels_allowed_are_taken_and_one_more_is_not(levels: int) -> None:
    opened = {b"[": b"]", b'{"a":': b"}"}
    for start, end in opened.items():
        inner = b"[]" if start == b"[" else b"{}"
        assert is_certain(start * (levels - 1) + inner + end * (levels - 1), levels=levels)
        assert not is_certain(start * levels + inner + end * levels, levels=levels)
    assert not is_certain(b"[]", levels=0)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        (b"[-0]", True),
        (b'{"a":-0}', True),
        (b"[1,-0,2]", True),
        (b"[1,\n-0 ]", True),
        (b"-00", False),
        (b"[-0.0,-0e1,-0E1,-05]", False),
        (b'"0190-0a1b"', False),
        (b'"x -0 y"', True),
    ],
)
def test_a_negative_zero_is_seen_where_one_may_stand(text: bytes, holds: bool) -> None:
    assert holds_negative_zero(text) is holds
