"""What came since a position, and the groups it is of, without reading the rest."""

from __future__ import annotations

import json
from itertools import count

from hypothesis import given, settings

from tests import factories as make
from tests.factories import call, posted, user
from tests.strategies import Batch, deliveries, episodes
from tracestore.store import Store, delete, redact
from tracestore.store.changes import Changes, are_untouched, changes, consumed, groups_with
from tracestore.wire.events import AnyEvent

_numbers = count()


def ingest(store: Store, *events: AnyEvent) -> int:
    store.ingest("p", [posted(event) for event in events])
    return store.snapshot("p")


def test_changes_name_episodes_with_the_kinds_that_came_and_groups(store: Store) -> None:
    assert changes(store, "p", after=0) == Changes(0, 0)
    before = ingest(store, make.episode("a", group_id="g"), make.episode("b"))
    after = ingest(
        store,
        make.group("g"),
        make.reward("r", episode="a"),
        make.consumption("u", "c0", episode="b"),
        call("c0", [user("u")], episode="new"),
    )
    kinds = {"a": {"reward"}, "new": {"call"}}
    groups = frozenset({"g"})
    ignored = ("consumption",)
    assert changes(store, "p", after=before, ignored=ignored) == Changes(after, after, kinds, groups)
    assert changes(store, "p", after=before).kinds == kinds | {"b": {"consumption"}}
    assert changes(store, "p", after=after) == Changes(after, after)


def test_changes_name_what_was_replaced_deleted_and_redacted(store: Store) -> None:
    before = ingest(
        store,
        make.episode("a", error="sk-ABC"),
        make.episode("b"),
        make.group("g", size=2),
        make.episode("c", group_id="g"),
    )
    ingest(store, make.episode("b", revision=1, status="ok"), make.group("g", revision=1, size=3))
    found = changes(store, "p", after=before)
    assert found.replaced == {("episode", "b"), ("group", "g")}
    delete.delete_episode(store, "p", "b")
    assert [stone["id"] for stone in changes(store, "p", after=before).deleted] == ["b"]
    key = redact.add_rules(store, "p", json.dumps([{"name": "key", "pattern": "sk-[A-Z]+"}])).id
    assert changes(store, "p", after=before).redactions == ()
    redact.carry_out(store, "p", key)
    ((first, last),) = changes(store, "p", after=before).redactions
    assert first == 1
    assert before < last < store.snapshot("p")
    delete.delete_project(store, "p")
    assert changes(store, "p", after=before).is_deleted


@settings(max_examples=5)
@given(first=episodes(max_calls=2).flatmap(deliveries))
def test_groups_with_are_those_of_groups(first: list[Batch], shared: Store) -> None:
    project = f"p{next(_numbers)}"
    for batch in first:
        shared.ingest(project, [posted(event) for event in batch])
    others = [make.episode("x", group_id="g"), make.episode("y", group_id="h"), make.episode("z")]
    shared.ingest(project, [posted(event) for event in [*others, make.group("g", phase="end")]])
    at = shared.snapshot(project)
    refs = {(ref.group_id, tuple(sorted(ref.episode_ids)), ref.ended) for ref in shared.groups(project)}
    for group_id, episode_ids, ended in refs:
        (found,) = groups_with(
            shared,
            project,
            episode_ids=episode_ids[:1],
            group_ids=(group_id,) if group_id else (),
            snapshot=at,
        )
        assert (found.group_id, found.episode_ids, found.ended) == (group_id, episode_ids, ended)
    every = {one for _, ids, _ in refs for one in ids}
    found_all = groups_with(shared, project, episode_ids=every, group_ids=(), snapshot=at)
    assert {(ref.group_id, ref.episode_ids, ref.ended) for ref in found_all} == refs
    assert groups_with(shared, "nothing", episode_ids=every, group_ids=(), snapshot=0) == []


def test_episodes_of_which_something_was_trained(store: Store) -> None:
    ingest(store, *(make.episode(name) for name in "abc"))
    ingest(store, make.consumption("u", "c0", episode="a", run="r"))
    ingest(store, make.consumption("v", "c1", episode="b", run="other"))
    assert consumed(store, "p", "abc") == {"r": {"a"}, "other": {"b"}}
    assert consumed(store, "p", "bc") == {"other": {"b"}}
    assert consumed(store, "p", "c") == {}


def test_an_episode_is_untouched_by_events_of_others_and_by_nothing_else(store: Store) -> None:
    at = ingest(store, make.episode("a", error="sk-ABC"), make.episode("b"))

    def is_untouched() -> bool:
        """Whether a is, since it was asked before."""
        nonlocal at
        after, at = at, store.snapshot("p")
        return are_untouched(store, "p", ["a"], after=after, snapshot=at)

    assert is_untouched()
    ingest(store, make.reward("r1", episode="b"), call("c0", [user("u")], episode="new"))
    assert is_untouched()
    ingest(store, make.reward("r2", episode="b"), make.reward("r3", episode="a"))
    assert not is_untouched()
    key = redact.add_rules(store, "p", json.dumps([{"name": "key", "pattern": "sk-[A-Z]+"}])).id
    redact.carry_out(store, "p", key)
    assert not is_untouched()
    assert is_untouched()
    delete.delete_episode(store, "p", "a")
    assert not is_untouched()
