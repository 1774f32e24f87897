"""Law 9: 2xx means on disk. Shown twice, because a kill alone proves nothing: the page cache survives it.

First by the order of system calls: the write-ahead log is synced between its last write and the answer. Then
by SIGKILL in the middle of a load: every acknowledged event is there afterwards, and none twice.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.serving import Connection, Running, running_server
from tracestore.store.verify import verify
from tracestore_migrations import open_store

# The order of system calls

SYSTEM_CALLS = "fdatasync,fsync,pwrite64,write,writev,sendto,sendmsg,recvfrom,read"
_LINE = re.compile(r"^(?:\[pid\s+)?(?P<pid>\d+)\]? +(?P<rest>.*)$")
_BEGIN = re.compile(r"^(?P<name>\w+)\((?P<fd>\d+)<(?P<path>[^>]*)>(?P<arguments>.*)$")
_RESUMED = re.compile(r"^<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)$")


@dataclass
class SystemCall:
    """One system call on a file: the lines of the trace at which it began and ended."""

    name: str
    path: str
    begin: int
    arguments: str
    end: int | None = None
    result: str = ""


def system_calls(trace: str) -> list[SystemCall]:
    """The calls of an `strace -f -y` log in order of their beginning; one cut off by the end has no end."""
    calls: list[SystemCall] = []
    open_calls: dict[str, SystemCall] = {}
    for number, line in enumerate(trace.splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        pid, rest = match["pid"], match["rest"]
        if resumed := _RESUMED.match(rest):
            call = open_calls.pop(pid, None)
            if call is not None:
                call.end, call.result = number, resumed["rest"].rpartition("= ")[2].strip()
        elif begun := _BEGIN.match(rest):
            call = SystemCall(begun["name"], begun["path"], number, begun["arguments"])
            calls.append(call)
            if rest.endswith("<unfinished ...>"):
                open_calls[pid] = call
            else:
                call.end, call.result = number, rest.rpartition("= ")[2].strip()
    return calls


def why_not_durable(trace: str, *, route: str = "/v1/events") -> str | None:
    """Why the trace does not show law 9 for the one post to a route; None when it does.

    The law: after the request came in, a sync of the log begins after its last write has ended, succeeds, and
    ends before the answer begins.
    """
    calls = system_calls(trace)
    asked = next(
        (c.begin for c in calls if c.name in ("recvfrom", "read") and f"POST {route} " in c.arguments), None
    )
    if asked is None:
        return "no request in the trace"
    sends = ("write", "writev", "sendto", "sendmsg")
    answered = next(
        (c.begin for c in calls if c.begin > asked and c.name in sends and "HTTP/1.1 200" in c.arguments),
        None,
    )
    if answered is None:
        return "no answer in the trace"
    log = [call for call in calls if call.path.endswith("-wal") and asked < call.begin < answered]
    writes = [call for call in log if call.name in ("pwrite64", "write", "writev")]
    if not writes:
        return "nothing was written to the log before the answer"
    if any(write.end is None or write.end > answered for write in writes):
        return "the log was still being written when the answer was sent"
    last = max(write.end for write in writes if write.end is not None)
    syncs = [call for call in log if call.name in ("fdatasync", "fsync")]
    if any(s.begin > last and s.end is not None and s.end < answered and s.result == "0" for s in syncs):
        return None
    return "no sync of the log lies between its last write and the answer"


GOOD = """\
10 recvfrom(9<socket:[1]>, "POST /v1/events HTTP/1.1\\r\\n"..., 65536, 0, NULL, NULL) = 300
11 pwrite64(5</d/t.db-wal>, "7"..., 32, 0) = 32
11 fdatasync(5</d/t.db-wal> <unfinished ...>
10 recvfrom(8<socket:[2]>, "", 65536, 0, NULL, NULL) = 0
11 <... fdatasync resumed>) = 0
10 sendto(9<socket:[1]>, "HTTP/1.1 200 OK\\r\\n"..., 400, 0, NULL, 0) = 400
"""


def test_the_trace_reader_sees_a_missing_early_late_or_failed_sync() -> None:
    lines = GOOD.splitlines(keepends=True)
    assert why_not_durable(GOOD) is None
    missing = "".join(line for line in lines if "fdatasync" not in line)
    early = "".join([lines[0], *lines[2:5], lines[1], lines[5]])
    late = "".join([*lines[:4], lines[5], lines[4]])
    failed = GOOD.replace("resumed>) = 0", "resumed>) = -1 EIO (Input/output error)")
    other_file = GOOD.replace("fdatasync(5</d/t.db-wal>", "fdatasync(6</d/t.db>")
    for trace in (missing, early, late, failed, other_file):
        assert why_not_durable(trace) == "no sync of the log lies between its last write and the answer"
    assert (
        why_not_durable("".join([lines[0], *lines[2:]])) == "nothing was written to the log before the answer"
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_log_is_synced_between_its_last_write_and_the_answer(tmp_path: Path) -> None:
    trace = tmp_path / "strace.txt"
    strace = ["strace", "-f", "-y", "-s", "48", "-o", str(trace), "-e", f"trace={SYSTEM_CALLS}"]
    with running_server(tmp_path / "t.db", prefix=strace) as server, Connection(server.url) as connection:
        status, answer = connection.post("/v1/events", b'{"v":1,"kind":"episode","id":"e1"}')
        assert (status, answer["stored"]) == (200, 1)
        body = b'{"target":{"episode_id":"e1"},"name":"exact","value":1}'
        status, answer = connection.post("/v1/rewards", body)
        assert (status, answer["status"]) == (200, "stored")
    calls = trace.read_text(errors="replace")
    assert why_not_durable(calls) is None
    assert why_not_durable(calls, route="/v1/rewards") is None


# SIGKILL in the middle of a load

EVENTS = 2_000
EVENTS_OF_AN_EPISODE = 9
CLIENTS = 4


def episodes() -> list[list[bytes]]:
    """At least `EVENTS` events by episode: an agent, calls with contexts that grow, a reward."""
    return [_episode(f"e{number}") for number in range(-(-EVENTS // EVENTS_OF_AN_EPISODE))]


def _episode(name: str) -> list[bytes]:
    events: list[dict[str, object]] = [
        {"v": 1, "kind": "episode", "id": name, "group_id": f"g{name[-1]}"},
        {"v": 1, "kind": "agent", "id": f"{name}/main", "episode_id": name, "role": "main"},
    ]
    messages: list[dict[str, str]] = [{"role": "system", "content": "count"}]
    for turn in range(EVENTS_OF_AN_EPISODE - 3):
        messages.append({"role": "user", "content": f"{name} turn {turn}"})
        said = {"role": "assistant", "content": f"{name} says {turn}"}
        events.append(
            {
                "v": 1,
                "kind": "call",
                "id": f"{name}/c{turn}",
                "episode_id": name,
                "agent_id": f"{name}/main",
                "ordinal": turn,
                "request": {"model": "m", "messages": list(messages)},
                "completions": [{"message": said, "token_ids": [turn, 1], "logprobs": [-0.5, -0.25]}],
                "status": "ok",
            }
        )
        messages.append(said)
    target = {"episode_id": name}
    events.append({"v": 1, "kind": "reward", "id": f"{name}/r", "target": target, "name": "n", "value": 1.0})
    return [json.dumps(event).encode() for event in events]


def array(events: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(events) + b"]"


def mixed(load: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Bodies: every eighth episode comes event by event, the others as one batch each."""
    bodies: list[bytes] = []
    for number, events in enumerate(load):
        bodies += events if number % 8 == 0 else [array(events)]
    return bodies


def large(load: Sequence[Sequence[bytes]]) -> list[bytes]:
    """Bodies of 40 episodes each."""
    return [
        array([event for events in load[i : i + 40] for event in events]) for i in range(0, len(load), 40)
    ]


@dataclass
class Load:
    """Clients that post until the server is gone, and what was acknowledged to them."""

    bodies: list[bytes]
    acknowledged: dict[tuple[str, str], str] = field(default_factory=dict)
    refused: list[object] = field(default_factory=list)
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, server: Running, *, kill_after: int | None = None) -> None:
        """Post everything over `CLIENTS` connections; SIGKILL once `kill_after` events are acknowledged."""
        enough = threading.Event()
        threads = [
            threading.Thread(target=self._client, args=(server.url, kill_after, enough))
            for _ in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        if kill_after is not None:
            assert enough.wait(timeout=120)
            server.kill()
        for thread in threads:
            thread.join(timeout=120)
            assert not thread.is_alive()
        assert self.refused == []

    def _client(self, url: str, kill_after: int | None, enough: threading.Event) -> None:
        with Connection(url) as connection:
            while True:
                with self._lock:
                    if self._next == len(self.bodies):
                        break
                    body = self.bodies[self._next]
                    self._next += 1
                try:
                    status, answer = connection.post("/v1/events", body)
                except (OSError, http.client.HTTPException):
                    break
                with self._lock:
                    if status != 200:
                        self.refused.append(answer)
                        enough.set()
                        break
                    for item in answer["items"]:
                        self.acknowledged[item["kind"], item["id"]] = item["status"]
                    if kill_after is not None and len(self.acknowledged) >= kill_after:
                        enough.set()


def kill_and_look(folder: Path, *, seed: int) -> None:
    """One round: kill the server in the middle of a load, then count what is there."""
    database = folder / f"{seed}.db"
    load = episodes()
    events = [json.loads(event) for of_episode in load for event in of_episode]
    everything = {(event["kind"], event["id"]) for event in events}
    assert len(everything) >= EVENTS
    before = Load(mixed(load))
    with running_server(database) as server:
        before.run(server, kill_after=random.Random(seed).randint(EVENTS // 20, EVENTS * 17 // 20))
    assert 0 < len(before.acknowledged) < len(everything)

    after = Load(large(load))
    with running_server(database) as server:
        after.run(server)
    assert set(after.acknowledged) == everything
    assert {key for key in before.acknowledged if after.acknowledged[key] != "duplicate"} == set()

    store = open_store(f"sqlite:///{database}")
    try:
        report = verify(store, "default")
        assert report.problems == ()
        assert report.num_events == len(everything)
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(3))
def test_sigkill_in_the_middle_of_a_load_loses_no_acknowledged_event_and_doubles_none(
    tmp_path: Path, seed: int
) -> None:
    kill_and_look(tmp_path, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_kills_lose_nothing(tmp_path: Path, seed: int) -> None:
    kill_and_look(tmp_path, seed=seed)
