"""The server as a process: it says where it listens, keeps what it acknowledged, and ends cleanly."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from tests.factories import episode, posted
from tests.serving import Connection, running_server

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


def test_an_address_that_others_can_reach_and_a_taken_port_are_refused(tmp_path: Path) -> None:
    def serve(*flags: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "tracestore.cli.main",
            "serve",
            "--db",
            f"sqlite:///{tmp_path}/x.db",
            *flags,
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    reachable = serve("--host", "0.0.0.0")
    assert (reachable.returncode, "loopback" in reachable.stderr) == (2, True)
    with running_server(tmp_path / "t.db") as server:
        taken = serve("--port", server.url.rpartition(":")[2])
    assert (taken.returncode, "cannot listen" in taken.stderr) == (1, True)
    assert not (tmp_path / "x.db").exists()


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
