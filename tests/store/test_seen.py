"""What a call saw, read from its own chain, is what the graph of its episode says."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from tests.databases import machine_steps
from tests.factories import agent, call, posted, user
from tests.scenarios import SCENARIOS
from tests.strategies import deliveries, episodes, split_up
from tracestore.graph.build import build
from tracestore.graph.context import context
from tracestore.graph.report import call_of
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.load import load_call
from tracestore.store.seen import Seen, link_of, what_was_seen
from tracestore.wire.events import AnyEvent


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_the_calls_of_a_scenario_saw_is_what_its_graph_says(shared: Store, name: str) -> None:
    check(shared, [list(SCENARIOS[name]().events)])


@settings(max_examples=15)
@given(data=st.data())
def test_what_the_calls_of_any_episode_saw_is_what_its_graph_says(shared: Store, data: st.DataObject) -> None:
    check(shared, data.draw(deliveries(data.draw(split_up(data.draw(episodes(max_calls=9)))))))


def check(store: Store, batches: list[list[AnyEvent]]) -> None:
    project = uuid4().hex
    for batch in batches:
        store.ingest(project, [posted(event) for event in batch])
    for group in store.groups(project):
        for episode_id in group.episode_ids:
            graph = store.load_graph(project, episode_id)
            for call_id, link in graph.links.items():
                messages = None
                if call_id not in graph.pending:
                    messages = [(one.raw, one.author) for one in context(graph, call_id)]
                assert seen(store, call_id, project) == Seen(link, messages)
                assert alone(store, call_id, project) == call_of(
                    graph, call_id, link=link, is_pending=call_id in graph.pending
                )


def row_of(connection: Connection, call_id: str, project: str) -> Any:
    c, p = t.call.c, t.project.c
    of_project = select(p.project_id).where(p.name == project).scalar_subquery()
    return connection.execute(select(t.call).where(c.project_id == of_project, c.id == call_id)).one()


def seen(store: Store, call_id: str, project: str = "p") -> Seen:
    with store.read() as connection:
        row = row_of(connection, call_id, project)
        return what_was_seen(connection, row.project_id, row.key)


def alone(store: Store, call_id: str, project: str) -> Any:
    """A call as it is shown, read without its episode."""
    with store.read() as connection:
        row = row_of(connection, call_id, project)
        events = load_call(connection, row.project_id, row.key)
        link = link_of(connection, row)
    return call_of(build(events), call_id, link=link, is_pending=row.context_messages is None)


def test_the_rest_of_its_episode_costs_a_context_nothing(sqlite_store: Store) -> None:
    store = sqlite_store
    steps = [
        call(f"c{n}", [user(f"u{n}")], f"a{n}", parent=f"c{n - 1}" if n else None, delta=n > 0)
        for n in range(3)
    ]
    store.ingest("p", [posted(one) for one in steps])
    few = machine_steps(store, lambda: seen(store, "c2"))
    others = [call(f"o{n}", [user(f"o{n}")], "b", agent=f"other{n % 9}") for n in range(200)]
    store.ingest("p", [posted(one) for one in [*(agent(f"other{n}") for n in range(9)), *others]])
    # An index of more rows may be a page deeper.
    assert machine_steps(store, lambda: seen(store, "c2")) <= 1.1 * few
