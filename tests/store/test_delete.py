from __future__ import annotations

import json
import time

import pytest

from tests import factories as make
from tests.factories import posted
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.store.delete import carry_out, delete_episode, old_episodes
from tracestore.store.load import SnapshotGone
from tracestore.store.verify import verify


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
