"""Law 1 on SQLite: what is read back builds the graph of what was posted, in any order and batching."""

from __future__ import annotations

from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import posted
from tests.strategies import deliveries, episodes, split_up
from tracestore.graph.build import build
from tracestore.store import Store
from tracestore.store.verify import verify
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent
from tracestore.wire.group import Group


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One file for many examples: each is a project of its own."""
    return Store.open(f"sqlite:///{tmp_path_factory.mktemp('law') / 'store.db'}")


@settings(max_examples=40)
@given(data=st.data())
def test_what_is_read_back_builds_the_graph_of_what_was_posted(shared: Store, data: st.DataObject) -> None:
    events = data.draw(episodes())
    parts = data.draw(split_up(events))
    project = uuid4().hex
    for batch in data.draw(deliveries(parts)):
        outcomes = shared.ingest(project, [posted(event) for event in batch])
        assert [o.problem for o in outcomes if o.status not in ("stored", "duplicate")] == []
    got = shared.load(project, "e")
    assert build(got) == build(_of_episode(events))
    assert verify(shared, project).problems == ()


def _of_episode(events: list[AnyEvent]) -> list[AnyEvent]:
    """Without a group that the episode does not name."""
    named = {event.group_id for event in events if isinstance(event, Episode)}
    return [event for event in events if not isinstance(event, Group) or event.id in named]
