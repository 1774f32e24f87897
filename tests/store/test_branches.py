"""Branches read from rows are those of the graph."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import call, posted, user
from tests.scenarios import SCENARIOS
from tests.strategies import deliveries, episodes, split_up
from tracestore.graph.branches import branches
from tracestore.store import Store
from tracestore.store.branches import BranchPath
from tracestore.wire.events import AnyEvent


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_branches_of_a_scenario_are_those_of_its_graph(shared: Store, name: str) -> None:
    _compare(shared, [list(SCENARIOS[name]().events)])


@settings(max_examples=60)
@given(data=st.data())
def test_the_branches_of_any_episode_are_those_of_its_graph(shared: Store, data: st.DataObject) -> None:
    _any_episode(shared, data)


@settings(max_examples=4)
@given(data=st.data())
def test_the_branches_of_any_episode_are_those_of_its_graph_on_postgresql(
    on_postgresql: Store, data: st.DataObject
) -> None:
    _any_episode(on_postgresql, data)


def _any_episode(store: Store, data: st.DataObject) -> None:
    _compare(store, data.draw(deliveries(data.draw(split_up(data.draw(episodes(max_calls=9)))))))


def test_a_branch_names_its_messages_from_the_root_on(store: Store) -> None:
    store.ingest("p", [posted(call("c0", [user("u")], "a", "b")), posted(_goes_on())])
    first, second = store.branches("p", "e")
    # c0: u, b is an end, for only a is gone on from; c1: u, a, v, w.
    assert first == BranchPath(first.messages, (("c0", 1),), "c0", ("c0", 1))
    assert second == BranchPath(second.messages, (("c0", 0), ("c1", 0)), "c1", ("c1", 0))
    assert [len(first.messages), len(second.messages)] == [2, 4]
    assert first.messages[0] == second.messages[0]
    assert store.branches("p", "unknown") == []


def _goes_on() -> AnyEvent:
    return call("c1", [user("v")], "w", parent="c0", completion=0, delta=True)


def _compare(store: Store, batches: list[list[AnyEvent]]) -> None:
    project = uuid4().hex
    for batch in batches:
        store.ingest(project, [posted(event) for event in batch])
    for group in store.groups(project):
        for episode_id in group.episode_ids:
            graph = store.load_graph(project, episode_id)
            expected = Counter(
                (one.end_call_id, one.end, one.completions, len(one.nodes)) for one in branches(graph)
            )
            found = store.branches(project, episode_id)
            assert expected == Counter(
                (one.end_call_id, one.end, one.completions, len(one.messages)) for one in found
            )
