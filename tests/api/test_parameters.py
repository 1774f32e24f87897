"""Projects, times and cursors mean one thing each, and anything else is refused."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from tracestore_api.errors import InvalidCursor, InvalidProject
from tracestore_api.parameters import Time, cursor_of, place_of, project_of

TIME: TypeAdapter[int] = TypeAdapter(Time)


def headers(*values: str) -> Headers:
    return Headers(
        raw=[(b"x-tracestore-project", value.encode("utf-8", "surrogateescape")) for value in values]
    )


def test_the_project_is_named_by_one_header() -> None:
    assert project_of(headers()) == "default"
    assert project_of(headers("Prüfung")) == "Prüfung"
    for wrong in (headers(""), headers("a\tb"), headers("a", "b"), headers("x" * 129), headers("\udcff")):
        with pytest.raises(InvalidProject):
            project_of(wrong)


def test_a_time_with_an_offset_is_the_same_moment_in_utc_to_the_nanosecond() -> None:
    # 2026-01-02T03:04:05Z: 20,455 days after 1970 * 86,400 s + 3 * 3,600 + 4 * 60 + 5
    moment = (20_455 * 86_400 + 11_045) * 10**9 + 123_456_789
    for text in (
        str(moment),
        "2026-01-02T03:04:05.123456789Z",
        "2026-01-02t05:04:05.123456789+02:00",
        "2026-01-02 05:04:05.123456789 02:00",
        "2026-01-01T21:34:05.123456789-05:30",
    ):
        assert TIME.validate_python(text) == moment


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(2200, 1, 1)),  # noqa: DTZ001
    st.integers(-720, 720),
)
def test_times_agree_with_the_standard_library(naive: datetime, minutes: int) -> None:
    moment = naive.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    expected = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    assert TIME.validate_python(moment.isoformat()) == expected


@pytest.mark.parametrize(
    "text", ["2026-01-02T03:04:05", "2026-13-02T03:04:05Z", "-1", "yesterday", "1e3", str(2**63)]
)
def test_a_time_without_an_offset_or_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TIME.validate_python(text)


@given(st.tuples(st.integers(0, 2**63 - 1), st.text()))
def test_a_cursor_comes_back_for_its_own_list_only(place: tuple[int, str]) -> None:
    cursor = cursor_of(place, of="episodes")
    assert place_of(cursor, of="episodes", types=(int, str)) == place
    for other in ({"of": "calls", "types": (int, str)}, {"of": "episodes", "types": (int,)}):
        with pytest.raises(InvalidCursor):
            place_of(cursor, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", "1", '["episodes"]', '["episodes", true]', '["episodes", 1e999]']
)
def test_a_cursor_that_is_not_ours_is_refused(text: str) -> None:
    assert place_of(None, of="episodes") is None
    for cursor in (text, base64.urlsafe_b64encode(text.encode()).decode(), "é", f"{2**64}"):
        with pytest.raises(InvalidCursor):
            place_of(cursor, of="episodes")
