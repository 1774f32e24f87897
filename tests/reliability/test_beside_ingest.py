"""What reads a store beside a harness that posts costs the harness no more than a CPU loop would.

A claim about a machine with two cores or more, so in ratios alone: rounds of the work take turns with rounds
of a loop of the same niceness, and what the loop's own rounds differ by is what a difference may be.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted
from tests.reliability.recordings import array, figure
from tests.serving import Connection, Running, running_server
from tracestore.store import Store
from tracestore.wire.events import AnyEvent

CALLS, TURNS = 20_000, 8
ROUNDS, ROUND_S = 5, 8.0
LONG = "SELECT count(*) FROM messages a, messages b, messages c WHERE a.size + b.size > c.size"


def rollout(name: str) -> list[AnyEvent]:
    """An episode of `TURNS` calls with token ids, each of which extends the one before."""
    events: list[AnyEvent] = [make.episode(name, status="ok"), make.agent(f"{name}/main", episode=name)]
    context: list[dict[str, Any]] = []
    prompt = [1, 2, 3]
    for turn in range(TURNS):
        context.append(make.user(f"{name} asks {turn}"))
        said = f"{name} says {turn}"
        events.append(
            make.call(
                f"{name}/{turn}",
                [*context],
                make.answer(said, ids=[turn, 7]),
                episode=name,
                agent=f"{name}/main",
                prompt_ids=[*prompt],
                ordinal=turn,
                status="ok",
            )
        )
        context.append(make.assistant(said))
        prompt += [turn, 7, 9]
    return [*events, make.reward(f"{name}/r", 0.5, episode=name)]


class Harness:
    """Posts one episode after the other, and asks for the server's health ten times a second."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._post, self._ask)]
        self.posted = 0
        """Events that were acknowledged."""
        self.health_s: list[float] = []

    def __enter__(self) -> Harness:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def rate_during(self, work: Callable[[], None]) -> float:
        """Events acknowledged a second while something is done."""
        before, began = self.posted, time.monotonic()
        work()
        return (self.posted - before) / (time.monotonic() - began)

    def _post(self) -> None:
        number = 0
        with Connection(self._server.url) as connection:
            while not self._ended.is_set():
                events = rollout(f"live{number}")
                status, answer = connection.post("/v1/events", array(events))
                assert (status, answer["stored"]) == (200, len(events))
                number, self.posted = number + 1, self.posted + len(events)

    def _ask(self) -> None:
        with Connection(self._server.url) as connection:
            while not self._ended.wait(0.1):
                began = time.monotonic()
                assert connection.get("/v1/health")[0] == 200
                self.health_s.append(time.monotonic() - began)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = tmp_path_factory.mktemp("beside") / "t.db"
    with Store.open(empty_store(file)) as store:
        for start in range(0, CALLS // TURNS, 50):
            events = [event for number in range(start, start + 50) for event in rollout(f"e{number}")]
            assert {one.status for one in store.ingest("default", list(map(posted, events)))} == {"stored"}
        snapshot = store.snapshot("default")
    (file.parent / "snapshot").write_text(str(snapshot))
    with running_server(file, flags=("--max-sql-s", "3600")) as server:
        yield server


@pytest.fixture
def folder(server: Running) -> Path:
    database = Path(f"/proc/{server.pid}/cmdline").read_text().split("sqlite:///")[1].partition("\0")[0]
    return Path(database).parent


def compute(seconds: float, *, niceness: int) -> None:
    """A process that computes and does nothing else, for so long."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        os.setpriority(os.PRIO_PROCESS, process.pid, niceness)
        time.sleep(seconds)
        process.kill()


def costs_no_more_than_a_loop(
    what: str, harness: Harness, work: Callable[[], None], *, niceness: int, rounds: int
) -> None:
    """Compare rounds of work with rounds of a loop, each of which takes as long as the work before it."""
    works: list[float] = []
    loops: list[float] = []
    for _ in range(rounds):
        began = time.monotonic()
        works.append(harness.rate_during(work))
        loop = partial(compute, time.monotonic() - began, niceness=niceness)
        loops.append(harness.rate_during(loop))
    usual = statistics.median(loops)
    noise = max(abs(one - usual) for one in loops) / usual
    ratio = statistics.median(works) / usual
    health = [1e3 * one for one in sorted(harness.health_s)]
    figure(
        f"{what}, niceness {niceness:+d}: {[round(one) for one in works]} events/s beside it, "
        f"{[round(one) for one in loops]} beside a loop: {ratio:.2f} of that, noise {noise:.2f}; health "
        f"p50 {health[len(health) // 2]:.0f} ms, p95 {health[len(health) * 95 // 100]:.0f} ms, "
        f"at most {health[-1]:.0f} ms; load {os.getloadavg()[0]:.1f}"
    )
    assert noise < 0.5, "this machine is too busy to tell"
    assert ratio >= 1 - noise


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_long_query_costs_ingest_no_more_than_a_cpu_loop(server: Running) -> None:
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, server.pid) + 10)

    def ask() -> None:
        where = urlsplit(server.url)
        connection = http.client.HTTPConnection(where.hostname or "", where.port)
        connection.request(
            "POST", "/v1/sql", json.dumps({"query": LONG}), {"Content-Type": "application/json"}
        )
        time.sleep(ROUND_S)
        [child] = children(server.pid)  # it is still at it
        assert os.getpriority(os.PRIO_PROCESS, child) == niceness
        connection.close()
        while children(server.pid):
            time.sleep(0.01)

    with Harness(server) as harness:
        costs_no_more_than_a_loop("a long query", harness, ask, niceness=niceness, rounds=ROUNDS)


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_an_export_costs_ingest_no_more_than_a_cpu_loop(
    server: Running, folder: Path, tmp_path: Path
) -> None:
    number = 0

    def export() -> None:
        nonlocal number
        number += 1
        command = [sys.executable, "-m", "tracestore.cli.main", "export", "--json"]
        where = ["--db", f"sqlite:///{folder / 't.db'}", "--out", str(tmp_path / str(number))]
        snapshot = ["--snapshot", (folder / "snapshot").read_text()]
        done = subprocess.run([*command, *where, *snapshot], check=True, capture_output=True, text=True)
        assert json.loads(done.stdout.splitlines()[-1])["sampled_tokens"] == 2 * CALLS

    with Harness(server) as harness:
        costs_no_more_than_a_loop(
            f"an export of {CALLS} calls",
            harness,
            export,
            niceness=os.getpriority(os.PRIO_PROCESS, 0),
            rounds=3,
        )
