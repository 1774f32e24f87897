"""Nothing that was recorded is lost: retries, limits, a server that is away, a spool on disk."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.client.fake import Fake, fake_server
from tracestore.client import Client, NotRecordable, RejectedEvents, RequestRefused, ServerAway, outbox
from tracestore.client.errors import ClientClosed, ClientError
from tracestore.wire.decode import Decoded
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


def gaps(client: Client, count: int, *, start: int = 0, **fields: object) -> list[str]:
    return [client.event("gap", f"g{start + i}", episode_id="e", cause="x", **fields) for i in range(count)]


def _ids(fake: Fake) -> list[str]:
    return [event.id for event in fake.events]


def test_flush_returns_when_the_server_has_everything(server: Fake) -> None:
    client = Client(server.url)
    for start in (0, 3):
        recorded = gaps(client, 3, start=start)
        client.flush()
        assert _ids(server)[start:] == recorded
    client.flush()
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        gaps(client, 1)


def test_the_project_goes_with_every_request(server: Fake) -> None:
    with Client(server.url, project="p") as client:
        gaps(client, 1)
    assert {request.headers["X-Tracestore-Project"] for request in server.requests} == {"p"}


@pytest.mark.parametrize(("encodings", "used"), [(["gzip", "zstd"], "zstd"), (["gzip"], "gzip"), ([], None)])
def test_batches_are_compressed_as_the_server_reads(encodings: list[str], used: str | None) -> None:
    with fake_server(Fake(encodings=encodings)) as server, Client(server.url) as client:
        gaps(client, 50, detail="long " * 10)
        client.flush()
        assert {request.headers.get("Content-Encoding") for request in server.requests} == {used}
        assert len(server.events) == 50


def test_an_event_with_line_breaks_in_its_spans_arrives_as_it_was(server: Fake) -> None:
    with Client(server.url) as client:
        gaps(client, 1, meta=b'{\n  "a": "\\n"\n}')
        gaps(client, 1, start=1)
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
        gaps(client, 2)
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
        gaps(client, 20)
        gaps(client, 1, start=20, detail="x" * 1000)
        with pytest.raises(RejectedEvents) as caught:
            client.flush()
        assert len(server.events) == 20
        assert all(len(r.items) <= 7 and len(r.text) <= 300 for r in server.requests)
    (one,) = caught.value.items
    assert (one.index, one.kind, one.id) == (20, "gap", "g20")
    assert one.problem.endswith("and the server takes events of up to 300")


def test_a_batch_that_is_too_large_after_all_goes_in_halves(server: Fake) -> None:
    server.answers = [(413, {}, {"title": "too large"})] * 2
    with Client(server.url) as client:
        gaps(client, 8)
    assert sorted(_ids(server)) == sorted(f"g{i}" for i in range(8))
    assert [len(request.items) for request in server.requests] == [8, 4, 2, 2, 4]


def test_refused_events_are_named_once_and_their_mates_are_stored(server: Fake) -> None:
    with Client(server.url) as client:
        gaps(client, 1)
        client.event("gap", "bad", episode_id="e", cuase="x")
        client.event("gap", "deep", episode_id="e", cause="x", meta=b"[" * 300 + b"]" * 300)
        client.event("gap", "g0", episode_id="e", cause="another value")
        gaps(client, 1, start=1)
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
        gaps(client, 1)
        with pytest.raises(RequestRefused, match=r"401 Unauthorized: No key: send a key$"):
            client.flush()
        client.flush()
    assert _ids(server) == ["g0"]


def test_a_server_that_is_away_is_said_and_nothing_is_lost(port: int) -> None:
    client = Client(f"http://127.0.0.1:{port}", retry_s=0.2)
    gaps(client, 3)
    with pytest.raises(ServerAway, match="ConnectionRefusedError"):
        client.flush()
    gaps(client, 2, start=3)
    with fake_server(port=port) as server:
        client.flush()
        assert _ids(server) == [f"g{i}" for i in range(5)]
    gaps(client, 1, start=5)
    with pytest.raises(ServerAway):
        client.close()


def test_a_full_queue_waits_for_the_server_and_says_when_it_is_away(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_QUEUED_EVENTS", 10)
    with fake_server() as server, Client(server.url) as client:
        gaps(client, 100)
        client.flush()
        assert len(server.events) == 100
    client = Client(f"http://127.0.0.1:{port}", retry_s=0.1)
    with pytest.raises(ServerAway):
        gaps(client, 100)
    with pytest.raises(ServerAway):
        client.close()


def test_threads_record_at_once_and_each_event_arrives_once(server: Fake) -> None:
    with Client(server.url) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: (gaps(client, 50, start=50 * k), client.flush()), range(8)))
        assert sorted(_ids(server)) == sorted(f"g{i}" for i in range(400))


def test_events_wait_in_the_spool_while_the_server_is_away(
    port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = b'{"a":\n"\\ud83d \\u0000"}'
    caplog.set_level(logging.WARNING, "tracestore.client")
    with Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.1) as client:
        gaps(client, 2, meta=odd)
        with pytest.raises(ServerAway):
            client.flush()
        gaps(client, 2, start=2)
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
    gaps(client, 3)
    with pytest.raises(ServerAway):
        client.flush()
    with fake_server(port=port) as server:
        gaps(client, 1, start=3)
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
        gaps(client, 1)
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
        gaps(client, 1)
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
        gaps(client, 3)
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
        gaps(client, 1)
    (spool,) = tmp_path.iterdir()
    assert os.stat(spool).st_mode & 0o077 == 0


# Keys


def test_the_key_goes_into_a_header_and_is_shown_nowhere(
    port: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    with fake_server(Fake(key="ts_secret")) as server:
        for name, value in (("URL", server.url), ("API_KEY", "ts_secret")):
            monkeypatch.setenv(f"TRACESTORE_{name}", value)
        with Client() as client:
            gaps(client, 1)
        assert "X-Tracestore-Project" not in server.requests[0].headers
        with Client(project="p", api_key="ts_other") as client:
            gaps(client, 1)
            with pytest.raises(RequestRefused, match="401") as refused:
                client.flush()
            server.key = "ts_other"
        assert server.requests[-1].headers["X-Tracestore-Project"] == "p"
    away = Client(f"http://127.0.0.1:{port}", spool_dir=tmp_path, retry_s=0.01)
    gaps(away, 1)
    with pytest.raises(ServerAway) as caught:
        away.flush()
    away.close()
    (path,) = tmp_path.iterdir()
    shown = repr(away) + repr(vars(away)) + repr(caught.value) + str(caught.value) + caplog.text + str(path)
    for text in (shown, str(refused.value), path.read_text()):
        assert "secret" not in text
        assert "ts_other" not in text


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "http://user:hunter2@127.0.0.1:1"},
        {"url": "http://127.0.0.1:1/?key=hunter2"},
        {"api_key": "hunter2\r\nX-Evil: 1"},
        {"api_key": "hünter2"},
    ],
)
def test_a_key_in_the_wrong_place_is_refused_and_not_shown(arguments: dict[str, str]) -> None:
    with pytest.raises(ClientError) as caught:
        Client(**{"url": "http://127.0.0.1:1", **arguments})
    assert "nter2" not in str(caught.value)


# Large events


def _large(client: Client, event_id: str, size: int = 2_000) -> None:
    client.event("gap", event_id, episode_id="e", cause="x", detail="x" * size, meta=b'{\n"a": "\\ud83d"}')


def test_an_event_over_the_limit_is_sent_as_a_blob_to_the_byte() -> None:
    limits = {"max_event_bytes": 1_000, "max_offloaded_event_bytes": 10_000}
    with fake_server(Fake(limits=limits)) as server, Client(server.url, retry_s=2) as client:
        gaps(client, 1)
        _large(client, "large")
        gaps(client, 1, start=1)
        client.flush()
        assert sorted(_ids(server)) == ["g0", "g1", "large"]
        assert [event.meta for event in server.events if event.id == "large"] == [b'{\n"a": "\\ud83d"}']
        assert all(len(request.text) < 1_000 for request in server.requests)
        (blob,) = server.blobs.values()
        assert len(blob) > 2_000
        _large(client, "too-large", 20_000)
        gaps(client, 1, start=2)
        with pytest.raises(RejectedEvents, match="or as blobs of up to 10000") as caught:
            client.flush()
        assert [(one.index, one.id) for one in caught.value.items] == [(3, "too-large")]
        assert "g2" in _ids(server)


def test_an_event_refused_for_its_size_is_sent_as_a_blob_and_its_mates_stay_stored() -> None:
    """The server states more than it takes, as one with a proxy before it does."""
    fake = Fake(limits={"max_offloaded_event_bytes": 10_000})

    def refuse() -> tuple[int, dict[str, str], object]:
        items = fake.requests[-1].items
        return 207, {}, {"items": [_stored_or_too_large(fake, one) for one in items]}

    with fake_server(fake) as server, Client(server.url, retry_s=2) as client:
        server.answers = [refuse, (413, {}, {"title": "too large"})]
        gaps(client, 1)
        _large(client, "large")
        gaps(client, 1, start=1)
        client.flush()
        assert len(server.blobs) == 1
        assert sorted(_ids(server)) == ["g0", "g1", "large"]


def _stored_or_too_large(fake: Fake, one: Decoded) -> dict[str, object]:
    if len(one.text) < 1_000:
        return fake.store_item(one)
    problem = {"status": 413, "title": "The event is over the size limit"}
    return {"index": one.index, "kind": one.kind, "id": one.id, "status": "invalid", "problem": problem}


def test_a_blob_whose_reference_was_not_acknowledged_is_not_sent_again() -> None:
    limits = {"max_event_bytes": 1_000, "max_offloaded_event_bytes": 10_000}
    with fake_server(Fake(limits=limits)) as server:
        server.answers = [(503, {"Retry-After": "60"}, {})]
        client = Client(server.url, retry_s=0.1)
        _large(client, "large")
        with pytest.raises(ServerAway):
            client.flush()
        (name,) = server.blobs
        server.blobs[name] = (kept := memoryview(server.blobs[name]).tobytes())
        client.close()
        assert server.blobs[name] is kept
        assert _ids(server) == ["large"]


def test_limits_are_read_once_and_again_after_a_413(server: Fake) -> None:
    with Client(server.url) as client:
        for start in range(3):
            gaps(client, 1, start=start)
            client.flush()
        assert server.meta_reads == 1
        server.limits = {"max_body_bytes": 200}
        gaps(client, 4, start=3)
        client.flush()
        gaps(client, 4, start=7)
        client.flush()
        assert server.meta_reads == 2
    assert len(server.events) == 11
    # Four events are refused together and go in halves; the next four are cut before they are sent.
    assert [len(request.items) for request in server.requests[3:]] == [2, 2, 3, 1]


# Trouble


def test_retry_after_may_be_a_date(server: Fake) -> None:
    server.answers = [(503, {"Retry-After": "Fri, 31 Dec 2100 23:59:59 GMT"}, {})]
    client = Client(server.url, retry_s=5.0)
    gaps(client, 1)
    with pytest.raises(ServerAway, match=r"tries=1.*retry_after_s=\d{9}"):
        client.flush()
    client.close()
    assert _ids(server) == ["g0"]


def test_a_connection_that_was_closed_while_idle_is_no_trouble(
    server: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(server.url, retry_s=0.0) as client:
        for start in range(3):
            gaps(client, 1, start=start)
            client.flush()
            server.hang_up()
    assert _ids(server) == ["g0", "g1", "g2"]
    assert caplog.text == ""


def test_what_is_told_of_refused_events_is_bounded(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_KEPT_REJECTIONS", 10)
    with Client(server.url) as client:
        for _ in range(40):
            client.event("gap", episode_id="e")
        with pytest.raises(RejectedEvents, match=r"events=40;.* and 35 more") as caught:
            client.flush()
    assert len(caught.value.items) == 10


# Processes and coroutines


def _run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_child_of_a_fork_sends_its_own_events_and_none_of_its_parents(
    server: Fake, tmp_path: Path
) -> None:
    script = """
        import os, sys, threading
        from tracestore.client import Client, outbox
        outbox.LINGER_S = 30.0  # the parent still holds its events when it forks
        client = Client(sys.argv[1], spool_dir=sys.argv[2])
        client.event("gap", "before", episode_id="e", cause="x")
        client._outbox._changed.acquire()  # as a thread of the parent may at that moment
        child = os.fork()
        if child == 0:
            assert client.stats().recorded == 0
            client.event("gap", "child", episode_id="e", cause="x")
            client.flush()
            os._exit(0)
        client._outbox._changed.release()
        assert os.waitpid(child, 0)[1] == 0
        client.event("gap", "after", episode_id="e", cause="x")
        client.close()
    """
    _run(script, server.url, str(tmp_path))
    assert [[item.id for item in request.items] for request in server.requests] == [
        ["child"],
        ["before", "after"],
    ]


def test_the_child_of_a_fork_spools_into_a_file_of_its_own(port: int, tmp_path: Path) -> None:
    script = """
        import os, sys
        from tracestore.client import Client, ServerAway
        client = Client(sys.argv[1], spool_dir=sys.argv[2], retry_s=0.01)
        def spooled(name):
            client.event("gap", name, episode_id="e", cause="x")
            try:
                client.flush()
            except ServerAway:
                pass
        spooled("parent")
        child = os.fork()
        if child == 0:
            spooled("child")
            os._exit(0)
        os.waitpid(child, 0)
        spooled("again")
        os._exit(0)
    """
    _run(script, f"http://127.0.0.1:{port}", str(tmp_path))
    held = sorted(path.read_text().count("\n") for path in tmp_path.iterdir())
    assert held == [1, 2]
    with fake_server() as server, Client(server.url, spool_dir=tmp_path) as client:
        assert client.drain() == 3


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_multiprocessing_that_ends_without_close_still_sends(
    server: Fake, method: str, tmp_path: Path
) -> None:
    module = tmp_path / "harness.py"
    module.write_text(
        textwrap.dedent("""
            import multiprocessing, sys
            from tracestore.client import Client

            def work(url, name):
                Client(url).event("gap", name, episode_id="e", cause="x")

            if __name__ == "__main__":
                client = Client(sys.argv[1])
                client.event("gap", "parent", episode_id="e", cause="x")
                context = multiprocessing.get_context(sys.argv[2])
                workers = [context.Process(target=work, args=(sys.argv[1], f"w{i}")) for i in range(2)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
                    assert worker.exitcode == 0
        """)
    )
    subprocess.run([sys.executable, module, server.url, method], check=True, timeout=60)
    assert sorted(_ids(server)) == ["parent", "w0", "w1"]


def test_the_event_loop_goes_on_while_a_coroutine_flushes(server: Fake) -> None:
    turns = 0

    def slowly() -> None:
        paused.wait(0.3)

    async def tick(flushing: asyncio.Task[None]) -> None:
        nonlocal turns
        while not flushing.done():
            turns += 1
            await asyncio.sleep(0.01)

    async def main() -> None:
        async with Client(server.url) as client:
            gaps(client, 1)
            flushing = asyncio.create_task(client.aflush())
            await tick(flushing)
            await flushing
            gaps(client, 1, start=1)

    paused = threading.Event()
    server.answers = [slowly]
    asyncio.run(main())
    assert turns > 5
    assert _ids(server) == ["g0", "g1"]


def test_a_text_that_is_no_json_fails_alone_or_where_it_is_recorded(server: Fake) -> None:
    with Client(server.url) as client:
        gaps(client, 1)
        client.record(b'{"v":1,')
        with pytest.raises(NotRecordable):
            client.record(b'{"v":1,\n')
        gaps(client, 1, start=1)
        with pytest.raises(RejectedEvents) as caught:
            client.flush()
    assert [one.index for one in caught.value.items] == [1]
    assert _ids(server) == ["g0", "g1"]


def test_a_connection_that_is_reset_while_it_is_made_is_tried_again(
    server: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = socket.create_connection
    resets = [ConnectionResetError(104, "Connection reset by peer")] * 2

    def unsure(*arguments: Any, **options: Any) -> socket.socket:
        if resets:
            raise resets.pop()
        return connect(*arguments, **options)

    monkeypatch.setattr(socket, "create_connection", unsure)
    with Client(server.url) as client:
        gaps(client, 1)
    assert _ids(server) == ["g0"]


def test_a_turn_of_1446_events_goes_in_requests_of_the_servers_cap() -> None:
    with fake_server(Fake(limits={"max_events": 100})) as server, Client(server.url) as client:
        recorded = gaps(client, 1_446)
        client.flush()
        assert _ids(server) == recorded
        assert max(len(request.items) for request in server.requests) == 100
