from __future__ import annotations

import pytest

from tracestore.importers.items import Names, content_id, count, left, nanoseconds, raw, safe_id, taken
from tracestore.wire.base import Raw


def test_an_id_follows_from_the_value_not_from_its_spelling() -> None:
    assert content_id("x", {"a": 1, "b": 2}) == content_id("x", {"b": 2, "a": 1})
    assert content_id("x", {"a": 1}) != content_id("x", {"a": 2})
    assert content_id("x", [Raw(b"-0")]) != content_id("x", [0])


def test_equal_documents_of_one_file_are_two_things() -> None:
    names = Names("x")
    first, second = names.of([1]), names.of([1])
    assert second == f"{first}-2"


def test_an_id_of_the_file_is_kept_where_it_may_be_one() -> None:
    assert safe_id("call_1") == "call_1"
    assert safe_id("a\x00b") == safe_id("a\x00b") != safe_id("ab")
    assert safe_id("x" * 500).startswith("id-")


def test_spans_stand_verbatim_in_what_is_written_around_them() -> None:
    assert raw({"a": Raw(b"1e400"), "b": [Raw(b"-0")]}) == b'{"a":1e400,"b":[-0]}'


def test_what_is_placed_leaves_its_record_and_the_rest_stays() -> None:
    record = {"id": "a", "num": True, "score": 1, "n": 3, "bad": -1}
    assert taken(record, "id", str) == "a"
    assert taken(record, "num", int) is None
    assert taken(record, "score", float) == 1
    assert (count(record, "n"), count(record, "bad"), count(record, "none")) == (3, None, None)
    assert left("x", record, None, {}) == b'{"x":{"num":true,"bad":-1}}'
    assert left("x", {}, None) is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("2026-02-23T12:54:34.5Z", 1_771_851_274_500_000_000),
        ("2026-02-23T13:54:34.123456789+01:00", 1_771_851_274_123_456_789),
        (1_771_851_274, 1_771_851_274_000_000_000),
        (1_771_851_274_500, 1_771_851_274_500_000_000),
        (1_771_851_274_500_000_123, 1_771_851_274_500_000_123),
        ("2026-02-23T12:54:34", None),
        ("yesterday", None),
        (True, None),
        (float("inf"), None),
        (-5, None),
        (None, None),
    ],
)
def test_a_time_without_a_zone_is_unknown(given: object, expected: int | None) -> None:
    assert nanoseconds(given) == expected
