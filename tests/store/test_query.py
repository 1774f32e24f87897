"""Groups and snapshots: which episodes belong together, now and then."""

from __future__ import annotations

from tests import factories as make
from tests.factories import call, posted, user
from tracestore.store import Store, query
from tracestore.store.query import GroupRef
from tracestore.wire.events import AnyEvent


def ingest(store: Store, *events: AnyEvent) -> int:
    store.ingest("p", [posted(event) for event in events])
    return store.snapshot("p")


def test_a_snapshot_is_the_position_of_the_last_event(store: Store) -> None:
    assert store.snapshot("p") == 0
    assert ingest(store, make.episode("a"), make.episode("b")) == 2
    assert ingest(store, make.episode("a")) == 2
    assert store.snapshot("other") == 0


def test_episodes_of_a_group_stand_together_in_order_of_arrival(store: Store) -> None:
    ingest(
        store,
        make.episode("b", group_id="g"),
        make.episode("alone"),
        call("c0", [user("u")], episode="late"),
        make.episode("a", group_id="g"),
        make.group("empty"),
    )
    assert store.groups("p") == [
        GroupRef("g", ("b", "a")),
        GroupRef(None, ("alone",)),
        GroupRef(None, ("late",)),
    ]
    assert store.groups("nothing") == []


def test_an_episode_joins_its_group_when_its_event_comes(store: Store) -> None:
    before = ingest(store, call("c0", [user("u")], episode="e"))
    after = ingest(store, make.episode("e", group_id="g"))
    assert store.groups("p", snapshot=before) == [GroupRef(None, ("e",))]
    assert store.groups("p", snapshot=after) == [GroupRef("g", ("e",))]


def test_a_group_named_at_the_end_only_is_not_known_at_the_start(store: Store) -> None:
    start = ingest(store, make.episode("e", phase="start"))
    ingest(store, make.episode("e", phase="end", group_id="g"))
    assert store.groups("p", snapshot=start) == [GroupRef(None, ("e",))]
    assert store.groups("p") == [GroupRef("g", ("e",))]


def test_a_group_has_ended_from_the_position_of_its_end_event_on(store: Store) -> None:
    members = [make.episode("e", group_id="g"), make.episode("f", group_id="whole")]
    before = ingest(store, *members, make.group("g", phase="start", size=4), make.group("whole", size=4))
    after = ingest(store, make.group("g", phase="end"))
    expected = [GroupRef("g", ("e",), ended=False), GroupRef("whole", ("f",), ended=False)]
    assert store.groups("p", snapshot=before) == expected
    assert store.groups("p", snapshot=after) == [GroupRef("g", ("e",), ended=True), expected[1]]


def test_an_episode_that_others_only_name_is_in_no_group(store: Store) -> None:
    ingest(store, make.episode("e", forked_from_episode_id="origin"))
    assert store.groups("p") == [GroupRef(None, ("e",))]


def test_episodes_are_chosen_by_id_group_and_status_in_order_of_arrival(store: Store) -> None:
    ingest(
        store,
        make.episode("b", group_id="g", status="ok"),
        make.episode("a", group_id="g", status="failed"),
        make.episode("c", status="ok"),
    )
    store.ingest("other", [posted(make.episode("theirs"))])
    with store.read() as connection:
        assert query.episodes(connection, "p") == ["b", "a", "c"]
        assert query.episodes(connection, "p", group_ids=["g"]) == ["b", "a"]
        assert query.episodes(connection, "p", ids=["c", "a"], statuses=["ok"]) == ["c"]
        assert query.episodes(connection, "p", ids=["theirs"]) == []


def test_forks_stand_with_their_origin_in_order_of_arrival(store: Store) -> None:
    ingest(
        store,
        make.episode("f2", forked_from_episode_id="e"),
        make.episode("e"),
        make.episode("f1", forked_from_episode_id="e"),
        make.episode("g", forked_from_episode_id="never came"),
    )
    with store.read() as connection:
        assert query.forks(connection, "p") == [("e", "f2"), ("e", "f1"), ("never came", "g")]
        assert query.forks(connection, "p", origin="e") == [("e", "f2"), ("e", "f1")]
        assert query.forks(connection, "other") == []
