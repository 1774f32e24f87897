from __future__ import annotations

import json
import time
from typing import Any

import pytest
from sqlalchemy import Connection, Table

from tests import factories as make
from tests.factories import posted
from tracestore.cli.main import main
from tracestore.store import Store, delete
from tracestore.store import tables as t
from tracestore.store.delete import carry_out, delete_episode, deletion, old_episodes
from tracestore.store.doomed import waiting
from tracestore.store.exports import Made, register
from tracestore.store.load import SnapshotGone
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent


def two_episodes(store: Store) -> None:
    events = [
        *(make.episode("e"), make.agent("a"), make.call("c", agent="a"), make.reward("r")),
        make.episode("f", forked_from_episode_id="e", forked_from_call_id="c"),
        *(make.agent("b", episode="f"), make.call("d", agent="b", episode="f")),
    ]
    outcomes = store.ingest("p", [posted(event) for event in events])
    assert [outcome.problem for outcome in outcomes if outcome.problem] == []


def test_what_others_fork_from_stays_a_placeholder_and_what_they_share_stays(store: Store) -> None:
    two_episodes(store)
    before = store.load_graph("p", "f")
    done = carry_out(store, "p", delete_episode(store, "p", "e").id)
    assert done.state == "done"
    assert store.load_graph("p", "f") == before
    assert verify(store, "p").problems == ()
    assert [group.episode_ids for group in store.groups("p")] == [("f",)]


def test_a_snapshot_from_before_a_deletion_is_refused_and_later_ones_list_it(store: Store) -> None:
    two_episodes(store)
    before = store.snapshot("p")
    delete_episode(store, "p", "e")
    with pytest.raises(SnapshotGone):
        store.groups("p", snapshot=before)
    [stone] = store.tombstones("p", snapshot=store.snapshot("p"))
    assert (stone["kind"], stone["id"]) == ("episode", "e")
    assert store.tombstones("p", snapshot=before) == ()


def test_a_deletion_names_an_export_that_was_being_made_when_it_was_asked_for(store: Store) -> None:
    two_episodes(store)
    before = store.snapshot("p")
    found = delete_episode(store, "p", "e")
    assert found.exports == ()
    exports = {"read before": before, "read after": store.snapshot("p"), "read earlier": 0}
    for name, snapshot in exports.items():
        register(store, "p", Made(name, f"/{name}", "{}", snapshot, 0, 0, ()))
    assert deletion(store, "p", found.id).exports == ("read before",)
    register(store, "p", Made("read before", "/read before", "{}", store.snapshot("p"), 0, 0, ()))
    assert carry_out(store, "p", found.id).export_locations == ("/read before",)


def test_old_episodes_are_those_of_which_nothing_came_since(store: Store) -> None:
    two_episodes(store)
    now = time.time_ns() + 10**9
    assert old_episodes(store, "p", before=now) == ["e", "f"]
    assert old_episodes(store, "p", before=now, keep_graded=True) == ["f"]
    assert old_episodes(store, "p", before=1) == []


def test_the_command_deletes_and_gives_the_room_back(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    two_episodes(store)
    url = store.engine.url.render_as_string()
    assert main(["db", "delete", "--db", url, "--project", "p", "--episode", "e", "--vacuum", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["state"], found["episodes_erased"]) == ("done", 1)
    # The store that was open all the while has noticed.
    [outcome] = store.ingest("p", [posted(make.gap("late"))])
    assert outcome.status == "deleted"


def test_what_is_noted_again_after_the_search_of_a_sweep_is_left_for_the_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(name: str) -> None:
        events: list[AnyEvent] = [
            *(make.episode(name), make.agent(f"a{name}", episode=name)),
            make.call(f"c{name}", [make.user("said by all")], agent=f"a{name}", episode=name),
        ]
        assert {one.status for one in store.ingest("p", [posted(one) for one in events])} == {"stored"}

    def erase(name: str) -> None:
        """All of a deletion but its sweep."""
        key = delete_episode(store, "p", name).id
        while deletion(store, "p", key).state == "erasing":
            store.perform("p", lambda tx: delete._erase(tx, key, "p", None)).result()

    meanwhile = iter(["once"])

    def search(connection: Connection, project_id: int, table: Table) -> Any:
        found = waiting(connection, project_id, table)
        if table is t.content and next(meanwhile, None):
            say("later")
            say("kept")
            erase("later")
        return found

    say("first")
    monkeypatch.setattr("tracestore.store.sweep.waiting", search)
    assert carry_out(store, "p", delete_episode(store, "p", "first").id).state == "done"
    assert verify(store, "p").problems == ()
    assert b"said by all" in bytes(store.context("p", "ckept")[0])
    assert delete.resume(store) == 1
    assert verify(store, "p").problems == ()
