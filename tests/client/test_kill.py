"""SIGKILL of a harness while its server comes and goes: what was acknowledged to it is stored, once.

Acknowledged is what a `flush` returned for, and what it raised `ServerAway` for with the spool named: those
events are on this machine's disk. Afterwards `tracestore spool drain` sends what the killed processes left.
"""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from tests.client.fake import Fake, fake_server
from tests.client.test_outbox import port
from tests.databases import NAMED_EVENTS
from tests.serving import Running, running_server
from tracestore.cli.main import main
from tracestore.store.verify import verify
from tracestore_migrations import open_store

__all__ = ["port"]

HARNESS = textwrap.dedent("""
    import sys
    from tracestore.client import Client, ClientError, outbox

    outbox.SPOOL_AFTER_S = outbox.MAX_PAUSE_S = 0.05
    outbox.MAX_BATCH_EVENTS = 7
    client = Client(sys.argv[1], spool_dir=sys.argv[2], retry_s=0.05)
    number = 0
    while True:
        for _ in range(25):
            client.event("gap", f"{sys.argv[3]}/{number}", episode_id="e", cause="x", detail="y" * 300)
            number += 1
        try:
            client.flush()
        except ClientError as error:
            if "spool" not in error.values:
                raise
        print(number, flush=True)
""")

Serve = Callable[[], AbstractContextManager[object]]


@contextmanager
def coming_and_going(serve: Serve, *, seed: int, longest_s: float) -> Iterator[None]:
    """A server that is there for a while and away for a while, over and over."""
    rng = random.Random(seed)
    stopped = threading.Event()

    def flap() -> None:
        while not stopped.wait(rng.uniform(0, longest_s)):
            with serve():
                stopped.wait(rng.uniform(0, longest_s))

    thread = threading.Thread(target=flap)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def kill_rounds(url: str, folder: Path, *, seed: int, rounds: int, longest_s: float) -> set[str]:
    """Let a harness run and kill it, that often; the ids of events that were acknowledged."""
    rng = random.Random(seed)
    acknowledged: set[str] = set()
    for number in range(rounds):
        name = f"h{number}"
        command = [sys.executable, "-c", HARNESS, url, str(folder), name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as harness:
            assert harness.stdout is not None
            lines = [harness.stdout.readline()]
            killing = threading.Timer(rng.uniform(0, longest_s), harness.kill)
            killing.start()
            lines += harness.stdout.readlines()
            killing.join()
        assert harness.returncode == -9
        done = int([line for line in lines if line.endswith("\n")][-1])
        acknowledged |= {f"{name}/{n}" for n in range(done)}
    return acknowledged


def test_a_killed_harness_loses_and_doubles_nothing(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake()
    url, folder = f"http://127.0.0.1:{port}", tmp_path / "spool"
    with coming_and_going(lambda: fake_server(fake, port=port), seed=1, longest_s=0.2):
        acknowledged = kill_rounds(url, folder, seed=1, rounds=3, longest_s=0.6)
    with fake_server(fake, port=port):
        assert main(["spool", "drain", "--folder", str(folder), "--url", url]) == 0
    assert list(folder.iterdir()) == []
    stored = [event.id for event in fake.events]
    assert acknowledged
    assert acknowledged <= set(stored)
    assert len(stored) == len(set(stored))


@pytest.mark.soak
def test_twenty_five_kills_while_a_real_server_is_killed_too(port: int, tmp_path: Path) -> None:
    database, folder = tmp_path / "t.db", tmp_path / "spool"
    url = f"http://127.0.0.1:{port}"

    @contextmanager
    def serve() -> Iterator[Running]:
        with running_server(database, flags=["--port", str(port)]) as server:
            yield server
            server.kill()

    with coming_and_going(serve, seed=2, longest_s=3.0):
        acknowledged = kill_rounds(url, folder, seed=2, rounds=25, longest_s=6.0)
    with running_server(database, flags=["--port", str(port)]):
        assert main(["spool", "drain", "--folder", str(folder), "--url", url]) == 0
    assert list(folder.iterdir()) == []
    store = open_store(f"sqlite:///{database}")
    try:
        assert verify(store, "default").problems == ()
        with store.read() as connection:
            stored = [row[0] for row in connection.execute(text(f"SELECT id FROM ({NAMED_EVENTS})"))]
    finally:
        store.close()
    assert acknowledged <= set(stored)
    assert len(stored) == len(set(stored))
