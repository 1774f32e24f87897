"""Numbers of a store, worked by hand."""

from __future__ import annotations

from tests import factories as make
from tests.factories import assistant, call, posted, user
from tests.store.servers import postgresql
from tracestore.store import Store
from tracestore.store.engine import connect
from tracestore.store.stats import _table_bytes, stats
from tracestore.store.tables import metadata


def spelled(message: object) -> int:
    return len(make.raw(message))


def test_bytes_posted_count_a_message_once_for_every_call_that_spelled_it_out(store: Store) -> None:
    first, said, then = user("u" * 300), assistant("a" * 200), user("v" * 100)
    events = [
        make.episode(),
        make.agent(),
        call("c0", [first], make.answer(said), ordinal=0),
        call("c1", [first, said, then], "b", ordinal=1),
        call("c2", [user("w")], "d", parent="c1", delta=True, ordinal=2),
    ]
    store.ingest("p", [posted(event) for event in events])
    with store.read() as connection:
        facts = stats(connection)
    messages = [first, said, first, said, then, assistant("b"), user("w"), assistant("d")]
    skeletons = facts["posted_content_bytes"] - sum(map(spelled, messages))
    once = sum(map(spelled, [first, said, then, assistant("b"), user("w"), assistant("d")]))
    # What is left are the three requests without their messages, of which two are alike.
    assert 0 < skeletons < 300
    assert 0 < facts["content_bytes"] - once < skeletons
    assert facts["dedup_ratio"] == round(facts["posted_content_bytes"] / facts["content_bytes"], 4)
    assert facts["by_project"]["p"]["calls"] == facts["calls"] == 3


def test_every_table_is_there_with_its_rows_and_bytes(store: Store) -> None:
    store.ingest("p", [posted(event) for event in (make.episode(), call("c0", [user("u")], "a"))])
    with store.read() as connection:
        facts = stats(connection)
    assert facts["tables"].keys() == metadata.tables.keys()
    assert [facts["tables"][name]["rows"] for name in ("episode", "raw_event", "tool_call")] == [1, 2, 0]
    for name in ("episode", "raw_event", "content", "node"):
        assert facts["tables"][name]["bytes"] >= 4096, name
    assert sum(table["bytes"] for table in facts["tables"].values()) < facts["database_bytes"]


def test_the_bytes_of_all_tables_are_those_of_the_file(sqlite_store: Store) -> None:
    with sqlite_store.read() as connection:
        facts = stats(connection)
    # Beside our tables lie only SQLite's own: its schema and the statistics of the planner.
    assert 0.8 < sum(table["bytes"] for table in facts["tables"].values()) / facts["database_bytes"] < 1


def test_ratios_of_nothing_are_unknown(store: Store) -> None:
    with store.read() as connection:
        facts = stats(connection)
    assert (facts["projects"], facts["content_bytes"]) == (0, 0)
    assert (facts["dedup_ratio"], facts["compression"]) == (None, None)


def test_postgresql_counts_the_same_and_says_what_its_tables_take(store: Store) -> None:
    events = [
        make.episode(),
        make.agent(),
        call("c0", [user("u" * 300)], make.answer("a", ids=[3]), prompt_ids=[1, 2]),
        call("c1", [user("u" * 300), assistant("a"), user("v")], "b"),
    ]
    of_bytes = {"database_bytes", "tables"}
    with postgresql() as url, Store.open(url) as other:
        for each in (store, other):
            each.ingest("p", [posted(event) for event in events])
        with store.read() as small, other.read() as large:
            ours, theirs = stats(small), stats(large)
    assert {k: v for k, v in theirs.items() if k not in of_bytes} == {
        k: v for k, v in ours.items() if k not in of_bytes
    }
    assert theirs["tokens"] == 3
    for name, table in theirs["tables"].items():
        assert table["rows"] == ours["tables"][name]["rows"]
    # An empty table has its indexes, of a page each.
    assert min(table["bytes"] for table in theirs["tables"].values()) >= 8192
    assert sum(table["bytes"] for table in theirs["tables"].values()) < theirs["database_bytes"]


def test_the_bytes_of_a_partitioned_table_are_those_of_its_partitions() -> None:
    with postgresql() as url:
        engine = connect(url)
        with engine.begin() as connection:
            for sql in (
                "CREATE TABLE whole (id BIGINT PRIMARY KEY, t TEXT) PARTITION BY HASH (id)",
                "CREATE TABLE one PARTITION OF whole FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
                "CREATE TABLE two PARTITION OF whole FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
                "INSERT INTO whole SELECT n, repeat('x', 100) FROM generate_series(1, 1000) n",
            ):
                connection.exec_driver_sql(sql)
            parts = "SELECT pg_total_relation_size('one') + pg_total_relation_size('two')"
            assert _table_bytes(connection) == {"whole": connection.exec_driver_sql(parts).scalar()}
        engine.dispose()
