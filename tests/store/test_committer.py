"""One thread writes: many posters, other processes, and events that the database refuses."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.exc import IntegrityError, OperationalError

from tests import factories as make
from tests.factories import call, posted, user
from tracestore.store import Store, ingest
from tracestore.store import tables as t
from tracestore.store.committer import StoreClosed
from tracestore.store.engine import StoreFull
from tracestore.store.prepare import Prepared
from tracestore.store.transaction import Transaction
from tracestore.store.verify import verify


def test_posts_of_many_threads_are_all_there_once(store: Store) -> None:
    def post(thread: int) -> None:
        for number in range(20):
            event = call(f"c{thread}.{number}", [user("u")], "a", episode=f"e{thread % 3}")
            assert store.ingest("p", [posted(event)])[0].status == "stored"

    threads = [threading.Thread(target=post, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.snapshot("p") == 120
    assert verify(store, "p").problems == ()


def test_what_another_process_wrote_is_not_forgotten(store: Store, tmp_path: Path) -> None:
    """The committer remembers contents, keys and contexts; another writer makes all of that stale."""
    url = str(store.engine.url)
    script = (
        "import sys; from tests.factories import *; from tracestore.store import Store\n"
        "with Store.open(sys.argv[1]) as store:\n"
        "    event = call('c1', [user('u'), assistant('a'), user('v')], 'b')\n"
        "    assert store.ingest('p', [posted(event)])[0].status == 'stored'"
    )
    store.ingest("p", [posted(call("c0", [user("u")], "a"))])
    subprocess.run([sys.executable, "-c", script, url], check=True, timeout=120)
    again = call("c1", [user("u"), make.assistant("a"), user("v")], "b")
    assert store.ingest("p", [posted(again)])[0].status == "duplicate"
    after = call("c2", [user("u"), make.assistant("a"), user("v"), make.assistant("b"), user("w")], "c")
    assert store.ingest("p", [posted(after)])[0].status == "stored"
    assert store.load_graph("p", "e").links["c2"].parent == ("c1", 0)
    assert verify(store, "p").problems == ()


def _refusing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make the database refuse whatever holds the event `bad`."""
    finish = Transaction.finish

    def refuse(tx: Transaction) -> None:
        if ("gap", "bad") in tx.memory.entities:
            raise error
        finish(tx)

    apply = ingest.apply

    def note(tx: Transaction, batch: list[Prepared]) -> object:
        if any(one.event.id == "bad" for one in batch):
            tx.memory.entities["gap", "bad"] = tx.entity("episode", "e")
        return apply(tx, batch)

    monkeypatch.setattr(Transaction, "finish", refuse)
    monkeypatch.setattr("tracestore.store.committer.apply", note)


def test_an_event_that_the_database_refuses_fails_alone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refusing(monkeypatch, IntegrityError("insert", {}, Exception("no")))
    events = [make.gap("g1"), make.gap("bad"), make.gap("g2")]
    outcomes = store.ingest("p", [posted(event) for event in events])
    assert [(outcome.index, outcome.status) for outcome in outcomes] == [
        (0, "stored"),
        (1, "error"),
        (2, "stored"),
    ]
    with store.read() as connection:
        assert connection.execute(select(func.count()).select_from(t.gap)).scalar() == 2
    assert verify(store, "p").problems == ()


def test_a_database_that_fails_is_not_blamed_on_the_event(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    _refusing(monkeypatch, OperationalError("insert", {}, Exception("disk full")))
    with pytest.raises(OperationalError):
        store.ingest("p", [posted(make.gap("g1")), posted(make.gap("bad"))])
    assert store.snapshot("p") == 0


def test_a_full_disk_is_told_to_the_poster_with_what_to_do(sqlite_store: Store) -> None:
    store = sqlite_store
    store.ingest("p", [posted(make.gap("before"))])

    def fill_up(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size for the least

    event.listen(store.engine, "connect", fill_up)
    store.engine.dispose()
    large = call("c", [user(str(random.Random(0).randbytes(200_000)))], "a")
    with pytest.raises(StoreFull, match=r"full.*free some space"):
        store.ingest("p", [posted(make.gap("g")), posted(large)])
    assert store.snapshot("p") == 1


def test_a_closed_store_takes_nothing_more(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path / 's.db'}")
    store.close()
    with pytest.raises(StoreClosed):
        store.ingest("p", [posted(make.gap())])


def test_events_that_were_handed_over_cannot_be_taken_back(store: Store) -> None:
    first = store.submit("p", [posted(make.episode("e1"))])
    assert not first.cancel()
    assert [one.status for one in first.result(timeout=30)] == ["stored"]
    assert [one.status for one in store.ingest("p", [posted(make.episode("e2"))])] == ["stored"]


def test_nothing_to_store_is_nothing_to_wait_for(store: Store) -> None:
    assert store.ingest("p", []) == []
