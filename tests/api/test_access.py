"""With keys in the database every door asks for one, and nothing of a project is seen with another's key."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import event
from starlette.routing import Route

from tests.factories import (
    answer,
    call,
    candidate_set,
    completion,
    episode,
    gap,
    group,
    member,
    posted,
    reward,
    user,
)
from tests.train.exports import add_entry, export_of, followed
from tests.train.rows import episodes_of_one_call
from tracestore.settings import SETTINGS
from tracestore.store import Store
from tracestore.store.blobs import open_blobs
from tracestore.store.delete import delete_episode
from tracestore.store.engine import StoreUnavailable, writer
from tracestore.store.exports import Made, register
from tracestore.store.keys import NewKey, Right, create_key, revoke_key
from tracestore.store.redact import add_rules
from tracestore_api.access import REMEMBERED_S
from tracestore_api.app import create_app
from tracestore_api.proxy.route import Proxy

BYTES = b"the bytes of a blob"
HASH = hashlib.sha256(BYTES).hexdigest()
EVENTS = [
    group("g", size=1),
    episode("e", group_id="g"),
    episode("the-episode"),
    call("the-call", [user("u")], answer("a", ids=[1, 2])),
    call("c2", [user("v")], answer("b"), parent="later"),
    candidate_set("s", member("the-call")),
    reward("r", 1.0),
    gap("x", "no_token_ids"),
    completion("late", 0, "b"),
    episode("half", phase="start"),
]
OPEN = {("GET", "/v1/health")}
FOR_ANY_KEY = {
    ("GET", "/v1/openapi.json"),
    ("GET", "/v1/meta"),
    ("HEAD", "/v1/blobs/{hash}"),
    ("POST", "/v1/session"),
    ("DELETE", "/v1/session"),
}
"""What a key of any scope may do."""
FOR_ADMINS = {
    ("DELETE", "/v1/episodes/{episode_id}"),
    ("DELETE", "/v1/projects/{name}"),
    ("POST", "/v1/redactions"),
    ("DELETE", "/v1/redactions/{redaction_id}"),
}
"""What takes data away; of all else GET needs read, and every other method write."""

KEY_IN_URL = "urn:tracestore:problem:key-in-url"

Door = tuple[str, str]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Served:
    store: Store
    app: FastAPI
    client: TestClient
    clock: Clock

    def key(self, *scopes: Right, project: str = "mine", expires_at: int | None = None) -> NewKey:
        with writer(self.store.engine).begin() as connection:
            made = frozenset(scopes or ("admin",))
            return create_key(connection, project, name="n", scopes=made, expires_at=expires_at, now=1)

    def send(self, door: Door, key: NewKey | None = None, **ids: str) -> Response:
        method, path = door
        named = {"hash": HASH, "path": "v1/models", "deletion_id": "7", "name": "mine", **ids}
        url = re.sub(r"{(\w+)(?::\w+)?}", lambda name: quote(named.get(name[1], "e"), safe="/"), path)
        headers = {"Content-Type": "application/json", **({} if key is None else bearer(key))}
        return self.client.request(method, url, headers=headers)


def bearer(key: NewKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.text}"}


@pytest.fixture
def served(store: Store, tmp_path: Path) -> Iterator[Served]:
    clock = Clock()
    blobs = open_blobs(str(tmp_path / "blobs"))
    proxy = Proxy(store, upstream="http://127.0.0.1:9", settings=SETTINGS)
    exports = [str(tmp_path / "exports")]
    app = create_app(store, blobs=blobs, proxy=proxy, exported=exports, clock=clock)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield Served(store, app, client, clock)


def doors(app: FastAPI) -> list[Door]:
    """Every method and path of the app: what its document knows, and the plain routes beside it."""
    described = {
        (method.upper(), path) for path, operations in app.openapi()["paths"].items() for method in operations
    }
    plain = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if not (method == "HEAD" and "GET" in (route.methods or ()) and "blobs" not in route.path)
    }
    return sorted(described | plain)


def right_of(door: Door) -> Right | None:
    if door in OPEN | FOR_ANY_KEY:
        return None
    if door in FOR_ADMINS:
        return "admin"
    if door in (("POST", "/v1/sql"), ("POST", "/replay/{path}")):
        return "read"
    return "read" if door[0] == "GET" and not door[1].startswith("/proxy/") else "write"


def fill(served: Served, key: NewKey) -> None:
    body = b"[" + b",".join(posted(one)[1] for one in EVENTS) + b"]"
    assert served.client.post("/v1/events", content=body, headers=bearer(key)).status_code == 200
    assert served.client.put(f"/v1/blobs/{HASH}", content=BYTES, headers=bearer(key)).status_code == 201


def test_every_door_but_health_asks_for_a_key(served: Served) -> None:
    served.key()
    served.clock.now += REMEMBERED_S
    assert len(doors(served.app)) > 20
    for door in doors(served.app):
        response = served.send(door)
        if door in OPEN:
            assert response.status_code == 200
            continue
        assert response.status_code == 401, door
        assert response.headers["www-authenticate"] == 'Bearer realm="tracestore"'
        assert response.headers["content-type"] == "application/problem+json"


def test_every_door_asks_for_the_scope_that_it_needs_and_for_no_other(served: Served) -> None:
    scopes: tuple[Right, ...] = ("read", "write", "admin")
    keys = {scope: served.key(scope) for scope in scopes}
    for door in doors(served.app):
        needed = right_of(door)
        for scope in scopes:
            ids = {"name": "mine", "deletion_id": "1", "redaction_id": "1"}
            status = served.send(door, keys[scope], **ids).status_code
            may = needed is None or scope in (needed, "admin")
            assert (status != 403) == may, (door, scope, status)
            assert status != 401, (door, scope)


def exported(store: Store, project: str, folder: Path) -> str:
    """The hash of an export that a project has registered."""
    return registered(store, project, folder, export_of([episodes_of_one_call([1.0])], folder).hash)


def exported_and_followed(store: Store, project: str, folder: Path) -> str:
    """That of one that goes on."""
    log = followed(folder)
    add_entry(log, [episodes_of_one_call([1.0], group_id="g")])
    return registered(store, project, folder, log.first_hash)


def registered(store: Store, project: str, folder: Path, hash_: str) -> str:
    made = Made(
        manifest_hash=hash_,
        location=str(folder),
        spec="{}",
        snapshot=1,
        sampled_tokens=2,
        trained_tokens=2,
        shards=[],
    )
    register(store, project, made)
    return hash_


def test_a_thing_of_another_project_is_answered_exactly_as_one_that_is_not_there(
    served: Served, tmp_path: Path
) -> None:
    mine, theirs = served.key(project="mine"), served.key(project="theirs")
    fill(served, theirs)
    deletion = delete_episode(served.store, "theirs", "half").id
    redaction = add_rules(served.store, "theirs", '[{"name": "p", "path": "meta.p"}]').id
    numbers = {"deletion_id": str(deletion), "redaction_id": str(redaction)}
    export = exported(served.store, "theirs", tmp_path / "exports" / "one")
    ids = {
        "episode_id": "the-episode",
        "call_id": "the-call",
        "hash": HASH,
        "manifest_hash": export,
        **numbers,
    }
    goes_on = exported_and_followed(served.store, "theirs", tmp_path / "exports" / "two")
    asked = 0
    for door in doors(served.app):
        names = re.findall(r"{(\w+)}", door[1])
        if door[0] not in ("GET", "HEAD") or not names or names == ["path"]:
            continue
        name, *others = names
        assert others in ([], ["name"])
        of_file = dict.fromkeys(others, "manifest.json")
        theirs_id = goes_on if door[1].endswith("/lag") else ids[name]
        assert served.send(door, theirs, **{name: theirs_id}, **of_file).status_code == 200, door
        unknown_id = hashlib.sha256(b"nothing").hexdigest() if name == "hash" else "unknown"
        if name in numbers:
            unknown_id = "987654321"
        foreign = served.send(door, mine, **{name: theirs_id}, **of_file)
        unknown = served.send(door, mine, **{name: unknown_id}, **of_file)
        assert foreign.status_code == unknown.status_code == 404, door
        assert foreign.text.replace(theirs_id, unknown_id) == unknown.text
        assert headers_of(foreign) == headers_of(unknown), door
        asked += 1
    assert asked >= 5


def headers_of(response: Response) -> dict[str, str]:
    """Without the length, which is that of the id."""
    return {name: value for name, value in response.headers.items() if name != "content-length"}


def test_the_lists_of_a_project_hold_nothing_of_another(served: Served) -> None:
    mine, theirs = served.key(project="mine"), served.key(project="theirs")
    fill(served, theirs)
    lists = [
        path
        for path, operations in served.app.openapi()["paths"].items()
        if "get" in operations and "ursor" in json.dumps(operations["get"].get("parameters", []))
    ]
    assert len(lists) >= 7
    filled = 0
    for path in lists:
        filled += bool(served.send(("GET", path), theirs).json()["items"])
        empty = served.send(("GET", path), mine)
        assert empty.json() == {"items": [], "next_cursor": None, "truncated": False}, path
        for name in ("episode_id", "group_id", "call_id", "agent_id"):
            filtered = served.client.get(f"{path}?{name}=e", headers=bearer(mine))
            assert filtered.status_code == 422 or filtered.json()["items"] == [], (path, name)
    assert filled >= 6


def test_the_same_ids_and_the_same_blob_are_new_in_another_project(served: Served) -> None:
    mine, theirs = served.key(project="mine"), served.key(project="theirs")
    fill(served, theirs)
    fill(served, mine)  # 200 and 201: nothing is a duplicate or a conflict
    other = posted(reward("r", 7.0))[1]
    assert served.client.post("/v1/rewards", content=other, headers=bearer(mine)).status_code == 409
    third = served.key(project="third")
    assert served.client.post("/v1/rewards", content=other, headers=bearer(third)).status_code == 200


def test_naming_another_project_is_refused_whether_it_exists_or_not(served: Served) -> None:
    mine = served.key(project="mine")
    served.key(project="theirs")
    refused = [
        served.client.get("/v1/episodes", headers={**bearer(mine), "X-Tracestore-Project": name})
        for name in ("theirs", "nobodys")
    ]
    assert {response.status_code for response in refused} == {403}
    assert refused[0].content == refused[1].content
    own = {**bearer(mine), "X-Tracestore-Project": "mine"}
    assert served.client.get("/v1/episodes", headers=own).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer ts_aaaaaaaa_" + 43 * "b"},
        {"X-Tracestore-Key": "ts_aaaaaaaa_" + 43 * "b"},
        {"Cookie": "tracestore_session=" + 43 * "b"},
    ],
)
def test_a_key_that_is_not_there_is_refused_without_saying_why(
    served: Served, headers: dict[str, str]
) -> None:
    served.key()
    served.clock.now += REMEMBERED_S
    response = served.client.get("/v1/meta", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].endswith('error="invalid_token"')
    revoked = served.key()
    with writer(served.store.engine).begin() as connection:
        revoke_key(connection, "mine", revoked.key.prefix, now=2)
    same = served.client.get("/v1/meta", headers=bearer(revoked))
    assert (same.status_code, same.content) == (401, response.content)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Basic dTpw"},
        {"Authorization": "Bearer sk-1"},
        {"X-Tracestore-Key": ""},
        {"Cookie": "a=b"},
    ],
)
def test_what_is_no_key_of_ours_is_no_key(served: Served, headers: dict[str, str]) -> None:
    served.key()
    served.clock.now += REMEMBERED_S
    assert served.client.get("/v1/meta", headers=headers).status_code == 401


@pytest.mark.parametrize("shown", ["ts_aaaaaaaa", "ts_aaaaaaaa_" + 44 * "b", "ts_..."])
def test_a_key_that_is_not_whole_is_told_so(served: Served, shown: str) -> None:
    served.key()
    served.clock.now += REMEMBERED_S
    response = served.client.get("/v1/meta", headers={"Authorization": f"Bearer {shown}"})
    assert (response.status_code, "whole key" in response.json()["hint"]) == (401, True)


def test_beside_our_own_header_the_authorization_is_the_upstreams(served: Served) -> None:
    headers = {"X-Tracestore-Key": served.key().text, "Authorization": "Bearer sk-of-the-upstream"}
    assert served.client.get("/v1/meta", headers=headers).status_code == 200


def test_a_session_does_not_open_the_proxy(served: Served) -> None:
    opened = served.client.post("/v1/session", headers=bearer(served.key()))
    assert opened.status_code == 201  # and the client keeps the cookie
    assert served.client.get("/v1/episodes").status_code == 200
    assert served.client.get("/proxy").status_code == 200
    assert served.client.get("/proxy/v1/models").status_code == 401


def test_an_expired_key_is_refused_at_once_and_a_revoked_one_within_two_seconds(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    expiring, revoked = served.key(expires_at=20), served.key()
    for now, expected in ((19, 200), (20, 401)):
        monkeypatch.setattr(served.app.state.callers, "_now", lambda now=now: now)
        assert served.client.get("/v1/meta", headers=bearer(expiring)).status_code == expected
    assert served.client.get("/v1/meta", headers=bearer(revoked)).status_code == 200
    with writer(served.store.engine).begin() as connection:
        revoke_key(connection, "mine", revoked.key.prefix, now=30)
    served.clock.now += REMEMBERED_S
    assert served.client.get("/v1/meta", headers=bearer(revoked)).status_code == 401


def test_a_key_is_looked_up_once_in_two_seconds(served: Served) -> None:
    key = served.key()
    asked = []
    event.listen(
        served.store.engine,
        "before_cursor_execute",
        lambda conn, cursor, statement, *rest: asked.append(statement) if "api_key" in statement else None,
    )
    for _ in range(5):
        assert served.client.get("/v1/meta", headers=bearer(key)).status_code == 200
    assert len(asked) == 1
    served.clock.now += REMEMBERED_S
    served.client.get("/v1/meta", headers=bearer(key))
    assert len(asked) == 2


@pytest.mark.parametrize(("error", "status"), [(StoreUnavailable(), 503), (ZeroDivisionError(), 500)])
def test_while_keys_cannot_be_looked_up_nobody_passes(
    served: Served, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def broken(hash_: bytes) -> None:
        raise error

    key = served.key()
    monkeypatch.setattr(served.app.state.callers, "_find_key", broken)
    response = served.client.get("/v1/meta", headers=bearer(key))
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


def test_without_keys_the_header_names_the_project_until_the_first_key_is_made(served: Served) -> None:
    named = {"X-Tracestore-Project": "any"}
    assert served.client.get("/v1/meta", headers=named).json()["project"] == "any"
    assert served.client.get("/v1/meta", headers={"Authorization": "Bearer sk-1"}).status_code == 200
    # A client that is set up for another server is told so.
    wrong = {"Authorization": "Bearer ts_aaaaaaaa_" + 43 * "b"}
    assert served.client.get("/v1/meta", headers=wrong).status_code == 401
    served.key()
    served.clock.now += REMEMBERED_S
    assert served.client.get("/v1/meta", headers=named).status_code == 401


@pytest.mark.parametrize("path", ["/v1/meta?{}={}", "/v1/episodes?limit=1&{}={}", "/v1/nothing?{}={}"])
@pytest.mark.parametrize(
    "name", ["key", "api_key", "API-Key", "access_token", "token", "x-tracestore-key", "q"]
)
def test_a_key_in_a_url_is_refused_and_not_repeated(served: Served, path: str, name: str) -> None:
    key = served.key()
    response = served.client.get(path.format(name, key.text), headers=bearer(key))
    assert (response.status_code, response.json()["type"]) == (400, "urn:tracestore:problem:key-in-url")
    assert key.text not in response.text


def test_a_key_as_an_id_in_a_path_is_refused_too(served: Served) -> None:
    key = served.key()
    assert served.client.get(f"/v1/episodes/{key.text}", headers=bearer(key)).status_code == 400


def test_no_key_is_ever_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    key = served.key("read")
    with caplog.at_level(logging.DEBUG):
        for door in doors(served.app):
            served.send(door, key)
        served.client.get(f"/v1/meta?key={key.text}")
        served.client.get("/v1/meta", headers={"X-Tracestore-Key": key.text + "x"})
    secret = key.text.rpartition("_")[2]
    ours = [record for record in caplog.records if not record.name.startswith("httpx")]
    assert secret not in "".join(repr(record.__dict__) for record in ours)


def test_a_replay_that_may_ask_a_model_needs_a_key_that_may_write(served: Served) -> None:
    url = "/replay/episode=e/mode=record-missing/v1/chat/completions"
    for scope, status in (("read", 403), ("admin", 404)):  # there is no such episode
        headers = bearer(served.key(scope))
        assert served.client.post(url, json={"messages": []}, headers=headers).status_code == status
