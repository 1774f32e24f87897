"""Many writers, two servers, a reader that does not let go, a clock that goes back: none of it shows."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, call, posted, user
from tests.reliability.recordings import Name, array, conversation, figure, names, statuses, stored
from tests.serving import Connection, Running, running_server
from tracestore.store import Store

WRITERS = 8


def at_once(number: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(number - 1)`, all beginning at the same moment."""
    together = Barrier(number)

    def one(which: int) -> None:
        together.wait(timeout=60)
        work(which)

    with ThreadPoolExecutor(number) as threads:
        list(threads.map(one, range(number)))


def test_eight_writers_beside_a_reader_that_holds_its_transaction_are_never_locked_out(
    tmp_path: Path,
) -> None:
    """phoenix#6845, #11873, mlflow#25185: one long read and every write, or the whole server, stood still."""
    database = tmp_path / "t.db"
    bodies = [[conversation(f"e{w}.{n}", turns=3) for n in range(3)] for w in range(WRITERS)]
    empty_store(database)
    with (
        running_server(database) as server,
        closing(sqlite3.connect(database)) as reader,
        Connection(server.url) as prober,
    ):
        reader.isolation_level = None
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM raw_event").fetchone() == (0,)
        done = threading.Event()
        health: list[int] = []

        def probe() -> None:
            while not done.wait(timeout=0.02):
                health.append(prober.get("/v1/health")[0])

        probing = threading.Thread(target=probe)
        probing.start()
        try:
            at_once(WRITERS, lambda number: _post_all(server, bodies[number]))
        finally:
            done.set()
            probing.join()
        # It has read nothing of all this, so it really was one transaction from before the first post.
        assert reader.execute("SELECT count(*) FROM raw_event").fetchone() == (0,)
        reader.execute("ROLLBACK")
    assert set(health) == {200}
    assert "locked" not in (tmp_path / "t.log").read_text()
    assert stored(database) == names(event for of in bodies for events in of for event in events)


def _post_all(server: Running, batches: Sequence[Sequence[make.AnyEvent]]) -> None:
    with Connection(server.url) as connection:
        for events in batches:
            status, found = connection.post("/v1/events", array(events))
            assert (status, found.get("stored")) == (200, len(events)), found


def test_an_id_that_two_servers_get_at_once_is_stored_by_one_and_answered_by_the_other(
    tmp_path: Path,
) -> None:
    """Two processes on one file: the same event is a duplicate, another one under its id a conflict."""
    database = tmp_path / "t.db"
    empty_store(database)
    same = [posted(call(f"same{n}", [user("u")], answer("a", ids=[n])))[1] for n in range(6)]
    results: list[dict[Name, str]] = [{}, {}]
    with running_server(database) as one, running_server(database) as two:

        def client(number: int) -> None:
            own = [posted(call(f"other{n}", [user(f"of {number}")], "a"))[1] for n in range(6)]
            with Connection((one, two)[number].url) as connection:
                for body in (text for pair in zip(same, own, strict=True) for text in pair):
                    results[number].update(statuses(connection.post("/v1/events", body)[1]))

        at_once(2, client)
    for n in range(6):
        assert sorted(result["call", f"same{n}"] for result in results) == ["duplicate", "stored"]
        assert sorted(result["call", f"other{n}"] for result in results) == ["conflict", "stored"]
    assert len(stored(database)) == 12


BACKWARDS = """
import sys, time
from itertools import count
ticks = count()
time.time_ns = lambda: 1_700_000_000_000_000_000 - next(ticks) * 3_600_000_000_000
time.time = lambda: time.time_ns() / 1e9
from tracestore.cli.main import main
sys.exit(main(sys.argv[4:]))
"""
"""Runs the command after it, `python -m tracestore.cli.main ...`, with a clock that loses an hour a look."""


def test_a_clock_that_goes_back_changes_no_order_no_link_and_no_id(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    empty_store(database)
    episodes = [conversation(f"e{n}", turns=4) for n in range(5)]
    made: list[str] = []
    prefix = [sys.executable, "-c", BACKWARDS]
    with running_server(database, prefix=prefix) as server, Connection(server.url) as connection:
        for events in episodes:
            assert connection.post("/v1/events", array(events))[1]["stored"] == len(events)
        for n in range(20):
            body = json.dumps({"target": {"episode_id": "e0"}, "name": "n", "value": n}).encode()
            made.append(connection.post("/v1/rewards", body)[1]["id"])
        again = connection.post("/v1/events", array(episodes[2]))[1]
        listed = connection.get("/v1/episodes")[1]["items"]
        rewards = connection.get("/v1/rewards")[1]["items"]
    assert again["duplicate"] == len(episodes[2])
    assert [item["id"] for item in listed] == [f"e{n}" for n in range(5)]
    assert len(set(made)) == 20
    assert [item["id"] for item in rewards] == made
    with closing(sqlite3.connect(database)) as connection_:
        received = [at for (at,) in connection_.execute("SELECT received_at FROM raw_event ORDER BY pos")]
    assert received[0] > received[-1]  # the clock really went back
    with Store.open(f"sqlite:///{database}") as store:
        links = {id_: link.parent for id_, link in store.load_graph("default", "e3").links.items()}
    assert links == {"e3/0": None, **{f"e3/{n}": (f"e3/{n - 1}", 0) for n in range(1, 4)}}
    assert stored(database) == names(e for of in episodes for e in of) | {("reward", id_) for id_ in made}


@pytest.mark.soak
def test_health_answers_within_100_ms_while_eight_writers_post_large_batches(tmp_path: Path) -> None:
    """The figure of the promise; a machine of two cores shared with the writers makes it a soak test."""
    import time

    database = tmp_path / "t.db"
    empty_store(database)
    waits: list[float] = []
    with running_server(database) as server, Connection(server.url) as prober:
        done = threading.Event()

        def probe() -> None:
            while not done.wait(timeout=0.02):
                began = time.perf_counter()
                assert prober.get("/v1/health")[0] == 200
                waits.append(time.perf_counter() - began)

        probing = threading.Thread(target=probe)
        probing.start()
        bodies = [[conversation(f"e{w}.{n}", turns=40, size=2_000) for n in range(6)] for w in range(WRITERS)]
        at_once(WRITERS, lambda number: _post_all(server, bodies[number]))
        done.set()
        probing.join()
    waits.sort()
    p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    figure(
        f"health under load: {len(waits)} answers, p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms, "
        f"slowest {waits[-1] * 1e3:.1f} ms"
    )
    assert p99 < 1.0
