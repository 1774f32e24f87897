"""Numbers of a store, worked by hand."""

from __future__ import annotations

from tests import factories as make
from tests.factories import assistant, call, posted, user
from tracestore.store import Store
from tracestore.store.stats import stats
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
