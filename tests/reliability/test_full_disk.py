"""A disk without room: 507 and what to do, nothing harmed, and it goes on by itself when there is room."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.event import listen, remove

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted, user
from tests.reliability.faults import can_mount, on_a_disk_of, seen_by, with_failing_calls
from tests.reliability.recordings import array, conversation, names, statuses, stored
from tests.serving import Connection, running_server
from tracestore.store import Store
from tracestore.wire.events import AnyEvent

FULL = "urn:tracestore:problem:store-full"


def incompressible(name: str, *, size: int = 200_000) -> AnyEvent:
    return make.call(name, [user(random.Random(name).randbytes(size // 2).hex())], "ok")


def test_a_database_at_its_page_limit_says_507_and_goes_on_when_it_may_grow(
    store: Store, client: TestClient, tmp_path: Path
) -> None:
    def no_more_pages(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # SQLite takes the present size for the least

    first, more = posted(make.episode("e"))[1], posted(incompressible("more"))[1]
    assert client.post("/v1/events", content=first).status_code == 200
    listen(store.engine, "connect", no_more_pages)
    store.engine.dispose()
    refused = client.post("/v1/events", content=more)
    assert refused.status_code == 507
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["type"] == FULL
    assert "free some space" in refused.json()["hint"]
    # What is stored can be read, and the server is well.
    assert client.get("/v1/episodes/e").status_code == 200
    assert client.get("/v1/health").status_code == 200
    remove(store.engine, "connect", no_more_pages)
    store.engine.dispose()
    assert client.post("/v1/events", content=more).json()["stored"] == 1
    store.close()
    assert stored(tmp_path / "t.db") == {("episode", "e"), ("call", "more")}


@pytest.mark.skipif(not can_mount(), reason="this user may not mount a file system")
def test_a_full_file_system_says_507_and_goes_on_when_something_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    database = folder / "t.db"
    sent: list[AnyEvent] = []
    with (
        running_server(database, prefix=on_a_disk_of(8 * 2**20, folder)) as server,
        Connection(server.url) as connection,
    ):
        disk = seen_by(server, folder)
        (disk / "ballast").write_bytes(bytes(5 * 2**20))
        answer: dict[str, object] = {}
        status = 200
        while status == 200:
            assert len(sent) < 50, "the disk never filled up"
            event = incompressible(f"c{len(sent)}")
            status, answer = connection.post("/v1/events", posted(event)[1])
            sent += [event] if status == 200 else []
        assert (status, answer["type"]) == (507, FULL)
        # It stays so, for small posts to every door too once the log cannot grow, and reads still answer.
        assert connection.post("/v1/events", posted(incompressible("other"))[1])[0] == 507
        assert connection.get("/v1/calls/c0")[0] == 200
        (disk / "ballast").unlink()
        status, answer = connection.post("/v1/events", posted(incompressible("after"))[1])
        assert (status, answer["stored"]) == (200, 1)
        shutil.copytree(disk, tmp_path / "copy")
    assert stored(tmp_path / "copy" / "t.db") == names([*sent, incompressible("after")])


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_log_that_cannot_grow_fails_the_post_and_not_what_is_stored(tmp_path: Path) -> None:
    """ENOSPC in the middle of writing the log: SQLite has then written some of a transaction's pages."""
    database = tmp_path / "t.db"
    empty_store(database)
    broken = with_failing_calls(["pwrite64:error=ENOSPC:when=40..46"], on=Path(f"{database}-wal"))
    acknowledged: dict[tuple[str, str], str] = {}
    refused = 0
    with running_server(database, prefix=broken) as server, Connection(server.url) as connection:
        for number in range(12):
            events = conversation(f"e{number}", turns=2)
            status, answer = connection.post("/v1/events", array(events))
            if status != 200:
                refused += 1
                assert (status, answer["type"]) == (507, FULL)
                status, answer = _post_until_taken(connection, array(events))
            acknowledged |= statuses(answer)
    assert refused > 0
    assert set(acknowledged.values()) == {"stored"}
    assert stored(database) == set(acknowledged)


def _post_until_taken(connection: Connection, body: bytes) -> tuple[int, dict[str, object]]:
    for _ in range(10):
        status, answer = connection.post("/v1/events", body)
        if status == 200:
            return status, answer
        assert status == 507
    raise AssertionError("there is room again, and it is still refused")


@pytest.mark.soak
@pytest.mark.skipif(not can_mount(), reason="this user may not mount a file system")
def test_a_store_on_a_full_disk_can_still_be_opened_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    kept = tmp_path / "kept.db"
    with Store.open(empty_store(kept)) as store:
        store.ingest("default", [posted(event) for event in conversation("e", turns=3)])
    with closing(sqlite3.connect(kept)) as connection:
        size = connection.execute("PRAGMA page_count").fetchone()[0] * 4096
    # Beside the file there is room for the shared memory of the log's index and for nothing else.
    prefix = [*on_a_disk_of(size + 40_960, folder), "sh", "-c", f'cp {kept} {folder}/t.db && exec "$@"', "sh"]
    with running_server(folder / "t.db", prefix=prefix) as server, Connection(server.url) as connection:
        assert connection.get("/v1/calls/e%2F2")[0] == 200
        status, answer = connection.post("/v1/events", posted(incompressible("c"))[1])
        assert (status, answer["type"]) == (507, FULL)
