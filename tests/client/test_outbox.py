"""Nothing that was recorded is lost: retries, limits, a server that is away, a spool on disk."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest

from tests.client.fake import Fake, fake_server
from tracestore.client import Client, RejectedEvents, RequestRefused, ServerAway, outbox
from tracestore.client.errors import ClientClosed
from tracestore.wire.errors import TooDeep


@pytest.fixture
def server() -> Iterator[Fake]:
    with fake_server() as fake:
        yield fake


@pytest.fixture
def port() -> Iterator[int]:
    """A port where nobody answers and a server may begin to: held by a socket that does not listen.

    A port that is free and not held can be given to another process in the middle of the test.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def _gaps(client: Client, count: int, *, start: int = 0, **fields: object) -> list[str]:
    return [client.event("gap", f"g{start + i}", episode_id="e", cause="x", **fields) for i in range(count)]


def _ids(fake: Fake) -> list[str]:
    return [event.id for event in fake.events]


def test_flush_returns_when_the_server_has_everything(server: Fake) -> None:
    client = Client(server.url)
    for start in (0, 3):
        recorded = _gaps(client, 3, start=start)
        client.flush()
        assert _ids(server)[start:] == recorded
    client.flush()
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        _gaps(client, 1)


def test_the_project_goes_with_every_request(server: Fake) -> None:
    with Client(server.url, project="p") as client:
        _gaps(client, 1)
    assert {request.headers["X-Tracestore-Project"] for request in server.requests} == {"p"}


@pytest.mark.parametrize(("encodings", "used"), [(["gzip", "zstd"], "zstd"), (["gzip"], "gzip"), ([], None)])
def test_batches_are_compressed_as_the_server_reads(encodings: list[str], used: str | None) -> None:
    with fake_server(Fake(encodings=encodings)) as server, Client(server.url) as client:
        _gaps(client, 50, detail="long " * 10)
        client.flush()
        assert {request.headers.get("Content-Encoding") for request in server.requests} == {used}
        assert len(server.events) == 50


def test_an_event_with_line_breaks_in_its_spans_arrives_as_it_was(server: Fake) -> None:
    with Client(server.url) as client:
        _gaps(client, 1, meta=b'{\n  "a": "\\n"\n}')
        _gaps(client, 1, start=1)
    assert server.events[0].meta == b'{\n  "a": "\\n"\n}'
    assert _ids(server) == ["g0", "g1"]


def test_busy_answers_and_lost_answers_are_tried_again_with_the_same_ids(server: Fake) -> None:
    def stored_but_unanswered() -> tuple[int, dict[str, str], object]:
        server.store(server.requests[-1])
        return 500, {}, "the answer is lost"

    server.answers = [
        (503, {"Retry-After": "0.2"}, {"title": "Busy"}),
        (429, {}, {}),
        (200, {}, []),
        stored_but_unanswered,
    ]
    with Client(server.url) as client:
        begin = monotonic()
        _gaps(client, 2)
        client.flush()
        assert monotonic() - begin >= 0.2
    assert _ids(server) == ["g0", "g1"]
    assert len({request.text for request in server.requests}) == 1
    assert len(server.requests) == 5


def test_batches_keep_to_the_limits_of_the_server() -> None:
    with (
        fake_server(Fake(limits={"max_events": 7, "max_body_bytes": 300})) as server,
        Client(server.url) as client,
    ):
        _gaps(client, 20)
        _gaps(client, 1, start=20, detail="x" * 1000)
        with pytest.raises(RejectedEvents) as caught:
            client.flush()
        assert len(server.events) == 20
        assert all(len(r.items) <= 7 and len(r.text) <= 300 for r in server.requests)
    (one,) = caught.value.items
    assert (one.index, one.kind, one.id) == (20, "gap", "g20")
    assert "413" in one.problem


def test_a_batch_that_is_too_large_after_all_goes_in_halves(server: Fake) -> None:
    server.answers = [(413, {}, {"title": "too large"})] * 2
    with Client(server.url) as client:
        _gaps(client, 8)
    assert sorted(_ids(server)) == sorted(f"g{i}" for i in range(8))
    assert [len(request.items) for request in server.requests] == [8, 4, 2, 2, 4]


def test_refused_events_are_named_once_and_their_mates_are_stored(server: Fake) -> None:
    with Client(server.url) as client:
        _gaps(client, 1)
        client.event("gap", "bad", episode_id="e", cuase="x")
        client.event("gap", "deep", episode_id="e", cause="x", meta=b"[" * 300 + b"]" * 300)
        client.event("gap", "g0", episode_id="e", cause="another value")
        _gaps(client, 1, start=1)
        with pytest.raises(RejectedEvents) as caught:
            client.flush()
        client.flush()
    assert _ids(server) == ["g0", "g1"]
    assert [(one.index, one.kind, one.id, one.status) for one in caught.value.items] == [
        (1, "gap", "bad", "invalid"),
        (2, "gap", "deep", "invalid"),
        (3, "gap", "g0", "conflict"),
    ]
    assert "did you mean 'cause'" in caught.value.items[0].problem
    assert TooDeep.__doc__ is not None
    assert TooDeep.__doc__ in caught.value.items[1].problem
    assert "#1 gap bad: " in str(caught.value)


def _fail(_: object) -> None:
    raise ValueError("of the harness")


def test_refused_events_are_raised_at_the_end_of_the_block(server: Fake) -> None:
    with pytest.raises(RejectedEvents), Client(server.url) as client:
        client.event("gap", "bad")
    with pytest.raises(ValueError, match="of the harness") as caught, Client(server.url) as client:
        _fail(client.event("gap", "bad"))
    assert "not everything was recorded" in caught.value.__notes__[0]


def test_a_wrong_address_or_key_is_said_and_not_tried_again(server: Fake) -> None:
    problem = {"title": "No key", "detail": "No key: send a key", "hint": "send a key"}
    server.answers = [(401, {}, problem)]
    with Client(server.url) as client:
        _gaps(client, 1)
        with pytest.raises(RequestRefused, match=r"401 Unauthorized: No key: send a key$"):
            client.flush()
        client.flush()
    assert _ids(server) == ["g0"]


def test_a_server_that_is_away_is_said_and_nothing_is_lost(port: int) -> None:
    client = Client(f"http://127.0.0.1:{port}", retry_s=0.2)
    _gaps(client, 3)
    with pytest.raises(ServerAway, match="ConnectionRefusedError"):
        client.flush()
    _gaps(client, 2, start=3)
    with fake_server(port=port) as server:
        client.flush()
        assert _ids(server) == [f"g{i}" for i in range(5)]
    _gaps(client, 1, start=5)
    with pytest.raises(ServerAway):
        client.close()


def test_a_full_queue_waits_for_the_server_and_says_when_it_is_away(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_QUEUED_EVENTS", 10)
    with fake_server() as server, Client(server.url) as client:
        _gaps(client, 100)
        client.flush()
        assert len(server.events) == 100
    client = Client(f"http://127.0.0.1:{port}", retry_s=0.1)
    with pytest.raises(ServerAway):
        _gaps(client, 100)
    with pytest.raises(ServerAway):
        client.close()


def test_threads_record_at_once_and_each_event_arrives_once(server: Fake) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: (_gaps(client, 50, start=50 * k), client.flush()), range(8)))
        assert sorted(_ids(server)) == sorted(f"g{i}" for i in range(400))


def test_events_wait_in_the_spool_while_the_server_is_away(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = b'{"a":\n"\\ud83d \\u0000"}'
    caplog.set_level(logging.WARNING, "tracestore.client")
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.1) as client:
        _gaps(client, 2, meta=odd)
        with pytest.raises(ServerAway):
            client.flush()
        _gaps(client, 2, start=2)
    assert str(tmp_path) in caplog.text
    (spool,) = tmp_path.iterdir()
    assert spool.read_bytes().count(b"\n") == 4

    with fake_server(port=port) as server, Client(server.url, spool_dir=tmp_path) as client:
        assert client.drain() == 4
        assert client.drain() == 0
        assert _ids(server) == ["g0", "g1", "g2", "g3"]
        assert server.events[0].meta == odd
    assert list(tmp_path.iterdir()) == []


def test_flush_sends_the_spool_once_the_server_is_back(port: int, tmp_path: Path) -> None:
    client = Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.1)
    _gaps(client, 3)
    with pytest.raises(ServerAway):
        client.flush()
    with fake_server(port=port) as server:
        _gaps(client, 1, start=3)
        client.flush()
        assert sorted(_ids(server)) == ["g0", "g1", "g2", "g3"]
        client.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_spooled_is_drained_by_the_next_one(port: int, tmp_path: Path) -> None:
    script = f"""
        import os
        from tracestore.client import Client, ServerAway
        client = Client("http://127.0.0.1:{port}", spool_dir={str(tmp_path)!r}, retry_s=0.05)
        for i in range(5):
            client.event("gap", f"g{{i}}", episode_id="e", cause="x")
        try:
            client.flush()
        except ServerAway:
            os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=60)
    assert done.returncode == -9
    (spool,) = tmp_path.iterdir()
    with spool.open("ab") as file:
        file.write(b'{"v":1,"kind":"gap","id":"half')  # the write that the crash cut short
    with fake_server() as server, Client(server.url, spool_dir=tmp_path) as client:
        assert client.drain() == 5
        assert _ids(server) == [f"g{i}" for i in range(5)]


def test_drain_leaves_alone_what_others_write_and_other_projects(port: int, tmp_path: Path) -> None:
    away = f"http://127.0.0.1:{port}"
    writer = Client(away, spool_dir=tmp_path, retry_s=0.05)
    other = Client(away, spool_dir=tmp_path, retry_s=0.05, project="other")
    for client in (writer, other):
        _gaps(client, 1)
        with pytest.raises(ServerAway):
            client.flush()
    with fake_server() as server, Client(server.url, spool_dir=tmp_path) as client:
        assert client.drain() == 0
        writer.close()
        assert client.drain() == 1
        assert client.drain() == 0
    other.close()
    assert [path.name.partition(".")[0] for path in tmp_path.iterdir()] == ["other"]


def test_what_a_drain_cannot_place_is_kept_beside_it(port: int, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        _gaps(client, 1)
        client.event("gap", "bad", episode_id="e")
    with fake_server() as server, Client(server.url, spool_dir=tmp_path) as client:
        with pytest.raises(RejectedEvents, match="#1 gap bad"):
            client.drain()
        assert _ids(server) == ["g0"]
    (kept,) = tmp_path.iterdir()
    assert kept.suffix == ".rejected"
    assert b'"id":"bad"' in kept.read_bytes()


def test_a_drain_that_is_cut_off_sends_again_and_stores_once(port: int, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        _gaps(client, 3)
    with fake_server() as server, Client(server.url, spool_dir=tmp_path, retry_s=0.05) as client:

        def stored_but_unanswered() -> tuple[int, dict[str, str], object]:
            server.store(server.requests[-1])
            return 503, {"Retry-After": "60"}, {}

        server.answers = [stored_but_unanswered]
        with pytest.raises(ServerAway):
            client.drain()
        assert client.drain() == 3
        assert _ids(server) == ["g0", "g1", "g2"]


def test_a_process_that_ends_without_close_still_sends(server: Fake) -> None:
    script = f"""
        from tracestore.client import Client
        Client({server.url!r}).event("gap", "last", episode_id="e", cause="x")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    assert _ids(server) == ["last"]


def test_the_spool_is_for_its_owner_only(port: int, tmp_path: Path) -> None:
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.05) as client:
        _gaps(client, 1)
    (spool,) = tmp_path.iterdir()
    assert os.stat(spool).st_mode & 0o077 == 0
