"""Law 1: what is read back builds the graph of what was posted, in any order, batching and revisions."""

from __future__ import annotations

from uuid import uuid4

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import posted
from tests.strategies import deliveries, episodes, revised, split_up
from tracestore.graph.build import build
from tracestore.graph.context import authors_on_path, context
from tracestore.graph.merge import newest
from tracestore.graph.tokens import prompt_ids
from tracestore.store import Store
from tracestore.store.verify import verify
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent, phase_of, revision_of
from tracestore.wire.group import Group


@settings(max_examples=40)
@given(data=st.data())
def test_what_is_read_back_builds_the_graph_of_what_was_posted(shared: Store, data: st.DataObject) -> None:
    events = data.draw(episodes())
    _post_and_compare(shared, events, data.draw(split_up(events)), data)


@settings(max_examples=25)
@given(data=st.data())
def test_of_what_was_posted_in_several_revisions_only_the_newest_is_read_back(
    shared: Store, data: st.DataObject
) -> None:
    told = data.draw(revised(data.draw(split_up(data.draw(episodes(max_calls=5))))))
    _post_and_compare(shared, newest(told), told, data)


@settings(max_examples=10)
@given(data=st.data())
def test_the_same_holds_on_postgresql(on_postgresql: Store, data: st.DataObject) -> None:
    told = data.draw(revised(data.draw(split_up(data.draw(episodes())))))
    _post_and_compare(on_postgresql, newest(told), told, data)


def _post_and_compare(
    store: Store, events: list[AnyEvent], told: list[AnyEvent], data: st.DataObject
) -> None:
    """Post what is told and find the graph of the events."""
    project = uuid4().hex
    so_far: list[AnyEvent] = []
    highest: dict[tuple[str, str, str], int] = {}
    for batch in data.draw(deliveries(told)):
        if data.draw(st.booleans()):
            store._committer._memories.clear()  # as after a restart
        outcomes = store.ingest(project, [posted(event) for event in batch])
        assert [o.problem for o in outcomes if o.status not in ("stored", "duplicate")] == []
        assert [o.status for o in outcomes] == [_status(highest, event) for event in batch]
        so_far += batch
        _compare_half_way(store, project, so_far)
    got = store.load(project, "e")
    assert build(got) == build(_of_episode(events))
    assert verify(store, project).problems == ()


def _status(highest: dict[tuple[str, str, str], int], event: AnyEvent) -> str:
    """What becomes of an event after those of which the highest revisions are given."""
    name = (event.kind, event.id, phase_of(event))
    if revision_of(event) <= highest.get(name, -1):
        return "duplicate"
    highest[name] = revision_of(event)
    return "stored"


def _compare_half_way(store: Store, project: str, so_far: list[AnyEvent]) -> None:
    """Children before their parents, completions before their calls, halves alone: all can be read."""
    if all(isinstance(event, Group) for event in so_far):
        return
    graph = store.load_graph(project, "e")
    assert graph == build(_of_episode(so_far))
    for call_id in graph.calls:
        context(graph, call_id)
        authors_on_path(graph, call_id)
        prompt_ids(graph, call_id)


def _of_episode(events: list[AnyEvent]) -> list[AnyEvent]:
    """Without a group that the episode does not name."""
    named = {event.group_id for event in newest(events) if isinstance(event, Episode)}
    return [event for event in events if not isinstance(event, Group) or event.id in named]
