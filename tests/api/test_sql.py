"""`POST /v1/sql` answers in children that are few, nice, limited, and gone when nobody waits for them."""

from __future__ import annotations

import csv
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import requests
from fastapi.testclient import TestClient
from sqlalchemy import select

from tests import factories as make
from tests.databases import empty_store
from tests.reliability.recordings import figure
from tests.serving import Connection, Running, running_server
from tracestore.settings import Settings
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.keys import Right, create_key
from tracestore_api.app import create_app
from tracestore_migrations import open_store

SCOPES: tuple[Right, ...] = ("read", "write")
ENDLESS = "SELECT count(*) FROM range(1000000000) a, range(1000000) b"
EPISODES = "SELECT episode_id, task_id FROM episodes ORDER BY episode_id"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sql") / "t.db"
    with open_store(empty_store(file)) as store:
        ours = [make.episode("e1", task_id="a, b"), make.episode("e2")]
        store.ingest("default", [make.posted(event) for event in ours])
        store.ingest("other", [make.posted(make.episode("secret"))])
    return file


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Running]:
    flags = ("--max-sql-queries", "1", "--max-sql-waiting", "1", "--max-sql-rows", "5")
    with running_server(file, flags=flags) as server:
        yield server


def ask(server: Running, query: str, /, *, headers: dict[str, str] | None = None, **more: Any) -> Any:
    return requests.post(f"{server.url}/v1/sql", json={"query": query, **more}, headers=headers, timeout=60)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()] + [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        if task.name != str(pid)
        for child in (task / "children").read_text().split()
    ]


def until(claim: Any) -> None:
    deadline = time.monotonic() + 30
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_rows_come_as_json_csv_and_arrow(server: Running) -> None:
    answer = ask(server, EPISODES)
    assert (answer.status_code, answer.headers["x-tracestore-truncated"]) == (200, "false")
    assert answer.json() == {
        "columns": ["episode_id", "task_id"],
        "rows": [["e1", "a, b"], ["e2", None]],
        "truncated": False,
    }
    text = ask(server, EPISODES, headers={"Accept": "text/csv"})
    assert text.headers["content-type"].startswith("text/csv")
    assert list(csv.reader(text.text.splitlines())) == [
        ["episode_id", "task_id"],
        ["e1", "a, b"],
        ["e2", ""],
    ]
    arrow = ask(server, "SELECT range AS n FROM range(9)", format="arrow", max_rows=3)
    assert arrow.headers["x-tracestore-truncated"] == "true"
    with pa.ipc.open_stream(arrow.content) as reader:
        assert reader.read_all().to_pydict() == {"n": [0, 1, 2]}


def test_what_cannot_be_asked_is_a_problem_that_says_why(server: Running) -> None:
    refused = ask(server, "SELECT * FROM read_csv('/etc/passwd')")
    assert (refused.status_code, refused.json()["type"]) == (400, "urn:tracestore:problem:sql-refused")
    failed = ask(server, "SELECT nope FROM episodes")
    assert (failed.status_code, failed.json()["type"]) == (400, "urn:tracestore:problem:sql-failed")
    assert "nope" in failed.json()["error"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"query": EPISODES, "max_rows": 6}, 422),
        ({"query": EPISODES, "max_rows": -1}, 422),
        ({"query": EPISODES, "project": "other"}, 422),
        ({"query": EPISODES, "format": "parquet"}, 422),
        ({}, 422),
        ([], 422),
    ],
)
def test_a_body_that_is_no_question_is_refused(server: Running, body: Any, status: int) -> None:
    answer = requests.post(f"{server.url}/v1/sql", json=body, timeout=60)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_a_form_is_refused_as_a_browser_sends_it_anywhere(server: Running) -> None:
    answer = requests.post(f"{server.url}/v1/sql", data=json.dumps({"query": EPISODES}), timeout=60)
    assert answer.status_code == 415


def test_a_client_that_goes_away_takes_its_query_along_and_one_too_many_is_sent_away(server: Running) -> None:
    where = urlsplit(server.url)
    assert where.hostname is not None
    body = json.dumps({"query": ENDLESS})
    waiting = []
    for _ in range(2):  # one runs, one waits
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        connection.request("POST", "/v1/sql", body, {"Content-Type": "application/json"})
        waiting.append(connection)
        until(lambda: len(children(server.pid)) == 1)
    until(lambda: ask(server, EPISODES).status_code == 503)
    busy = ask(server, EPISODES)
    assert (busy.json()["type"], busy.headers["retry-after"]) == ("urn:tracestore:problem:sql-busy", "5")
    (child,) = children(server.pid)
    assert os.getpriority(os.PRIO_PROCESS, child) >= min(19, os.getpriority(os.PRIO_PROCESS, server.pid) + 10)
    for connection in waiting:
        connection.close()
    until(lambda: not children(server.pid))
    assert ask(server, EPISODES).status_code == 200


def test_a_query_runs_no_longer_than_the_server_allows(file: Path) -> None:
    store = open_store(f"sqlite:///{file}")
    app = create_app(store, settings=Settings(max_sql_s=2))
    with store, TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.post("/v1/sql", json={"query": ENDLESS}).status_code == 408


def test_a_key_of_writers_cannot_ask_and_a_key_sees_its_project_alone(tmp_path: Path) -> None:
    file = tmp_path / "t.db"
    with open_store(empty_store(file)) as store:
        for project in ("ours", "other"):
            store.ingest(project, [make.posted(make.episode(f"of-{project}"))])
        with store.engine.begin() as connection:
            keys = {
                scope: create_key(connection, "ours", name=scope, scopes={scope}, expires_at=None, now=1).text
                for scope in SCOPES
            }
    with running_server(file) as server:
        answer = {
            scope: ask(server, EPISODES, headers={"Authorization": f"Bearer {key}"})
            for scope, key in keys.items()
        }
        assert ask(server, EPISODES).status_code == 401
    assert answer["write"].status_code == 403
    assert answer["read"].json()["rows"] == [["of-ours", None]]


def test_rows_written_beside_queries_are_all_there_and_the_server_maps_no_scanner(file: Path) -> None:
    """DuckDB's handle in the server's process would drop SQLite's locks, and with them acknowledged rows."""
    rounds, batch = 8, 20

    def write(server: Running, writer: int) -> None:
        with Connection(server.url) as connection:
            for n in range(rounds):
                events = [make.episode(f"w{writer}-{n}-{i}") for i in range(batch)]
                body = b"[" + b",".join(make.posted(event)[1] for event in events) + b"]"
                assert connection.post("/v1/events", body)[0] == 200

    with running_server(file) as server, ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, server, n) for n in range(2)]
        asked = [pool.submit(ask, server, "SELECT count(*) FROM episodes") for _ in range(6)]
        assert [answer.result().status_code for answer in asked] == [200] * 6
        for writer in writers:
            writer.result()
        maps = Path(f"/proc/{server.pid}/maps").read_text()
        count = ask(server, "SELECT count(*) FROM episodes WHERE episode_id LIKE 'w%'").json()["rows"]
    assert "sqlite_scanner" not in maps
    assert "duckdb" not in maps
    assert count == [[2 * rounds * batch]]


_WRITER = """
import sys, time
from tests import factories as make
from tests.serving import Connection

number = 0
with Connection(sys.argv[1]) as connection:
    while True:
        events = [make.episode(f"{sys.argv[2]}-{number + i}") for i in range(20)]
        body = b"[" + b",".join(make.posted(event)[1] for event in events) + b"]"
        assert connection.post("/v1/events", body)[0] == 200
        number += 20
        print(number, flush=True)
        time.sleep(0.1)
"""
"""Posts and pauses: what two writers leave of two cores is all that a query, which is nicer, gets."""
_QUERIES = 200


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_queries_beside_two_processes_that_write_cost_no_acknowledged_row(tmp_path: Path) -> None:
    file = tmp_path / "t.db"
    open_store(empty_store(file)).close()
    beside: list[float] = []
    mapped: set[str] = set()
    flags = ("--max-sql-s", "1800")
    with running_server(file, flags=flags) as server, ThreadPoolExecutor(2) as pool:
        quiet = [health_s(server) for _ in range(100)]
        command = [sys.executable, "-c", _WRITER, server.url]
        # To files: nobody reads while the queries run, and a pipe that is full stops its writer.
        writers = []
        for name in "ab":
            with (tmp_path / name).open("w") as out:
                writers.append(subprocess.Popen([*command, name], stdout=out))
        try:
            began = time.monotonic()
            asked = [pool.submit(count_episodes, server) for _ in range(_QUERIES)]
            while not all(one.done() for one in asked):
                beside.append(health_s(server))
                maps = Path(f"/proc/{server.pid}/maps").read_text()
                mapped |= {name for name in ("sqlite_scanner", "duckdb") if name in maps}
                time.sleep(0.2)
            took_s = time.monotonic() - began
            assert [one.poll() for one in writers] == [None, None]
        finally:
            for one in writers:
                one.terminate()
            for one in writers:
                one.wait()
    counts = [one.result() for one in asked]
    assert mapped == set()
    # What comes after the last end of a line is half a number.
    told = {name: (tmp_path / name).read_text().rpartition("\n")[0].split() for name in "ab"}
    acknowledged = {f"{name}-{n}" for name, numbers in told.items() for n in range(int(numbers[-1]))}
    with Store.open(f"sqlite:///{file}") as store, store.read() as connection:
        there = set(connection.execute(select(t.episode.c.id)).scalars())
    assert acknowledged <= there
    assert 0 <= min(counts) < max(counts) <= len(there)
    figure(
        f"{_QUERIES} queries in {took_s:.0f} s beside {len(acknowledged)} acknowledged rows, all there; "
        f"health {_milliseconds(quiet)} when quiet, {_milliseconds(beside)} beside them; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    assert _quantile(quiet, 0.95) < 0.1


def health_s(server: Running) -> float:
    """How long the server takes to say that it is well."""
    began = time.monotonic()
    assert requests.get(f"{server.url}/v1/health", timeout=60).status_code == 200
    return time.monotonic() - began


def count_episodes(server: Running) -> int:
    body = {"query": "SELECT count(*) FROM episodes"}
    answer = requests.post(f"{server.url}/v1/sql", json=body, timeout=1800)
    assert answer.status_code == 200, answer.text
    count: int = answer.json()["rows"][0][0]
    return count


def _quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


def _milliseconds(values: list[float]) -> str:
    middle, most, slowest = _quantile(values, 0.5), _quantile(values, 0.95), max(values)
    return f"p50 {middle * 1e3:.0f} ms, p95 {most * 1e3:.0f} ms, at most {slowest * 1e3:.0f} ms"
