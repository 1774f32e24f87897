"""Law 9: 2xx means on disk. Shown twice, because a kill alone proves nothing: the page cache survives it.

First by the order of system calls: the write-ahead log is synced between its last write and the answer. Then
by SIGKILL in the middle of a load: every acknowledged event is there afterwards, and none twice.

The doors are events, rewards and spans; blobs, which are files, have their own test. What passes the
recording proxy is not of this law: a model's answer does not wait for its recording.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import shutil
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.databases import NAMED_EVENTS
from tests.importers.test_otlp import AGENT, CALL, request
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
        spans = json.dumps(request(AGENT, CALL)).encode()
        assert connection.post("/v1/traces", spans) == (200, {})
    calls = trace.read_text(errors="replace")
    assert why_not_durable(calls) is None
    assert why_not_durable(calls, route="/v1/rewards") is None
    assert why_not_durable(calls, route="/v1/traces") is None


# SIGKILL in the middle of a load

EVENTS = 2_000
TURNS = 6
EVENTS_OF_AN_EPISODE = 3 + TURNS + TURNS // 2  # every second call comes in halves
CLIENTS = 4

Name = tuple[str, str, str]
"""Kind, id and phase of an event."""


@dataclass(frozen=True)
class Post:
    """One request of the load."""

    route: str
    body: bytes
    names: tuple[Name, ...]
    """Of the events in it, in order."""
    project: str = "default"

    def statuses(self, answer: dict[str, Any]) -> dict[Name, str]:
        """What the answer says of each event."""
        if self.route == "/v1/traces":
            # No partial success: all spans are stored, now or before.
            return dict.fromkeys(self.names, "stored") if answer == {} else {}
        items = [answer] if self.route == "/v1/rewards" else answer["items"]
        return dict(zip(self.names, (item["status"] for item in items), strict=True))


def name_of(event: bytes) -> Name:
    fields = json.loads(event)
    return fields["kind"], fields["id"], fields.get("phase", "whole")


def episodes() -> list[list[bytes]]:
    """At least `EVENTS` events by episode: an agent, calls with contexts that grow, a reward."""
    return [_episode(f"e{number}") for number in range(-(-EVENTS // EVENTS_OF_AN_EPISODE))]


def _episode(name: str) -> list[bytes]:
    events: list[dict[str, object]] = [
        {"v": 1, "kind": "episode", "id": name, "group_id": f"g{name[-1]}"},
        {"v": 1, "kind": "agent", "id": f"{name}/main", "episode_id": name, "role": "main"},
    ]
    messages: list[dict[str, str]] = [{"role": "system", "content": "count"}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{name} turn {turn}"})
        said = {"role": "assistant", "content": f"{name} says {turn}"}
        call: dict[str, object] = {
            "v": 1,
            "kind": "call",
            "id": f"{name}/c{turn}",
            "episode_id": name,
            "agent_id": f"{name}/main",
        }
        asked: dict[str, object] = {"ordinal": turn, "request": {"model": "m", "messages": list(messages)}}
        completion = {"message": said, "token_ids": [turn, 1], "logprobs": [-0.5, -0.25]}
        answered: dict[str, object] = {"completions": [completion], "status": "ok"}
        if turn % 2:
            events += [{**call, "phase": "start", **asked}, {**call, "phase": "end", **answered}]
        else:
            events.append({**call, **asked, **answered})
        messages.append(said)
    target = {"episode_id": name}
    events.append({"v": 1, "kind": "reward", "id": f"{name}/r", "target": target, "name": "n", "value": 1.0})
    return [json.dumps(event).encode() for event in events]


def batch(events: Sequence[bytes]) -> Post:
    return Post("/v1/events", b"[" + b",".join(events) + b"]", tuple(map(name_of, events)))


def alone(event: bytes) -> Post:
    """The post of one event, by the door for its kind."""
    route = "/v1/rewards" if name_of(event)[0] == "reward" else "/v1/events"
    return Post(route, event, (name_of(event),))


def exported(number: int) -> Post:
    """An agent and its call as OpenTelemetry spans, a trace for each number."""
    trace = f"{number + 1:032x}"
    spans = [{**one, "traceId": trace} for one in (AGENT, CALL)]
    names = [
        (kind, f"{trace}/{one['spanId'].lower()}") for kind, one in zip(("agent", "call"), spans, strict=True)
    ]
    body = json.dumps(request(*spans)).encode()
    return Post("/v1/traces", body, tuple((*name, "whole") for name in names), project="spans")


def mixed(load: Sequence[Sequence[bytes]]) -> list[Post]:
    """Every eighth episode comes event by event, the others as one batch each; some spans come in between."""
    posts: list[Post] = []
    for number, events in enumerate(load):
        posts += map(alone, events) if number % 8 == 0 else [batch(events)]
        posts += [exported(number)] if number % 8 == 4 else []
    return posts


def large(load: Sequence[Sequence[bytes]]) -> list[Post]:
    """Posts of 40 episodes each."""
    return [
        batch([event for events in load[start : start + 40] for event in events])
        for start in range(0, len(load), 40)
    ]


@dataclass
class Load:
    """Clients that post until the server is gone, and what was acknowledged to them."""

    posts: list[Post]
    acknowledged: dict[Name, str] = field(default_factory=dict)
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
                    if self._next == len(self.posts):
                        break
                    post = self.posts[self._next]
                    self._next += 1
                try:
                    headers = {"X-Tracestore-Project": post.project}
                    status, answer = connection.post(post.route, post.body, headers)
                except (OSError, http.client.HTTPException):
                    break
                with self._lock:
                    if status != 200:
                        self.refused.append(answer)
                        enough.set()
                        break
                    self.acknowledged |= post.statuses(answer)
                    if kill_after is not None and len(self.acknowledged) >= kill_after:
                        enough.set()


def kill_and_look(folder: Path, *, seed: int) -> None:
    """One round: kill the server in the middle of a load, then count what is there."""
    database = folder / f"{seed}.db"
    load = episodes()
    everything = {name_of(event) for events in load for event in events}
    assert len(everything) == sum(map(len, load)) >= EVENTS
    before = Load(mixed(load))
    with running_server(database) as server:
        before.run(server, kill_after=random.Random(seed).randint(EVENTS // 20, EVENTS * 17 // 20))
    assert 0 < len(before.acknowledged) < len(everything)
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(f"SELECT kind, id, phase FROM ({NAMED_EVENTS})").fetchall()
    assert set(before.acknowledged) - set(rows) == set()

    after = Load(large(load))
    with running_server(database) as server:
        after.run(server)
    assert set(after.acknowledged) == everything
    again = {name: after.acknowledged[name] for name in before.acknowledged if name in everything}
    assert set(again.values()) == {"duplicate"}

    store = open_store(f"sqlite:///{database}")
    try:
        report = verify(store, "default")
        assert report.problems == ()
        assert report.num_events == len(everything)
        assert verify(store, "spans").problems == ()
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(3))
def test_sigkill_in_the_middle_of_a_load_loses_no_acknowledged_event_and_doubles_none(
    tmp_path: Path, seed: int
) -> None:
    kill_and_look(tmp_path, seed=seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 150))
def test_fifty_kills_lose_nothing(tmp_path: Path, seed: int) -> None:
    kill_and_look(tmp_path, seed=seed)
