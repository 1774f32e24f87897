from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted
from tracestore.store import Store
from tracestore.store.blobs import Blobs, open_blobs
from tracestore.store.delete import carry_out, delete_episode, delete_project, deletions
from tracestore.store.retain import read_retention
from tracestore.wire.encode import encode
from tracestore_api.app import create_app


def client_of(store: Store, blobs: Blobs | None = None) -> TestClient:
    return TestClient(
        create_app(store, blobs=blobs), base_url="http://127.0.0.1", client=("127.0.0.1", 50000)
    )


def done(client: TestClient, path: str) -> dict[str, object]:
    """The deletion, when it is done; a server that never ends it fails by the limit."""
    until = time.monotonic() + 30
    while (found := client.get(path).json())["state"] != "done":
        assert time.monotonic() < until, found
        time.sleep(0.02)
    return dict(found)


def test_a_deleted_episode_can_be_followed_and_is_gone_for_readers_and_posters(tmp_path: Path) -> None:
    events = [
        *(make.episode("e"), make.agent("a"), make.call("c", agent="a"), make.reward("r")),
        *(make.episode("f"), make.agent("b", episode="f")),
    ]
    with Store.open(empty_store(tmp_path / "store.db")) as store, client_of(store) as client:
        store.ingest("default", [posted(event) for event in events])
        answer = client.delete("/v1/episodes/e")
        assert answer.status_code == 202
        found = done(client, answer.headers["location"])
        assert (found["episodes"], found["episodes_erased"]) == (1, 1)
        assert client.get("/v1/deletions").json()["items"] == [found]
        assert client.delete("/v1/episodes/e").json() == found
        for path in ("/v1/episodes/e", "/v1/calls/c", "/v1/calls/c/request", "/v1/calls/c/context"):
            assert client.get(path).status_code == 410, path
        assert client.get("/v1/episodes/f").status_code == 200
        again = client.post("/v1/events", content=b"\n".join(encode(one) for one in events))
        assert again.status_code == 207
        statuses = [item["problem"] and item["problem"]["status"] for item in again.json()["items"]]
        assert statuses == [410, 410, 410, 410, None, None]
        assert client.delete("/v1/episodes/never").status_code == 404
        assert client.get("/v1/deletions/999").status_code == 404


def test_what_a_stopped_server_left_is_carried_out_by_the_next(tmp_path: Path) -> None:
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", [posted(make.episode("e")), posted(make.agent("a"))])
        asked = delete_episode(store, "default", "e")
        with client_of(store) as client:
            done(client, f"/v1/deletions/{asked.id}")
        assert [one.state for one in deletions(store, "default")] == ["done"]


def test_a_server_deletes_what_its_rules_say_is_due(tmp_path: Path) -> None:
    rules = read_retention('[{"project": "*", "older_than": "1s"}]')
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", [posted(make.episode("e"))])
        time.sleep(1.1)
        app = create_app(store, retention=rules)
        with TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000)) as client:
            until = time.monotonic() + 30
            while not (found := client.get("/v1/deletions").json()["items"]) or found[0]["state"] != "done":
                assert time.monotonic() < until, found
                time.sleep(0.02)
            assert (found[0]["what"], found[0]["episodes_erased"]) == ("age", 1)
            assert client.get("/v1/episodes/e").status_code == 410


NAMING = (
    *("/v1/episodes/e", "/v1/calls/c", "/v1/calls/c/request", "/v1/calls/c/context"),
    *("/v1/agents?episode_id=e", "/v1/calls?episode_id=e", "/v1/calls?agent_id=a"),
    *("/v1/candidates?episode_id=e", "/v1/candidates?agent_id=a"),
    *("/v1/rewards?episode_id=e", "/v1/rewards?agent_id=a", "/v1/rewards?call_id=c"),
    *("/v1/gaps?episode_id=e", "/v1/orphans?episode_id=e", "/v1/incomplete?episode_id=e"),
    *("/v1/blobs?episode_id=e", "/v1/blobs?call_id=c"),
)
"""Every way to read something by the name of an episode, agent or call."""
LISTS = (
    "episodes",
    "groups",
    "agents",
    "calls",
    "candidates",
    "rewards",
    "gaps",
    "orphans",
    "incomplete",
    "blobs",
)


@pytest.mark.parametrize("is_erased", [False, True])
def test_what_was_deleted_is_410_wherever_it_is_named(tmp_path: Path, is_erased: bool) -> None:
    told = [make.episode("e"), make.agent("a"), make.call("c", agent="a"), make.reward("r")]
    late = [
        *(make.episode("e"), make.agent("new"), make.call("c", agent="a"), make.completion("c", index=1)),
        *(make.tool_call("t", "c"), make.reward("r2"), make.gap("g"), make.blob("b"), make.snapshot("s")),
        make.candidate_set("set", make.member("c")),
    ]
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", [posted(event) for event in told])
        asked = delete_episode(store, "default", "e")
        if is_erased:
            carry_out(store, "default", asked.id)
        # Without its lifespan, so that nothing carries out what is asked for.
        client = client_of(store)
        for path in NAMING:
            assert (client.get(path).status_code, path) == (410, path)
        answer = client.post("/v1/events", content=b"\n".join(encode(one) for one in late)).json()
        assert {item["problem"]["status"] for item in answer["items"]} == {410}
        reward = {"target": {"episode_id": "e"}, "name": "n", "value": 1}
        assert client.post("/v1/rewards", json=reward).status_code == 410
        rows = client.post("/v1/sql", json={"query": "SELECT count(*) FROM calls"}).json()["rows"]
        assert rows == [[0]]
        delete_project(store, "default")
        for name in LISTS:
            assert (client.get(f"/v1/{name}").status_code, name) == (410, name)


def test_deletions_are_listed_page_by_page_the_latest_first(tmp_path: Path) -> None:
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        store.ingest("default", [posted(make.episode(f"e{number}")) for number in range(5)])
        asked = [delete_episode(store, "default", f"e{number}").id for number in range(5)]
        client, cursor, found = client_of(store), None, []
        for size in (2, 2, 1):
            parameters = {"limit": 2} if cursor is None else {"limit": 2, "cursor": cursor}
            page = client.get("/v1/deletions", params=parameters).json()
            assert len(page["items"]) == size
            found += [one["id"] for one in page["items"]]
            cursor = page["next_cursor"]
        assert (cursor, found) == (None, asked[::-1])
        assert client.get("/v1/deletions", params={"cursor": "x"}).status_code == 422


def test_a_deleted_project_keeps_no_payload_and_takes_none(tmp_path: Path) -> None:
    blobs = open_blobs(str(tmp_path / "blobs"))
    names = [hashlib.sha256(data).hexdigest() for data in (b"unnamed", b"later")]
    with Store.open(empty_store(tmp_path / "store.db")) as store, client_of(store, blobs) as client:
        store.ingest("default", [posted(make.episode("e"))])
        # Its event never came, so no row names it.
        assert client.put(f"/v1/blobs/{names[0]}", content=b"unnamed").status_code == 201
        answer = client.delete("/v1/projects/default")
        assert client.put(f"/v1/blobs/{names[1]}", content=b"later").status_code == 410
        assert done(client, answer.headers["location"])["blobs"] == 1
        assert client.get(f"/v1/blobs/{names[0]}").status_code == 410
        assert [blobs.size("default", name) for name in names] == [None, None]
