"""Circles of parents are seen before they close, and found where they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracestore.graph.cycles import closes_cycle, cycles

NAMES = st.sampled_from("abcdef")


def test_an_edge_back_to_a_descendant_closes_a_circle() -> None:
    parents = {"b": "a", "c": "b"}
    assert closes_cycle(parents, "a", "c")
    assert closes_cycle(parents, "a", "a")
    assert not closes_cycle(parents, "d", "c")
    assert not closes_cycle(parents, "a", "unknown")


def test_a_circle_elsewhere_is_not_closed_again() -> None:
    assert not closes_cycle({"a": "b", "b": "a"}, "c", "a")


def test_circles_begin_with_their_smallest_member() -> None:
    assert cycles({"b": "c", "c": "a", "a": "b", "d": "a", "e": None}) == (("a", "b", "c"),)
    assert cycles({"a": "a", "y": "x", "x": "y"}) == (("a",), ("x", "y"))


@given(st.dictionaries(NAMES, st.none() | NAMES), NAMES, NAMES)
def test_an_edge_closes_a_circle_exactly_when_the_graph_gains_one_through_it(
    parents: dict[str, str | None], child: str, parent: str
) -> None:
    rest = {name: above for name, above in parents.items() if name != child}
    gained = set(cycles({**rest, child: parent})) - set(cycles(rest))
    assert closes_cycle(rest, child, parent) == bool(gained)
