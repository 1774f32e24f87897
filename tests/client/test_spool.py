"""What was spooled is on disk, whole, and goes out once: torn writes, damage, several drains, odd names."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.fake import Fake, fake_server
from tests.client.test_outbox import gaps, port
from tracestore.client import Client, RejectedEvents, ServerAway, spool
from tracestore.client.server import Posted
from tracestore.client.spool import REJECTED, Spool, claimed, owner_of, spool_files, spooled

__all__ = ["port"]


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


def _texts(folder: Path) -> list[bytes]:
    return [one.text for path in spool_files(folder) for batch in spooled(path) for one in batch]


@given(st.text(st.characters(exclude_categories=("C",)), min_size=1, max_size=42), st.text(min_size=1))
def test_a_file_name_tells_whose_events_it_holds(owner: str, other: str) -> None:
    name = f"{spool._escaped(owner)}.0190.ndjson"
    assert "/" not in name
    assert len(name.encode()) <= 255
    assert owner_of(Path(name)) == owner
    assert (owner_of(Path(f"{spool._escaped('a.b')}.0190.ndjson")), other in ("a",)) != ("a", True)


def test_projects_with_dots_and_long_names_keep_apart(tmp_path: Path) -> None:
    owners = ["a", "a.b", "я" * 64]
    for owner in owners:
        Spool(tmp_path, owner).append([Posted(0, b"{}")])
    for owner in owners:
        (path,) = spool_files(tmp_path, owner=owner)
        assert owner_of(path) == owner


def test_a_batch_that_the_disk_has_no_room_for_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Spool(tmp_path, "p")
    mine.append([Posted(0, b'{"n":0}')])

    def half(file: int, data: bytes) -> None:
        os.write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(spool, "_write_all", half)
        with pytest.raises(OSError, match="No space left"):
            mine.append([Posted(1, b'{"n":1}'), Posted(2, b'{"n":2}')])
    mine.append([Posted(1, b'{"n":1}')])
    assert _texts(tmp_path) == [b'{"n":0}', b'{"n":1}']


def test_a_damaged_line_fails_alone(port: int, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        gaps(client, 1)
        gaps(client, 1, start=1, meta=b'{"a":\n1}')
    (path,) = spool_files(tmp_path)
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b'\n"half a string\n\x00\x00{"v":1\n' + second + b"\n")
    with fake_server() as server, Client(server.url, spool_dir=tmp_path) as client:
        with pytest.raises(RejectedEvents) as caught:
            client.drain()
        assert [event.id for event in server.events] == ["g0", "g1"]
    assert [one.index for one in caught.value.items] == [1, 2]
    (kept,) = spool_files(tmp_path, ending=REJECTED)
    assert kept.read_bytes() == b'"half a string\n\x00\x00{"v":1\n'


def test_what_the_server_refuses_is_kept_on_disk(server: Fake, tmp_path: Path) -> None:
    with Client(server.url, spool_dir=tmp_path) as client:
        gaps(client, 1)
        client.event("gap", "bad", episode_id="e")
        with pytest.raises(RejectedEvents):
            client.flush()
    (kept,) = tmp_path.iterdir()
    assert kept.suffix == REJECTED
    assert b'"id":"bad"' in kept.read_bytes()
    assert kept.read_bytes().count(b"\n") == 1


def test_what_a_process_spooled_it_sends_by_itself_when_the_server_is_back(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tracestore.client.outbox.MAX_PAUSE_S", 0.1)
    caplog.set_level(logging.WARNING, "tracestore.client")
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        for start in range(3):
            gaps(client, 1, start=start)
            _wait(lambda: client.stats().waiting == 0)
        assert client.stats().spooled_files == 1
        assert client.stats().away is not None
        with fake_server(port=port) as server:
            _wait(lambda: client.stats().spooled_files == 0)
            assert sorted(event.id for event in server.events) == ["g0", "g1", "g2"]
    told = [record.message for record in caplog.records]
    assert len(told) == 2, told
    assert str(tmp_path) in told[0]
    assert told[1] == "the server answers again, and has everything that had to wait for it"


def _wait(is_so: Callable[[], bool]) -> None:
    paused = threading.Event()
    for _ in range(1_000):
        if is_so():
            return
        paused.wait(0.01)
    raise AssertionError("it did not come about")


def test_flush_waits_for_whoever_else_is_sending_the_file(port: int, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        gaps(client, 1)
        with pytest.raises(ServerAway):
            client.flush()
        (path,) = spool_files(tmp_path)
        assert client._spool is not None
        client._spool.release()
        with claimed(path) as is_ours, fake_server(port=port) as server:
            assert is_ours
            flushing = threading.Thread(target=client.flush)
            flushing.start()
            flushing.join(0.3)
            assert flushing.is_alive()
            path.unlink()  # as the other does when the server has everything
            flushing.join(30)
            assert not flushing.is_alive()
            assert server.events == []


def test_two_drains_at_once_send_each_event_once(port: int, tmp_path: Path) -> None:
    for start in range(0, 40, 10):
        with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.01) as client:
            gaps(client, 10, start=start)
    taken: list[int] = []
    with fake_server() as server:

        def drain() -> None:
            with Client(server.url, spool_dir=tmp_path) as client:
                taken.append(client.drain())

        threads = [threading.Thread(target=drain) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sum(taken) == 40
        assert sum(len(request.items) for request in server.requests) == 40
        assert len(server.events) == 40
    assert list(tmp_path.iterdir()) == []


def test_where_the_server_is_away_says_where_the_events_are(port: int, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        gaps(client, 1)
        with pytest.raises(ServerAway, match="tracestore spool drain") as caught:
            client.flush()
    assert caught.value.values["spool"] == str(tmp_path)
    assert f"http://127.0.0.1:{port}" in str(caught.value)
