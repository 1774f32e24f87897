"""What an operator meets sooner or later: a failed sync, a torn log, no descriptors, stalled clients."""

from __future__ import annotations

import http.client
import shutil
import socket
import sqlite3
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.databases import empty_store
from tests.factories import posted
from tests.reliability.faults import with_descriptors, with_failing_calls
from tests.reliability.recordings import Name, array, conversation, names, statuses, stored
from tests.serving import Connection, running_server
from tracestore.store import Store

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


@needs_strace
def test_a_post_whose_sync_failed_is_not_acknowledged_and_later_ones_are_stored(tmp_path: Path) -> None:
    """After a failed sync the system may have thrown the pages away: only a new write and sync may count."""
    database = tmp_path / "t.db"
    empty_store(database)
    broken = with_failing_calls(["fdatasync:error=EIO:when=3..5"], on=Path(f"{database}-wal"))
    results: list[int] = []
    acknowledged: set[Name] = set()
    with running_server(database, prefix=broken) as server, Connection(server.url) as connection:
        for number in range(8):
            events = conversation(f"e{number}", turns=1)
            status, answer = connection.post("/v1/events", array(events))
            results.append(status)
            if status == 200:
                assert answer["stored"] == len(events)
                acknowledged |= names(events)
            else:
                assert (status, answer["hint"]) == (503, "check the disk")
    # The third to fifth sync failed; whatever else these did, some posts before and some after succeeded.
    assert 503 in results
    assert (results[0], results[-1]) == (200, 200)
    assert acknowledged <= stored(database)


def test_a_log_that_was_torn_by_a_power_cut_holds_whole_posts_up_to_the_tear(tmp_path: Path) -> None:
    """Cut the log anywhere: what opens is sound, and is what some number of posts had stored by then."""
    database = tmp_path / "t.db"
    posts = [conversation(f"e{number}", turns=2) for number in range(5)]
    log = Path(f"{database}-wal")
    sizes = []
    with Store.open(empty_store(database)) as store:
        for events in posts:
            store.ingest("default", [posted(event) for event in events])
            sizes.append(log.stat().st_size)
        whole, wal = database.read_bytes(), log.read_bytes()
    for cut in [0, 17, sizes[0], *(size + step for size in sizes[1:5:3] for step in (-4096, -1, 0, 1))]:
        torn = tmp_path / "torn.db"
        for left in tmp_path.glob("torn.db*"):
            left.unlink()
        torn.write_bytes(whole)
        Path(f"{torn}-wal").write_bytes(wal[: max(0, cut)])
        survived = sum(size <= cut for size in sizes)
        assert stored(torn) == names(event for events in posts[:survived] for event in events), cut
    # A piece that never reached the disk while later ones did, as disks that reorder writes leave it: what
    # was there before is there still, here the opposite of each bit.
    holed = bytearray(wal)
    middle = (sizes[2] + sizes[3]) // 2
    holed[middle : middle + 512] = bytes(byte ^ 0xFF for byte in holed[middle : middle + 512])
    torn.write_bytes(whole)
    Path(f"{torn}-wal").write_bytes(holed)
    Path(f"{torn}-shm").unlink(missing_ok=True)
    assert stored(torn) == names(event for events in posts[:3] for event in events)


@pytest.mark.soak
def test_a_server_without_descriptors_left_refuses_and_serves_again_when_there_are_some(
    tmp_path: Path,
) -> None:
    database = tmp_path / "t.db"
    first, second = conversation("e1", turns=2), conversation("e2", turns=2)
    with running_server(database, prefix=with_descriptors(48)) as server:
        with Connection(server.url) as connection:
            assert connection.post("/v1/events", array(first))[0] == 200
        where = urlsplit(server.url)
        with ExitStack() as held:
            for _ in range(64):
                idle = socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=60)
                held.enter_context(closing(idle))
            while len(list(Path(f"/proc/{server.pid}/fd").iterdir())) < 48:
                time.sleep(0.05)
        for _ in range(240):
            try:
                with Connection(server.url) as connection:
                    status, answer = connection.post("/v1/events", array(second))
            except (OSError, http.client.HTTPException):
                status = 0
            if status == 200:
                break
            assert status in (0, 503)
            time.sleep(0.1)
        assert (status, answer["stored"]) == (200, len(second))
        with Connection(server.url) as connection:
            assert connection.get("/v1/episodes/e1")[0] == 200
        assert server.ended_with() == 0
    assert stored(database) == names([*first, *second])


def test_a_server_that_is_told_to_stop_under_load_answers_what_it_took_and_ends_cleanly(
    tmp_path: Path,
) -> None:
    database = tmp_path / "t.db"
    acknowledged: dict[Name, str] = {}
    refused: list[object] = []
    under_load = threading.Event()

    def client(number: int) -> None:
        with Connection(server.url) as connection:
            for round_ in range(10_000):
                events = conversation(f"e{number}.{round_}", turns=2)
                try:
                    status, answer = connection.post("/v1/events", array(events))
                except (OSError, http.client.HTTPException):
                    return
                if status != 200:
                    refused.append(answer)
                    return
                acknowledged.update(statuses(answer))
                if round_ == 5:
                    under_load.set()

    with running_server(database) as server:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        assert under_load.wait(timeout=60)
        assert server.ended_with() == 0
        for thread in threads:
            thread.join(timeout=60)
    assert refused == []
    assert (tmp_path / "t.log").read_text() == ""
    # Answered means stored; what was stored without an answer getting through is a whole post.
    assert set(acknowledged) <= stored(database)


def test_a_post_waits_for_another_writer_and_says_who_is_in_the_way_when_it_must_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "t.db"
    monkeypatch.setattr("tracestore.store.engine.BUSY_TIMEOUT_MS", 200)
    from tracestore.store.engine import StoreUnavailable

    with Store.open(empty_store(database)) as store, closing(sqlite3.connect(database)) as other:
        events = [posted(event) for event in conversation("e", turns=1)]
        other.isolation_level = None
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another process is writing") as error:
            store.ingest("p", events)
        assert error.value.status == 503
        other.execute("ROLLBACK")
        assert {outcome.status for outcome in store.ingest("p", events)} == {"stored"}


STALLED = """
import sys
import tracestore_api.body
tracestore_api.body.IDLE_S = 0.5
from tracestore.cli.main import main
sys.exit(main([*sys.argv[4:], "--max-requests-in-hand", "8"]))
"""
"""Runs the command after it, `python -m tracestore.cli.main ...`, as a server that soon loses patience."""


def test_clients_that_stop_in_the_middle_of_a_body_do_not_keep_others_out(tmp_path: Path) -> None:
    """More of them than the server takes posts at once: each is sent away, and its place is free again."""
    half = b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\n{"
    events = conversation("e", turns=1)
    with (
        running_server(tmp_path / "t.db", prefix=[sys.executable, "-c", STALLED]) as server,
        ExitStack() as held,
    ):
        where = urlsplit(server.url)
        stalled = []
        for _ in range(20):
            client = socket.create_connection((str(where.hostname), int(where.port or 0)), timeout=60)
            held.enter_context(closing(client))
            client.sendall(half)
            stalled.append(client)
        # Eight hold all places until they are told; the others are told at once that there is none.
        told = sorted(client.recv(65536).split(b" ", 2)[1] for client in stalled)
        assert told == [b"408"] * 8 + [b"503"] * 12
        with Connection(server.url) as connection:
            status, answer = connection.post("/v1/events", array(events))
        assert (status, answer["stored"]) == (200, len(events))
