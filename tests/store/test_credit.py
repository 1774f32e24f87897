from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests import factories as make
from tests.factories import posted
from tests.store.credits import given, rule
from tracestore.store import Store
from tracestore.store.backup import backup, restore
from tracestore.store.credit import Kept, OtherStore, keep
from tracestore.store.delete import carry_out, delete_episode, delete_project
from tracestore.store.query import UnknownProject
from tracestore.store.tombstones import Deleted
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent


def two_episodes(store: Store) -> None:
    events: list[AnyEvent] = [
        *(make.episode("e"), make.agent("main"), make.call("c0", agent="main")),
        *(make.episode("f"), make.agent("b", episode="f"), make.call("d0", agent="b", episode="f")),
    ]
    assert {one.status for one in store.ingest("p", [posted(event) for event in events])} == {"stored"}


NUMBERS = ("reward", "advantage_min", "advantage_mean", "advantage_max")
BOTH = [given(), given("f", "b", "d0:0", advantage_min=-1.0, reward=None)]


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    with store.read() as connection:
        return [tuple(row) for row in connection.execute(text(sql))]


def test_what_a_rule_gave_each_branch_is_read_as_it_was_kept(store: Store) -> None:
    two_episodes(store)
    nothing = given("e", "main", "c0:1", notes="ungraded", tokens=0, **dict.fromkeys(NUMBERS))
    done = keep(store, "p", rule("rao:lambda=0.4", reward_terms="length=-0.1", step=7), [*BOTH, nothing])
    assert done == Kept(version=1, branches=3, gone=0)
    with store.read() as connection:
        found = [
            dict(row._mapping)
            for row in connection.execute(text("SELECT * FROM credit ORDER BY episode_id, sample_id"))
        ]
    for one, was in zip(found, [BOTH[0], nothing, BOTH[1]], strict=True):
        assert one | dataclasses.asdict(was) == one
    assert {
        (one["project"], one["export_hash"], one["rule"], one["reward_terms"], one["step"], one["version"])
        for one in found
    } == {("p", "h", "rao:lambda=0.4", "length=-0.1", 7, 1)}
    assert verify(store, "p").problems == ()


def test_the_same_is_kept_once_and_anything_else_is_a_version_of_its_own(store: Store) -> None:
    two_episodes(store)
    before = store.snapshot("p")
    others = [
        rule(),
        rule("rloo"),
        rule(step=1),
        rule(reward_terms="length=-0.1"),
        rule(export_hash="other"),
        rule(rows_hash="grown"),
    ]
    assert [keep(store, "p", one, BOTH).version for one in others] == [1, 2, 3, 4, 5, 6]
    assert [keep(store, "p", one, BOTH) for one in others] == [Kept(n, 0, 0) for n in range(1, 7)]
    assert rows(store, "SELECT version, count(*) FROM credit GROUP BY version ORDER BY version") == [
        (n, 2) for n in range(1, 7)
    ]
    assert store.snapshot("p") == before
    # What comes afterwards is stored as ever: keys of the project went on.
    store.ingest("p", [posted(make.reward("late", episode="e"))])
    assert verify(store, "p").problems == ()


def test_other_numbers_of_the_same_rule_are_a_version_of_their_own(store: Store) -> None:
    two_episodes(store)
    assert keep(store, "p", rule(), BOTH).version == 1
    other = [dataclasses.replace(BOTH[0], advantage_mean=0.25), BOTH[1]]
    assert keep(store, "p", rule(), other) == Kept(version=2, branches=2, gone=0)
    assert keep(store, "p", rule(), other) == Kept(version=2, branches=0, gone=0)
    # The latest word holds: the first numbers again are said after it.
    assert keep(store, "p", rule(), BOTH).version == 3


def test_a_deleted_episode_takes_its_credit_with_it_and_names_the_export(store: Store) -> None:
    two_episodes(store)
    keep(store, "p", rule(), BOTH)
    asked = delete_episode(store, "p", "e")
    assert rows(store, "SELECT episode_id FROM credit") == [("f",)]
    done = carry_out(store, "p", asked.id)
    assert done.exports == ("h",)
    assert rows(store, "SELECT count(*) FROM branch_credit") == [(1,)]
    assert keep(store, "p", rule("rloo"), BOTH) == Kept(version=2, branches=1, gone=1)
    assert verify(store, "p").problems == ()


def test_a_deleted_project_takes_its_credit_with_it(store: Store) -> None:
    two_episodes(store)
    keep(store, "p", rule(), BOTH)
    carry_out(store, "p", delete_project(store, "p").id)
    assert rows(store, "SELECT count(*) FROM branch_credit") == [(0,)]
    with pytest.raises(Deleted):
        keep(store, "p", rule(), BOTH)


def test_an_export_of_another_store_is_refused(store: Store) -> None:
    with pytest.raises(UnknownProject):
        keep(store, "p", rule(), BOTH)
    two_episodes(store)
    with pytest.raises(OtherStore, match="--db"):
        keep(store, "p", rule(), [given("elsewhere")])
    assert rows(store, "SELECT count(*) FROM branch_credit") == [(0,)]


def test_projects_count_their_versions_apart(store: Store) -> None:
    two_episodes(store)
    store.ingest("q", [posted(make.episode("e"))])
    assert keep(store, "p", rule(), BOTH).version == 1
    assert keep(store, "q", rule("rloo"), [given()]).version == 1
    assert rows(store, "SELECT project, agent_id FROM credit WHERE episode_id = 'e' ORDER BY 1") == [
        ("p", "main"),
        ("q", None),
    ]


def test_a_backup_holds_it_and_gives_it_back(sqlite_store: Store, tmp_path: Path) -> None:
    two_episodes(sqlite_store)
    keep(sqlite_store, "p", rule(), BOTH)
    kept = rows(sqlite_store, "SELECT * FROM credit ORDER BY episode_id")
    file, url = tmp_path / "backup.db", f"sqlite:///{tmp_path / 'restored.db'}"
    backup(str(sqlite_store.engine.url), file, blobs=None, heard=lambda copied, pages: None)
    restore(file, url, blobs=None, heard=lambda copied, pages: None)
    with Store.open(url) as restored:
        assert rows(restored, "SELECT * FROM credit ORDER BY episode_id") == kept
