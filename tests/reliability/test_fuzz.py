"""Bytes that nobody meant, at every door of a real server: refused with a reason, without a fault."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import zstandard
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests import factories as make
from tests.api.test_traces import in_protobuf
from tests.databases import empty_store
from tests.factories import answer, call, posted, user
from tests.importers.test_otlp import AGENT, CALL, TOOL
from tests.importers.test_otlp import request as export_of
from tests.reliability.recordings import array, figure, lines, stored
from tests.serving import Running, running_server

MAX_BODY = 2**20
CODINGS = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}
TIMEOUT_S = 30
NO_HTTP = b"Invalid HTTP request received."
EVENTS = [
    make.episode("e", task={"q": [1, 2.5, "é\ud83d"]}, started_at=7),
    make.agent("a", role="main"),
    call("c", [user("u"), user([{"type": "text", "text": "v"}])], answer("a", ids=[1, 2]), prompt_ids=[3]),
    call("d", [user("w")], phase="start", parent="c", delta=True),
    make.reward("r", 0.5, call_id="c", completion=0, token_start=0, token_length=1),
    make.candidate_set("s", make.member("c"), make.member("d")),
    make.compaction("x", meta={"n": [None, True, -0.0, 1e400]}),
]
REWARD = json.dumps({"target": {"episode_id": "e"}, "name": "n", "value": 1.5}).encode()
SPANS = json.dumps(export_of(AGENT, CALL, TOOL)).encode()
PROTOBUF = in_protobuf(AGENT, CALL, TOOL)
BLOB = b"0123456789" * 20
BLOB_URL = f"/v1/blobs/{sha256(BLOB).hexdigest()}"

PIECES = [
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b"\x00",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
    ),
    *(b"NaN", b"-Infinity", b"1e999", b"-1", b"18446744073709551616", b"0" * 400, b"null", b"true"),
    *(b"\\u0000", b"\\ud800", b"\\ud83d\\ude00", b"[" * 300, b'{"a":' * 300, b'"v":1,', b'"kind":"gap",'),
]
"""What bodies are spoiled with: what JSON is made of, at its edges."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]


@st.composite
def spoiled(draw: st.DrawFn, bodies: st.SearchStrategy[bytes]) -> bytes:
    """A body with pieces put in, taken out, repeated or flipped; sometimes as it was."""
    body = draw(bodies)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(body)))
        end = draw(st.integers(at, min(len(body), at + 40)))
        how = draw(st.sampled_from(["put in", "take out", "repeat", "flip", "cut off"]))
        if how == "put in":
            body = body[:at] + draw(st.sampled_from(PIECES) | st.binary(max_size=4)) + body[at:]
        elif how == "take out":
            body = body[:at] + body[end:]
        elif how == "repeat":
            body = body[:end] + body[at:]
        elif how == "flip":
            body = (
                body[:at] + bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in body[at:end]) + body[end:]
            )
        else:
            body = body[:at]
    return body


def bodies_of_events() -> st.SearchStrategy[bytes]:
    events = st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4)
    return events.map(array) | events.map(lines)


@st.composite
def posts(draw: st.DrawFn) -> Request:
    """A post to a door whose body, coding and headers may each be wrong."""
    path, bodies, media_types = draw(
        st.sampled_from(
            [
                ("/v1/events", bodies_of_events(), ["application/json", "application/x-ndjson"]),
                ("/v1/rewards", st.just(REWARD), ["application/json"]),
                ("/v1/traces", st.just(SPANS), ["application/json"]),
                ("/v1/traces", st.just(PROTOBUF), ["application/x-protobuf"]),
            ]
        )
    )
    body = draw(spoiled(bodies) | st.binary(max_size=80))
    coding = draw(st.sampled_from(sorted(CODINGS)))
    told = draw(st.sampled_from([coding, coding, coding, "gzip", "zstd", "br", "gzip, zstd", "\xe9"]))
    packed = CODINGS[coding](body)
    if coding != "identity" and draw(st.booleans()):
        packed = draw(spoiled(st.just(packed)))
    media_type = draw(st.sampled_from([*media_types * 3, "text/plain", "application/json; charset=latin-1"]))
    project = draw(st.sampled_from(["default"] * 5 + ["\x7f", "p" * 200, "\xff\xfe", "a b"]))
    headers = {"Content-Type": media_type, "Content-Encoding": told, "X-Tracestore-Project": project}
    return Request("POST", path, packed, headers)


texts = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=20)


@st.composite
def blob_requests(draw: st.DrawFn) -> Request:
    """Parts of blobs, ranges and offsets that may not fit together."""
    method = draw(st.sampled_from(["GET", "HEAD", "PUT", "PATCH"]))
    hashes = st.sampled_from([BLOB_URL, "/v1/blobs/" + "0" * 64, "/v1/blobs/%2e%2e%2fx", "/v1/blobs/%00"])
    numbers = st.integers(-1, 300).map(str) | st.sampled_from(["9" * 30, "", "1.5", "0x1"])
    ranges = st.builds("bytes={}-{}".format, numbers, numbers) | texts
    headers = {}
    if method == "GET" and draw(st.booleans()):
        headers["Range"] = draw(ranges)
    if method in ("PUT", "PATCH"):
        headers["Content-Type"] = draw(
            st.sampled_from(["application/partial-upload", "application/octet-stream", "a"])
        )
        headers["Upload-Offset"] = draw(numbers)
        headers["Upload-Complete"] = draw(st.sampled_from(["?0", "?1", "1", ""]))
        if draw(st.booleans()):
            headers["Repr-Digest"] = draw(texts)
    body = draw(st.sampled_from([BLOB, BLOB[:7], b""]) | st.binary(max_size=20))
    return Request(method, draw(hashes), b"" if method in ("GET", "HEAD") else body, headers)


@st.composite
def reads(draw: st.DrawFn) -> Request:
    """Addresses and parameters that nobody meant."""
    lists = ["episodes", "groups", "candidates", "rewards", "gaps", "orphans", "incomplete", "blobs"]
    odd = st.sampled_from(["%00", "%ff", "%ed%a0%80", "a%2fb", "..", "%2e%2e", "'", '"--', "%25", "1" * 3000])
    path = draw(
        st.sampled_from(lists).map("/v1/{}".format)
        | st.builds("/v1/{}/{}".format, st.sampled_from(["episodes", "calls"]), odd)
        | st.builds("/v1/calls/{}/{}".format, odd, st.sampled_from(["context", "request", "x"]))
    )
    names = ["cursor", "limit", "episode_id", "kind", "received_before", "started_from", "at_before", "x"]
    values = odd | st.sampled_from(
        ["-1", "0", "1e3", "9" * 40, "1969-01-01T00:00:00Z", "W10", "WyJyZXdhcmQiLDFd"]
    )
    query = draw(st.lists(st.builds("{}={}".format, st.sampled_from(names), values), max_size=3))
    return Request("GET", f"{path}?{'&'.join(query)}" if query else path, b"", {})


class Door:
    """A connection that is made again whenever the server closed it."""

    def __init__(self, server: Running) -> None:
        where = urlsplit(server.url)
        assert where.hostname is not None
        self._http = http.client.HTTPConnection(where.hostname, where.port, timeout=TIMEOUT_S)

    def send(self, request: Request) -> tuple[int, str, bytes]:
        """Status, media type and body of the answer; TimeoutError when there is none."""
        headers = {name: value.encode("latin-1") for name, value in request.headers.items()}
        for is_last in (False, True):
            try:
                self._http.request(request.method, request.path, request.body, headers)
                response = self._http.getresponse()
                return response.status, response.headers.get_content_type(), response.read()
            except (BrokenPipeError, ConnectionResetError, http.client.RemoteDisconnected):
                # Refused before all of the body was read, or kept open for too long.
                self._http.close()
                if is_last:
                    raise
        raise AssertionError

    def close(self) -> None:
        self._http.close()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("fuzz") / "t.db"
    empty_store(file)
    return file


@pytest.fixture(scope="module")
def server(database: Path) -> Iterator[Running]:
    flags = ["--max-body-bytes", str(MAX_BODY), "--max-event-bytes", str(MAX_BODY // 2)]
    with running_server(database, flags=flags) as server:
        door = Door(server)
        assert door.send(Request("PUT", BLOB_URL, BLOB, {}))[0] == 201
        door.close()
        yield server


@pytest.fixture(scope="module")
def door(server: Running) -> Iterator[Door]:
    door = Door(server)
    yield door
    door.close()


def check(door: Door, request: Request) -> None:
    """The answer is no fault of the server, and a refusal says why."""
    if not request.path.isprintable() or any("\n" in value for value in request.headers.values()):
        return
    status, media_type, body = door.send(request)
    assert status < 500, (request, status, body)
    # What is no HTTP is refused before it is a request of ours.
    if status < 400 or request.method == "HEAD" or (status, body) == (400, NO_HTTP):
        return
    if media_type == "application/problem+json":
        assert json.loads(body)["detail"]
    elif request.path == "/v1/traces":
        # OTLP has an error of its own, in the encoding of the request.
        assert b"\x12" in body if media_type == "application/x-protobuf" else json.loads(body)["message"]
    else:
        assert "items" in json.loads(body), (request, body)


requests = posts() | blob_requests() | reads()


@settings(max_examples=150, phases=[Phase.generate, Phase.shrink])
@given(request=requests)
def test_any_request_is_answered_without_a_fault(door: Door, request: Request) -> None:
    check(door, request)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@settings(max_examples=20_000, phases=[Phase.generate, Phase.shrink])
@given(request=requests)
def test_any_of_many_requests_is_answered_without_a_fault(door: Door, request: Request) -> None:
    check(door, request)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("path", ["/v1/events", "/v1/traces"])
def test_a_bomb_is_refused_and_takes_no_memory(server: Running, door: Door, path: str, coding: str) -> None:
    """64 MiB of nothing in a few KiB, where 1 MiB is the most that a body may unfold to."""
    bomb = CODINGS[coding](bytes(64 * 2**20))
    before = peak_memory(server)
    headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
    status, media_type, _ = door.send(Request("POST", path, bomb, headers))
    told = "application/json" if path == "/v1/traces" else "application/problem+json"
    assert (status, media_type) == (413, told)
    assert peak_memory(server) - before < 16 * 2**20


def test_what_was_stored_meanwhile_is_sound_and_the_log_holds_no_fault(
    server: Running, door: Door, database: Path
) -> None:
    body = array([make.episode("after all of it")])
    assert door.send(Request("POST", "/v1/events", body, {"Content-Type": "application/json"}))[0] == 200
    assert "Traceback" not in database.with_suffix(".log").read_text()
    assert ("episode", "after all of it") in stored(database)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_memory_stays_flat_over_many_thousand_spoiled_requests(server: Running, door: Door) -> None:
    """After warming up, what 20,000 requests leave behind is less than 1 KiB each."""
    noise = random.Random(5)
    seeds = [array(EVENTS), lines(EVENTS), REWARD, *(posted(event)[1] for event in EVENTS)]

    def send(number: int) -> None:
        for _ in range(number):
            body = bytearray(noise.choice(seeds))
            for _ in range(noise.randint(1, 5)):
                body[noise.randrange(len(body))] = noise.randrange(256)
            coding = noise.choice(sorted(CODINGS))
            headers = {"Content-Type": "application/json", "Content-Encoding": coding}
            path = noise.choice(["/v1/events", "/v1/rewards"])
            check(door, Request("POST", path, CODINGS[coding](bytes(body)), headers))

    send(5_000)
    before = memory(server)
    send(20_000)
    growth = memory(server) - before
    figure(f"growth over 20,000 spoiled requests: {growth / 2**20:.1f} MiB of {before / 2**20:.0f}")
    assert growth < 20_000 * 1024


def memory(server: Running) -> int:
    """Bytes that the process holds now."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_memory(server: Running) -> int:
    """The most bytes that the process ever held."""
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
