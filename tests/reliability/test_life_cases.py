"""What people reported of deletion and retention elsewhere, as promises of this store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests import factories as make
from tests.api.test_deletions import client_of, done
from tests.databases import empty_store
from tests.factories import posted
from tests.store.servers import postgresql
from tests.store.test_blobs import named, put
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.blobs import open_blobs
from tracestore.store.delete import carry_out, delete_episodes
from tracestore.store.exports import Made, register
from tracestore.wire.events import AnyEvent


def episode(name: str, *, text: str = "what was said") -> list[AnyEvent]:
    said = make.call(
        f"{name}-c",
        [make.user(f"{name}: {text}")],
        make.answer(make.assistant("x", tool_calls=[make.tool_use("run")]), ids=[1, 2]),
        episode=name,
        agent=f"{name}-a",
        prompt_ids=[3],
    )
    blob = make.blob(f"{name}-b", named(name.encode()), episode=name)
    reward = make.reward(f"{name}-r", episode=name)
    return [make.episode(name), make.agent(f"{name}-a", episode=name), said, reward, blob]


LEFT = {"project", "deletion", "deletion_export", "tombstone", "field_set", "dictionary", "export", "shard"}
"""Tables that keep rows: of the record that it happened, and of no episode."""


def test_done_means_that_rows_texts_views_and_payloads_are_gone(tmp_path: Path) -> None:
    """langfuse#8834, #8139, #11438, #10719: 200 was answered, and traces, scores and files remained."""
    blobs = open_blobs(str(tmp_path / "blobs"))
    name = put(blobs, b"e", project="default")
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", list(map(posted, episode("e"))))
        with client_of(store, blobs) as client:
            answer = client.delete("/v1/episodes/e")
            assert (answer.status_code, answer.json()["state"]) == (202, "erasing")
            found = done(client, answer.headers["location"])
            assert (found["episodes"], found["episodes_erased"], found["blobs"]) == (1, 1, 1)
            views = ("episodes", "agents", "calls", "messages", "rewards", "tool_calls")
            query = "SELECT " + ", ".join(f"(SELECT count(*) FROM {view})" for view in views)
            assert client.post("/v1/sql", json={"query": query}).json()["rows"] == [[0] * 6]
        with store.read() as connection:
            counts = {
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in t.metadata.tables.values()
            }
    assert {table: count for table, count in counts.items() if count and table not in LEFT} == {}
    assert blobs.size("default", name) is None


def test_a_deletion_reaches_what_was_made_of_the_data(tmp_path: Path) -> None:
    """langfuse-docs#3064: dataset items kept what the trace they were made of had lost."""
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("p", list(map(posted, episode("first"))))
        for number in (1, 2):
            register(
                store,
                "p",
                Made(
                    manifest_hash=str(number) * 64,
                    location=f"/exports/{number}",
                    spec="{}",
                    snapshot=store.snapshot("p"),
                    sampled_tokens=2,
                    trained_tokens=2,
                    shards=[],
                ),
            )
            if number == 1:
                store.ingest("p", list(map(posted, episode("second"))))
        both = delete_episodes(store, "p", ["first"], what="age", name="a rule")
        assert both.export_locations == ("/exports/1", "/exports/2")
        # The first export was cut before anything of it came.
        later = delete_episodes(store, "p", ["second"], what="age", name="a rule")
        assert later.export_locations == ("/exports/2",)
        assert [stone["id"] for stone in store.tombstones("p", snapshot=store.snapshot("p"))] == [
            "first",
            "second",
        ]


def many(store: Store) -> list[str]:
    """Twenty episodes of long texts that compress badly; their names."""
    names = [f"e{number}" for number in range(20)]
    events = []
    for name in names:
        events += episode(name, text="".join(named(f"{name} {number}".encode()) for number in range(4000)))
    store.ingest("p", list(map(posted, events)))
    return names


def test_the_room_of_what_was_deleted_goes_back_to_the_disk(tmp_path: Path) -> None:
    """inspect_ai#3716, obra/episodic-memory#140: files never got smaller."""
    url = empty_store(tmp_path / "store.db")
    with Store.open(url) as store:
        names = many(store)
        done_ = delete_episodes(store, "p", names[2:], what="age", name="a rule")
        carry_out(store, "p", done_.id)
    before = (tmp_path / "store.db").stat().st_size
    assert main(["db", "delete", "--db", url, "--project", "p", "--vacuum", "--json"]) == 0
    # A tenth of the episodes is left, and what an empty database takes.
    assert (tmp_path / "store.db").stat().st_size < before / 2
    assert {file.name for file in tmp_path.iterdir() if file.stat().st_size} == {"store.db"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.mark.soak
def test_the_same_holds_on_postgresql(server: str) -> None:
    size = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relname = 'content'"
    with Store.open(server) as store:
        names = many(store)
        carry_out(store, "p", delete_episodes(store, "p", names[2:], what="age", name="a rule").id)
        with store.read() as connection:
            before = connection.exec_driver_sql(size).scalar_one()
        store.vacuum()
        with store.read() as connection:
            assert connection.exec_driver_sql(size).scalar_one() < before / 2
