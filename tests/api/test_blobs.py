"""`/v1/blobs`: bytes in and out over HTTP, whole, in parts, by range, and never across projects."""

from __future__ import annotations

import http.client
import random
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from tests.factories import agent, call, episode, posted
from tests.serving import Running, running_server
from tracestore.settings import Settings
from tracestore.store.blobs import Blobs, open_blobs
from tracestore.store.blobs.base import STEP
from tracestore.store.store import Store
from tracestore.wire.blob import Blob
from tracestore.wire.events import AnyEvent
from tracestore_api import blobs as routes
from tracestore_api.app import create_app
from tracestore_api.blobs import upload_headers
from tracestore_api.errors import InvalidUpload, RangeNotSatisfiable, UploadStalled
from tracestore_api.ranges import range_of

DATA = b"0123456789"
NAME = sha256(DATA).hexdigest()
URL = f"/v1/blobs/{NAME}"
PATCH = {"Content-Type": "application/partial-upload"}


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "blobs"))


@contextmanager
def served(store: Store, blobs: Blobs | None, **settings: Any) -> Iterator[TestClient]:
    app = create_app(store, blobs=blobs, settings=Settings(**settings))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def client(store: Store, blobs: Blobs) -> Iterator[TestClient]:
    with served(store, blobs) as client:
        yield client


def test_a_blob_is_stored_once_and_read_back(client: TestClient) -> None:
    first = client.put(URL, content=DATA)
    assert (first.status_code, first.json()) == (201, {"hash": NAME, "size": 10, "status": "stored"})
    again = client.put(URL, content=DATA)
    assert (again.status_code, again.json()) == (200, {"hash": NAME, "size": 10, "status": "duplicate"})
    got = client.get(URL)
    assert (got.status_code, got.content, got.headers["etag"]) == (200, DATA, f'"{NAME}"')
    assert got.headers["content-length"] == "10"


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("HEAD", {}, 200),
        ("PUT", {"If-None-Match": "*"}, 412),
        ("PATCH", {**PATCH, "Upload-Offset": "0", "Upload-Complete": "?1"}, 409),
    ],
)
def test_whoever_is_told_that_a_blob_is_there_need_not_fear_for_it(
    client: TestClient, blobs: Blobs, method: str, headers: dict[str, str], status: int
) -> None:
    """Its sender goes on with the event that names it, and a deletion that began before must not take it."""
    client.put(URL, content=DATA)
    chosen = time.time_ns()
    assert client.request(method, URL, content=DATA, headers=headers).status_code == status
    assert not blobs.remove("default", NAME, sent_before=chosen)


def test_a_blob_of_nothing_is_a_blob(client: TestClient) -> None:
    url = f"/v1/blobs/{sha256(b'').hexdigest()}"
    assert client.put(url, content=b"").status_code == 201
    assert (client.get(url).status_code, client.get(url).content) == (200, b"")
    assert client.get(url, headers={"Range": "bytes=0-"}).status_code == 416


def test_a_page_of_a_stranger_in_a_blob_is_never_shown_as_one_of_ours(client: TestClient) -> None:
    client.put(URL, content=DATA, headers={"Content-Type": "text/html"})
    headers = client.get(URL).headers
    assert headers["content-type"] == "application/octet-stream"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-disposition"] == "attachment"


def test_no_cache_may_give_the_blob_of_one_project_to_another(client: TestClient) -> None:
    client.put(URL, content=DATA)
    assert client.get(URL).headers["cache-control"] == "private, no-cache"
    assert "X-Tracestore-Project" in client.get(URL).headers["vary"]


def test_bytes_that_do_not_hash_to_the_name_are_refused_and_nothing_is_kept(client: TestClient) -> None:
    refused = client.put(URL, content=b"others")
    assert refused.status_code == 422
    assert refused.json()["found"] == sha256(b"others").hexdigest()
    absent = client.head(URL)
    assert (absent.status_code, absent.headers["upload-offset"]) == (404, "0")


def test_another_project_cannot_tell_what_this_one_holds(client: TestClient) -> None:
    other = {"X-Tracestore-Project": "other"}
    unheard_of = f"/v1/blobs/{'0' * 64}"
    client.put(URL, content=DATA)
    client.patch(unheard_of, content=b"x", headers={**PATCH, "Upload-Offset": "0", "Upload-Complete": "?0"})
    for method in ("GET", "HEAD"):
        for url in (URL, unheard_of):
            answer = client.request(method, url, headers=other)
            assert answer.status_code == 404
            assert answer.headers.get("upload-offset", "0") == "0"
    assert client.put(URL, content=DATA, headers={**other, "If-None-Match": "*"}).status_code == 201


@pytest.mark.parametrize("name", ["0" * 63, "0" * 65, "F" * 64, "g" * 64, "..%2F" + "0" * 59, "%00"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH"])
def test_what_is_no_hash_is_refused(client: TestClient, method: str, name: str) -> None:
    assert client.request(method, f"/v1/blobs/{name}").status_code == 422


def test_other_methods_and_parameters_are_refused(client: TestClient) -> None:
    answer = client.delete(URL)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, PATCH, PUT")
    assert client.get(f"{URL}?x=1").status_code == 422
    assert client.put(URL, content=DATA, headers={"Content-Encoding": "gzip"}).status_code == 415


def test_a_sender_can_ask_that_nothing_be_sent_twice(client: TestClient) -> None:
    once = {"If-None-Match": "*"}
    assert client.put(URL, content=DATA, headers=once).status_code == 201
    assert client.put(URL, content=DATA, headers=once).status_code == 412


def test_what_a_reader_has_already_is_not_sent_again(client: TestClient) -> None:
    client.put(URL, content=DATA)
    for tags in (f'"{NAME}"', f'W/"{NAME}", "x"', "*"):
        answer = client.get(URL, headers={"If-None-Match": tags})
        assert (answer.status_code, answer.content) == (304, b"")
    assert client.get(URL, headers={"If-None-Match": '"x"'}).status_code == 200


# Ranges


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-4", (2, 5)),
        ("bytes=7-", (7, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=8-100", (8, 10)),
        ("Bytes = 2-4", (2, 5)),
        ("bytes=4-2", None),
        ("bytes=1-2,4-5", None),
        ("lines=1-2", None),
        ("bytes=-", None),
        ("bytes=a-b", None),
    ],
)
def test_a_range_is_read_as_rfc_9110_says(header: str, found: tuple[int, int] | None) -> None:
    assert range_of(header, size=10) == found


@given(st.integers(0, 20), st.integers(0, 25), st.integers(0, 25))
def test_a_range_gives_what_slicing_gives(size: int, first: int, last: int) -> None:
    data = bytes(range(size))
    try:
        found = range_of(f"bytes={first}-{last}", size=size)
    except RangeNotSatisfiable:
        assert first >= size
        return
    if found is None:
        assert last < first
    else:
        assert data[found[0] : found[1]] == data[first : last + 1]


def test_ranges_are_served(client: TestClient) -> None:
    client.put(URL, content=DATA)
    part = client.get(URL, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    behind = client.get(URL, headers={"Range": "bytes=10-"})
    assert (behind.status_code, behind.headers["content-range"]) == (416, "bytes */10")
    same = client.get(URL, headers={"Range": "bytes=2-4", "If-Range": f'"{NAME}"'})
    changed = client.get(URL, headers={"Range": "bytes=2-4", "If-Range": '"other"'})
    assert (same.status_code, changed.status_code) == (206, 200)


# Uploads in parts


def test_an_upload_in_parts_is_complete_when_its_sender_says_so(client: TestClient) -> None:
    def patch(data: bytes, offset: int, *, last: bool) -> Any:
        headers = {**PATCH, "Upload-Offset": str(offset), "Upload-Complete": "?1" if last else "?0"}
        return client.patch(URL, content=data, headers=headers)

    first = patch(DATA[:4], 0, last=False)
    assert (first.status_code, first.headers["upload-offset"]) == (204, "4")
    assert client.get(URL).status_code == 404
    asked = client.head(URL)
    assert (asked.status_code, asked.headers["upload-offset"], asked.headers["upload-complete"]) == (
        404,
        "4",
        "?0",
    )
    wrong = patch(DATA[:4], 0, last=False)
    assert (wrong.status_code, wrong.headers["upload-offset"]) == (409, "4")
    whole = patch(DATA[4:], 4, last=True)
    assert (whole.status_code, whole.json()) == (201, {"hash": NAME, "size": 10, "status": "stored"})
    assert client.get(URL).content == DATA
    late = patch(DATA[4:], 4, last=True)
    assert (late.status_code, late.headers["upload-offset"], late.headers["upload-complete"]) == (
        409,
        "10",
        "?1",
    )
    assert client.head(URL).headers["upload-offset"] == "10"


def test_parts_that_make_other_bytes_are_refused_and_gone(client: TestClient) -> None:
    headers = {**PATCH, "Upload-Offset": "0", "Upload-Complete": "?1"}
    assert client.patch(URL, content=b"others", headers=headers).status_code == 422
    assert client.head(URL).headers["upload-offset"] == "0"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"upload-offset": "0"},
        {"upload-complete": "?1"},
        {"upload-offset": "-1", "upload-complete": "?1"},
        {"upload-offset": "1" * 16, "upload-complete": "?1"},
        {"upload-offset": "0", "upload-complete": "1"},
    ],
)
def test_a_part_says_where_it_belongs_and_whether_it_is_the_last(headers: dict[str, str]) -> None:
    with pytest.raises(InvalidUpload):
        upload_headers(Headers({"content-type": routes.PARTIAL, **headers}))


def test_a_patch_of_another_kind_is_refused(client: TestClient) -> None:
    assert client.patch(URL, content=DATA).status_code == 415


def test_a_blob_over_the_limit_is_refused_in_one_piece_and_in_parts(store: Store, blobs: Blobs) -> None:
    data = b"x" * 1025
    url = f"/v1/blobs/{sha256(data).hexdigest()}"
    with served(store, blobs, max_blob_bytes=1024) as client:
        assert client.put(url, content=data).status_code == 413
        assert client.put(url, content=iter([data[:600], data[600:]])).status_code == 413
        headers = {**PATCH, "Upload-Complete": "?0"}
        assert (
            client.patch(url, content=data[:1000], headers={**headers, "Upload-Offset": "0"}).status_code
            == 204
        )
        over = client.patch(url, content=data[1000:], headers={**headers, "Upload-Offset": "1000"})
        assert (over.status_code, over.json()["max_blob_bytes"]) == (413, 1024)
        assert client.head(url).headers["upload-limit"] == "max-size=1024, max-age=86400"


def test_more_transfers_than_there_is_room_for_are_sent_away(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_TRANSFERS", 0)
    with served(store, blobs) as client:
        answer = client.put(URL, content=DATA)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_a_server_without_a_blob_store_says_how_to_get_one(store: Store) -> None:
    with served(store, None) as client:
        limits = client.get("/v1/meta").json()["limits"]
        assert (limits["max_blob_bytes"], limits["max_offloaded_event_bytes"]) == (None, None)
        for method in ("GET", "HEAD", "PUT"):
            assert client.request(method, URL).status_code == 404
        assert "--blobs" in client.put(URL, content=DATA).json()["hint"]


def test_the_limits_are_told(client: TestClient) -> None:
    limits = client.get("/v1/meta").json()["limits"]
    assert (limits["max_blob_bytes"], limits["max_offloaded_event_bytes"]) == (8 * 2**30, 256 * 2**20)


# What refers to a blob


def test_the_list_tells_whether_the_bytes_of_a_blob_have_come(store: Store, client: TestClient) -> None:
    missing = sha256(b"never sent").hexdigest()
    events: list[AnyEvent] = [
        episode("e1"),
        agent("a1", episode="e1"),
        call("c1", episode="e1", agent="a1"),
        Blob(id="b1", episode_id="e1", hash=NAME, role="image", media_type="image/png", call_id="c1"),
        Blob(id="b2", episode_id="e1", hash=missing, role="latent", dtype="float32", shape=(2, 3), size=24),
        Blob(id="b3", episode_id="e1", hash=NAME),
    ]
    client.put(URL, content=DATA)
    store.ingest("default", [posted(event) for event in events])
    found = client.get("/v1/blobs").json()["items"]
    assert [(item["id"], item["hash"], item["is_stored"]) for item in found] == [
        ("b1", NAME, True),
        ("b2", missing, False),
        ("b3", NAME, True),
    ]
    assert (found[0]["call_id"], found[0]["media_type"], found[1]["size"]) == ("c1", "image/png", 24)

    def ids(query: str) -> list[str]:
        return [item["id"] for item in client.get(f"/v1/blobs?{query}").json()["items"]]

    assert (ids("role=image"), ids(f"hash={NAME}"), ids("call_id=c1")) == (["b1"], ["b1", "b3"], ["b1"])
    assert ids("episode_id=other") == []
    page = client.get("/v1/blobs?limit=2").json()
    assert page["truncated"]
    assert ids(f"limit=2&cursor={page['next_cursor']}") == ["b3"]
    assert client.get("/v1/blobs", headers={"X-Tracestore-Project": "other"}).json()["items"] == []


# Against a real server

LONG, OTHER = random.Random(0).randbytes(2 * STEP + 10), random.Random(1).randbytes(2 * STEP)


def path_of(data: bytes) -> str:
    return f"/v1/blobs/{sha256(data).hexdigest()}"


@contextmanager
def half_sent(server: Running, data: bytes, *, size: int) -> Iterator[None]:
    """A connection over which the PUT of a blob has begun, and only its first bytes came."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=60) as connection:
        head = f"PUT {path_of(data)} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data[:size])
        yield


def request(
    server: Running, method: str, blob: bytes, body: bytes = b"", **headers: str
) -> http.client.HTTPResponse:
    where = urlsplit(server.url)
    assert where.hostname is not None
    with closing(http.client.HTTPConnection(where.hostname, where.port, timeout=60)) as connection:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path_of(blob), body, named)
        response = connection.getresponse()
        response.read()
        return response


def offset(server: Running, blob: bytes, *, least: int) -> int:
    """How much has come, once that is as much as it must be."""
    while True:
        found = int(request(server, "HEAD", blob).headers["Upload-Offset"])
        if found >= least:
            return found
        time.sleep(0.01)


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "t.db.blobs").rglob("*") if path.is_file()]


def test_a_kill_leaves_no_half_blob_to_be_seen_and_what_was_broken_off_is_gone_on_with(
    tmp_path: Path,
) -> None:
    part = {"Content_Type": routes.PARTIAL, "Upload_Complete": "?0"}
    with running_server(tmp_path / "t.db") as server:
        with half_sent(server, LONG, size=STEP + 3):
            offset(server, LONG, least=STEP)
        came = offset(server, LONG, least=STEP)
        while (
            status := request(server, "PATCH", LONG, LONG[came:-9], Upload_Offset=str(came), **part).status
        ) == 409:
            # The server has yet to notice that the connection is gone, or wrote its last bytes meanwhile.
            came = offset(server, LONG, least=STEP)
        assert status == 204
        with half_sent(server, OTHER, size=len(OTHER) - 1):
            offset(server, OTHER, least=STEP)
            # The first one holds the upload, so this one gets its own.
            with half_sent(server, OTHER, size=len(OTHER) - 1):
                while len(kept(tmp_path)) != 3:
                    time.sleep(0.01)
                server.kill()
    with running_server(tmp_path / "t.db") as server:
        assert [request(server, "GET", blob).status for blob in (LONG, OTHER)] == [404, 404]
        # What the second sender had begun is of no use to anybody.
        assert [path.name.count(".") for path in kept(tmp_path)] == [1, 1]
        assert offset(server, LONG, least=0) == len(LONG) - 9
        part["Upload_Complete"] = "?1"
        last = request(server, "PATCH", LONG, LONG[-9:], Upload_Offset=str(len(LONG) - 9), **part)
        assert (last.status, request(server, "PUT", OTHER, OTHER).status) == (201, 201)
        assert request(server, "GET", LONG).headers["Content-Length"] == str(len(LONG))
        assert server.ended_with() == 0
    assert {f"/v1/blobs/{path.name}" for path in kept(tmp_path)} == {path_of(LONG), path_of(OTHER)}
    assert (tmp_path / "t.log").read_text() == ""


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
def test_a_blob_for_which_there_is_no_room_is_a_507_and_leaves_nothing(tmp_path: Path) -> None:
    # No file of this server may grow beyond the first step of the blob.
    with running_server(tmp_path / "t.db", prefix=["prlimit", f"--fsize={STEP + 5}"]) as server:
        full = request(server, "PUT", LONG, LONG)
        assert (full.status, "Retry-After" in full.headers) == (507, True)
        assert offset(server, LONG, least=0) == 0
    assert kept(tmp_path) == []


def test_a_sender_that_falls_silent_does_not_hold_its_upload(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "IDLE_S", 0.01)

    async def silent() -> Any:
        await anyio.sleep_forever()

    route = routes.BlobRoute(store, blobs, limits=Settings().limits)
    with pytest.raises(UploadStalled):
        anyio.run(route._put, "p", NAME, Headers({}), silent)
    with blobs.uploads.resume("p", NAME, offset=0):
        pass
