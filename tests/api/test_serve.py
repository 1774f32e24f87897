"""The server as a process: it says where it listens, keeps what it acknowledged, and ends cleanly."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tests.factories import episode, posted
from tests.serving import Connection, Running, running_server
from tests.store.servers import postgresql
from tracestore.cli.main import main

BODY = posted(episode("e1"))[1]


def test_it_says_its_url_and_a_restart_still_has_everything(tmp_path: Path) -> None:
    for expected in ("stored", "duplicate"):
        with running_server(tmp_path / "t.db") as server:
            assert server.url.startswith("http://127.0.0.1:")
            with Connection(server.url) as connection:
                status, answer = connection.post("/v1/events", BODY)
            assert (status, answer["items"][0]["status"]) == (200, expected)
            assert server.ended_with() == 0
    assert (tmp_path / "t.log").read_text() == ""


def test_an_address_that_others_can_reach_and_a_taken_port_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serve = ["serve", "--db", f"sqlite:///{tmp_path}/x.db"]
    assert main([*serve, "--host", "0.0.0.0"]) == 2
    assert "loopback" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main([*serve, "--port", str(taken.getsockname()[1])]) == 1
    assert "cannot listen" in capsys.readouterr().err
    assert not (tmp_path / "x.db").exists()


def make_key(capsys: pytest.CaptureFixture[str], url: str) -> str:
    words = ["--db", url, "--project", "tau", "--name", "n", "--scope", "admin"]
    assert main(["keys", "create", *words]) == 0
    return capsys.readouterr().out.strip()


def test_with_a_key_in_the_database_it_listens_where_others_can_reach_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "t.db"
    key = make_key(capsys, f"sqlite:///{database}")
    with running_server(database, flags=["--host", "0.0.0.0"]) as server:
        assert server.url.startswith("http://0.0.0.0:")
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        with Connection(url) as connection:
            assert connection.post("/v1/events", BODY)[0] == 401
            assert connection.post("/v1/events", BODY, {"Authorization": f"Bearer {key}"})[0] == 200
            assert connection.get("/v1/health")[0] == 200
        assert server.ended_with() == 0
    log = (tmp_path / "t.log").read_text()
    assert log == ""


def test_settings_come_from_flags_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACESTORE_MAX_EVENTS", "7")
    monkeypatch.setenv("TRACESTORE_MAX_DEPTH", "9")
    with (
        running_server(tmp_path / "t.db", flags=["--max-depth", "11"]) as server,
        Connection(server.url) as connection,
    ):
        limits = connection.get("/v1/meta")[1]["limits"]
    assert (limits["max_events"], limits["max_depth"]) == (7, 11)


def test_a_sqlite_file_is_served_by_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--workers", "2", "--db", f"sqlite:///{tmp_path}/x.db"]) == 2
    assert "PostgreSQL" in capsys.readouterr().err
    assert not (tmp_path / "x.db").exists()


def test_several_processes_share_a_port_and_a_store_and_end_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgresql() as url:
        sent = {"Authorization": f"Bearer {make_key(capsys, url)}"}
        with running_server(tmp_path / "t.db", url=url, flags=["--workers", "2"]) as server:
            _check_workers(server, sent)
    assert (tmp_path / "t.log").read_text() == ""


def _check_workers(server: Running, sent: dict[str, str]) -> None:
    for expected in ("stored", "duplicate"):
        for n in range(12):  # a connection each, so that both processes get some
            with Connection(server.url) as connection:
                status, answer = connection.post("/v1/events", posted(episode(f"e{n}"))[1], sent)
            assert (status, answer["items"][0]["status"]) == (200, expected)
    with Connection(server.url) as connection:
        assert connection.get("/v1/episodes")[0] == 401
        assert connection.post("/replay/episode=e1/tools/call", b"{}", sent)[0] == 400
    workers = workers_of(server.pid)
    assert len(workers) == 2
    assert server.ended_with() == 0
    assert [pid for pid in workers if Path(f"/proc/{pid}").exists()] == []


def workers_of(pid: int) -> list[int]:
    """Its child processes, without the helper that multiprocessing starts beside them."""
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_health_answers_while_large_batches_are_decoded(tmp_path: Path) -> None:
    batch = b"[" + b",".join(posted(episode(f"e{n}", task="x" * 500))[1] for n in range(5000)) + b"]"
    with running_server(tmp_path / "t.db") as server:
        poster = threading.Thread(target=_post, args=(server.url, batch))
        with Connection(server.url) as connection:
            connection.get("/v1/health")
            poster.start()
            answers = 0
            while poster.is_alive():
                assert connection.get("/v1/health") == (200, {"status": "ok"})
                answers += 1
        poster.join()
    # Blocked for the whole batch, the server would have answered once.
    assert answers > 5


def _post(url: str, body: bytes) -> None:
    with Connection(url) as connection:
        assert connection.post("/v1/events", body)[0] == 200
