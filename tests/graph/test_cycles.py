"""Circles of parents are found where they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracestore.graph.cycles import cycles

NAMES = st.sampled_from("abcdef")


def test_circles_begin_with_their_smallest_member() -> None:
    assert cycles({"b": "c", "c": "a", "a": "b", "d": "a", "e": None}) == (("a", "b", "c"),)
    assert cycles({"a": "a", "y": "x", "x": "y"}) == (("a",), ("x", "y"))


def test_parents_that_end_hold_no_circle() -> None:
    assert cycles({"b": "a", "c": "b", "d": "unknown", "e": None}) == ()


@given(st.dictionaries(NAMES, st.none() | NAMES))
def test_a_name_is_in_a_circle_exactly_when_its_parents_lead_back_to_it(
    parents: dict[str, str | None],
) -> None:
    returning = set()
    for name in parents:
        above: str | None = name
        for _ in parents:
            above = parents.get(above) if above is not None else None
            if above == name:
                returning.add(name)
    assert {name for ring in cycles(parents) for name in ring} == returning
