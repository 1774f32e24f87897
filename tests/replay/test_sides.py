"""Messages side by side."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tracestore.replay.sides import Row, cut, side_by_side

TEXTS = st.lists(st.sampled_from("abc"), max_size=12).map("\n".join)


def shown(rows: list[Row]) -> list[tuple[str | None, str, str | None]]:
    return [(row.left, row.mark, row.right) for row in rows]


def message(*lines: str, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": "\n".join(lines), **more}


def test_the_first_lines_that_differ_stand_beside_each_other_with_equal_ones_around() -> None:
    one, other = message("a", "b", "c", "d", "e", "f"), message("a", "b", "C", "d", "e", "F")
    assert shown(side_by_side(one, other, around=1)) == [
        ("  b", " ", "  b"),
        ("  c", "|", "  C"),
        ("  d", " ", "  d"),
    ]
    assert shown(side_by_side(one, other, around=0)) == [("  c", "|", "  C")]


def test_a_line_that_one_side_lacks_has_nothing_beside_it() -> None:
    one, other = message("a", "b", "c"), message("a", "c")
    assert shown(side_by_side(one, other, around=1)) == [
        ("  a", " ", "  a"),
        ("  b", "<", None),
        ("  c", " ", "  c"),
    ]
    assert side_by_side(other, one, around=1)[1] == Row(None, "  b")
    assert Row(None, "  b").mark == ">"


def test_values_are_shown_a_line_a_field() -> None:
    use = {"id": "t1", "function": {"name": "run", "arguments": "{}"}}
    one, other = message("a", tool_calls=[use]), message("a", tool_calls=[use | {"id": "t2"}])
    assert shown(side_by_side(one, other, around=9)) == [
        ("role: user", " ", "role: user"),
        ("content: a", " ", "content: a"),
        ("tool_calls:", " ", "tool_calls:"),
        ("  0:", " ", "  0:"),
        ("    id: t1", "|", "    id: t2"),
        ("    function:", " ", "    function:"),
        ("      name: run", " ", "      name: run"),
        ("      arguments: {}", " ", "      arguments: {}"),
    ]


@given(TEXTS, TEXTS, st.integers(0, 3))
def test_equal_lines_have_no_rows_and_others_show_a_difference(one: str, other: str, around: int) -> None:
    rows = side_by_side(one, other, around=around)
    assert (rows == []) == (one == other)
    if rows:
        places = [place for place, row in enumerate(rows) if row.mark != " "]
        assert places[0] <= around
        assert len(rows) - 1 - places[-1] <= around


def test_a_long_line_is_cut_around_the_character_that_matters() -> None:
    text = "".join(chr(97 + number % 26) for number in range(100))
    assert cut(text, 200) == text
    assert cut(text, 10) == text[:9] + "…"
    assert cut(text, 10, at=50) == "…" + text[46:54] + "…"
    assert cut(text, 10, at=99) == "…" + text[91:]
    assert cut(None, 10) == ""
