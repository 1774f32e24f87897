"""An event that is too large for a body comes as a blob, and is stored and read like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.factories import call, episode, posted, user
from tracestore.settings import Settings
from tracestore.store.blobs import Blobs, open_blobs
from tracestore.store.store import Store
from tracestore.store.verify import verify
from tracestore.wire.decode import decode_body
from tracestore_api.app import create_app
from tracestore_api.offloaded import stub_of


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return open_blobs(str(tmp_path / "blobs"))


@pytest.fixture
def client(store: Store, blobs: Blobs) -> Iterator[TestClient]:
    settings = Settings(max_event_bytes=100_000, max_offloaded_event_bytes=2_000_000)
    app = create_app(store, blobs=blobs, settings=settings)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


def large(id_: str = "c1", *, size: int = 1_500_000) -> bytes:
    """A call whose request is spelled as no encoder of ours would, and is over the limit of an event."""
    content = '"é\\u0000\\ud83d' + "x" * size + '"'
    messages = '"messages":[ {"role":"user","content":' + content + "} ]"
    names = '"id":"' + id_ + '","episode_id":"e1",\n"agent_id":"main"'
    return (
        '{ "v":1 , "kind":"call",' + names + ',"request":{' + messages + ',"seed":1e400 , "n" : 1.0}}'
    ).encode()


def put(client: TestClient, text: bytes, **headers: str) -> str:
    name = sha256(text).hexdigest()
    assert client.put(f"/v1/blobs/{name}", content=text, headers=headers).status_code in (200, 201)
    return name


def stub(text: bytes, id_: str = "c1", kind: str = "call", **changed: Any) -> bytes:
    where = {"hash": sha256(text).hexdigest(), "size": len(text), **changed}
    return json.dumps({"v": 1, "kind": kind, "id": id_, "offloaded": where}).encode()


def post(client: TestClient, *events: bytes, **headers: str) -> tuple[int, list[dict[str, Any]]]:
    response = client.post(
        "/v1/events",
        content=b"[" + b",".join(events) + b"]",
        headers={"Content-Type": "application/json", **headers},
    )
    return response.status_code, response.json()["items"]


def test_an_item_over_a_megabyte_is_stored_whole_and_read_back_byte_for_byte(
    client: TestClient, store: Store
) -> None:
    text = large()
    refused = client.post("/v1/events", content=text, headers={"Content-Type": "application/json"})
    assert refused.json()["items"][0]["problem"]["status"] == 413
    put(client, text)
    first = posted(episode("e1"))[1]
    last = posted(call("c2", [user("after")], "yes", episode="e1"))[1]
    status, items = post(client, first, stub(text), last)
    assert (status, [item["status"] for item in items]) == (200, ["stored"] * 3)
    assert [(item["index"], item["id"]) for item in items] == [(0, "e1"), (1, "c1"), (2, "c2")]
    request = text[text.index(b'{"messages"') : -1]
    assert client.get("/v1/calls/c1/request").content == request
    assert verify(store, "default").problems == ()


def test_an_event_is_the_same_whichever_way_it_comes(client: TestClient) -> None:
    text = large(size=1000)
    put(client, text)
    assert post(client, posted(episode("e1"))[1], text)[1][1]["status"] == "stored"
    assert post(client, stub(text))[1][0]["status"] == "duplicate"
    other = large(size=1001)
    put(client, other)
    status, [item] = post(client, stub(other))
    assert (status, item["status"], item["problem"]["status"]) == (422, "conflict", 409)


def test_an_event_whose_blob_has_not_come_fails_alone_and_says_what_to_do(client: TestClient) -> None:
    text = large()
    status, items = post(client, stub(text), posted(episode("e1"))[1])
    assert (status, [item["status"] for item in items]) == (207, ["invalid", "stored"])
    problem = items[0]["problem"]
    assert (problem["status"], problem["type"]) == (422, "urn:tracestore:problem:missing-blob")
    assert f"PUT /v1/blobs/{sha256(text).hexdigest()}" in problem["hint"]
    put(client, text)
    assert post(client, stub(text))[0] == 200


def test_the_blob_of_another_project_is_one_that_has_not_come(client: TestClient) -> None:
    text = large()
    put(client, text, **{"X-Tracestore-Project": "other"})
    _, [mine] = post(client, stub(text))
    _, [nobodys] = post(client, stub(b"never sent"))
    assert mine["problem"]["type"] == nobodys["problem"]["type"] == "urn:tracestore:problem:missing-blob"


@pytest.mark.parametrize(
    ("of", "changed", "problem"),
    [
        ({}, {"size": 3}, "invalid-offloaded"),
        ({}, {"size": 2_000_001}, "event-too-large"),
        ({"id_": "c9"}, {}, "other-event"),
        ({"kind": "episode"}, {}, "other-event"),
    ],
)
def test_a_blob_that_is_not_the_event_it_is_named_for_is_refused(
    client: TestClient, of: dict[str, Any], changed: dict[str, Any], problem: str
) -> None:
    text = large()
    put(client, text)
    status, [item] = post(client, stub(text, **of, **changed))
    assert (status, item["problem"]["type"]) == (422, f"urn:tracestore:problem:{problem}")


@pytest.mark.parametrize(
    ("text", "problem"), [(b"\xff\xfe", "malformed-json"), (b"[1]", "not-an-object"), (b"", "malformed-json")]
)
def test_a_blob_that_is_no_event_is_refused_as_a_body_would_be(
    client: TestClient, text: bytes, problem: str
) -> None:
    put(client, text)
    _, [item] = post(client, stub(text))
    assert item["problem"]["type"] == f"urn:tracestore:problem:{problem}"


def test_a_damaged_blob_is_noticed_and_mends_when_it_is_sent_again(
    client: TestClient, tmp_path: Path
) -> None:
    text = large()
    name = put(client, text)
    [file] = (tmp_path / "blobs").rglob(name)
    file.write_bytes(b" " * len(text))
    _, [item] = post(client, stub(text))
    assert item["problem"]["type"] == "urn:tracestore:problem:damaged-blob"
    put(client, text)
    assert post(client, posted(episode("e1"))[1], stub(text))[0] == 200


@pytest.mark.parametrize(
    "text",
    [
        b'{"v":1,"kind":"call","id":"c","offloaded":{"hash":"%s","size":1},"episode_id":"e"}' % (b"0" * 64),
        b'{"v":2,"kind":"call","id":"c","offloaded":{"hash":"%s","size":1}}' % (b"0" * 64),
        b'{"v":1,"kind":"call","id":"c","offloaded":{"hash":"%s","size":1}}' % (b"F" * 64),
        b'{"v":1,"kind":"call","id":"c","offloaded":{"hash":"%s","size":-1}}' % (b"0" * 64),
        b'{"v":1,"kind":"call","id":"c","offloaded":{"hash":"%s","size":1.0}}' % (b"0" * 64),
        b'{"v":1,"kind":"call","id":"c","offloaded":{"hash":"%s"}}' % (b"0" * 64),
        b'{"v":1,"kind":"call","id":"c","offloaded":null}',
        b'{"v":1,"kind":"call","offloaded":{"hash":"%s","size":1}}' % (b"0" * 64),
    ],
)
def test_a_stub_that_says_too_little_or_too_much_is_refused(client: TestClient, text: bytes) -> None:
    _, [item] = post(client, text)
    assert item["problem"]["type"] == "urn:tracestore:problem:invalid-offloaded"


@pytest.mark.parametrize(
    "text",
    [
        b'{"v":1,"kind":"episode","id":"e","task_id":"offloaded"}',
        b'{"v":1,"kind":"episode","id":"e","meta":{"offloaded":1},"x":1}',
        b'{"offloaded":',
        b'["offloaded"]',
        b'{"v":1,"kind":"episode","id":"e","x":"offloaded"}',
    ],
)
def test_only_a_field_of_this_name_makes_a_stub(text: bytes) -> None:
    [one] = decode_body(text, content_type="application/x-ndjson")
    assert stub_of(one) is None


def test_what_does_not_fit_beside_what_is_in_hand_is_sent_away_before_anything_is_stored(
    store: Store, blobs: Blobs
) -> None:
    settings = Settings(max_body_bytes=1024, max_event_bytes=1024, max_bytes_in_hand=1_000_000)
    text = large()
    with TestClient(create_app(store, blobs=blobs, settings=settings), base_url="http://127.0.0.1") as client:
        put(client, text)
        body = b"[" + posted(episode("e1"))[1] + b"," + stub(text) + b"]"
        busy = client.post("/v1/events", content=body, headers={"Content-Type": "application/json"})
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        assert client.get("/v1/episodes").json()["items"] == []


def test_a_server_without_a_blob_store_refuses_stubs_alone(store: Store) -> None:
    with TestClient(create_app(store), base_url="http://127.0.0.1") as client:
        status, items = post(client, posted(episode("e1"))[1], stub(large()))
    assert (status, [item["status"] for item in items]) == (207, ["stored", "invalid"])
    assert "--blobs" in items[1]["problem"]["hint"]
