"""`POST /v1/events`: what is stored, what is refused, and how each is said."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import zstandard
from fastapi.testclient import TestClient
from httpx2 import Response

from tests.factories import agent, answer, call, episode, posted, reward, user
from tracestore.settings import Settings
from tracestore.store.store import Store
from tracestore.wire.events import AnyEvent
from tracestore_api.app import create_app
from tracestore_api.ingest import SMALL_BYTES

NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}


def line(event: AnyEvent) -> bytes:
    return posted(event)[1]


def lines(*events: AnyEvent | bytes) -> bytes:
    return b"\n".join(event if isinstance(event, bytes) else line(event) for event in events)


def array(*events: AnyEvent) -> bytes:
    return b"[" + b",".join(map(line, events)) + b"]"


def post(client: TestClient, body: bytes, **headers: str) -> Response:
    return client.post(
        "/v1/events", content=body, headers={key.replace("_", "-"): value for key, value in headers.items()}
    )


def statuses(response: Response) -> list[str]:
    return [item["status"] for item in response.json()["items"]]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (line(episode("e1")), "application/json"),
        (array(episode("e1")), "application/json; charset=utf-8"),
        (lines(episode("e1")), "application/x-ndjson"),
        (line(episode("e1")), None),
    ],
)
def test_an_event_an_array_and_ndjson_are_taken(
    client: TestClient, body: bytes, content_type: str | None
) -> None:
    response = client.post(
        "/v1/events", content=body, headers={"Content-Type": content_type} if content_type else {}
    )
    assert response.status_code == 200
    assert response.json() == {
        "stored": 1,
        "duplicate": 0,
        "conflict": 0,
        "invalid": 0,
        "items": [{"index": 0, "kind": "episode", "id": "e1", "status": "stored", "problem": None}],
    }


def test_ndjson_is_recognised_when_the_sender_does_not_say(client: TestClient) -> None:
    assert statuses(post(client, lines(episode("e1"), episode("e2")))) == ["stored", "stored"]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_compressed_bodies_are_taken(client: TestClient, coding: str) -> None:
    body = array(episode("e1"), agent("a1", episode="e1"))
    folded = gzip.compress(body) if coding == "gzip" else zstandard.compress(body)
    assert (
        statuses(post(client, folded, Content_Type="application/json", Content_Encoding=coding))
        == ["stored"] * 2
    )


def test_the_same_event_twice_is_a_duplicate_and_a_success(client: TestClient) -> None:
    body = line(episode("e1", task_id="t"))
    assert post(client, body).status_code == 200
    again = post(client, b'{ "task_id":"t", "id":"e1", "kind":"episode", "v":1 }')
    assert (again.status_code, statuses(again)) == (200, ["duplicate"])


def test_another_value_under_the_same_id_is_a_conflict_and_the_first_is_kept(client: TestClient) -> None:
    post(client, line(reward("r1", 1.0)))
    response = post(client, lines(reward("r1", 2.0), reward("r2", 3.0)), **NDJSON)
    assert (response.status_code, statuses(response)) == (207, ["conflict", "stored"])
    problem = response.json()["items"][0]["problem"]
    assert problem["status"] == 409
    assert problem["type"] == "urn:tracestore:problem:conflicting-event"
    assert [item["value"] for item in client.get("/v1/rewards").json()["items"]] == [1.0, 3.0]


def test_a_higher_revision_is_stored_in_the_place_of_the_first_and_a_lower_one_is_a_duplicate(
    client: TestClient,
) -> None:
    post(client, line(reward("r1", 1.0)))
    response = post(client, lines(reward("r1", 2.0, revision=2), reward("r1", 3.0, revision=1)), **NDJSON)
    assert (response.status_code, statuses(response)) == (200, ["stored", "duplicate"])
    again = post(client, line(reward("r1", 4.0, revision=2)))
    assert (again.status_code, statuses(again)) == (422, ["conflict"])
    assert [item["value"] for item in client.get("/v1/rewards").json()["items"]] == [2.0]


def test_projects_do_not_see_each_other(client: TestClient) -> None:
    assert post(client, line(episode("e1")), X_Tracestore_Project="other").status_code == 200
    assert statuses(post(client, line(episode("e1", task_id="t")))) == ["stored"]
    mine = client.get("/v1/episodes").json()["items"]
    assert [item["task_id"] for item in mine] == ["t"]


GOOD = call("good", [user("hi")], answer("yes", ids=[5, 6]))
DEEP = b'{"v":1,"kind":"episode","id":"x","meta":' + b"[" * 250 + b"]" * 250 + b"}"

BAD: dict[str, tuple[bytes, int, str]] = {
    "an unknown field": (b'{"v":1,"kind":"episode","id":"x","taskid":"t"}', 422, "taskid"),
    "logprobs of another length than ids": (
        b'{"v":1,"kind":"call","id":"x","episode_id":"e","agent_id":"main",'
        b'"completions":[{"token_ids":[1,2],"logprobs":[-0.5]}]}',
        422,
        "1 logprobs for 2 token_ids",
    ),
    "negative token ids": (
        b'{"v":1,"kind":"call","id":"x","episode_id":"e","agent_id":"main","prompt_token_ids":[1,-2]}',
        422,
        "prompt_token_ids",
    ),
    "NaN where it is not declared": (
        b'{"v":1,"kind":"reward","id":"x","target":{"episode_id":"e"},"name":"n","value":NaN}',
        422,
        "value",
    ),
    "nesting over the limit": (DEEP, 422, "depth=251"),
    "duplicate keys": (b'{"v":1,"kind":"episode","id":"x","task_id":"a","task_id":"b"}', 422, "task_id"),
    "a missing id": (b'{"v":1,"kind":"episode"}', 422, "id"),
    "an unknown kind": (b'{"v":1,"kind":"episod","id":"x"}', 422, "episode"),
    "a wire version that is not read": (b'{"v":9,"kind":"episode","id":"x"}', 422, "v"),
    "a line that is no JSON": (b'{"v":1,"kind":"episode",', 422, "JSON"),
    "bytes that are not UTF-8": (b'{"v":1,"kind":"episode","id":"\xff"}', 422, "UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_event_is_refused_with_its_reason_and_its_mates_are_stored(
    client: TestClient, name: str
) -> None:
    bad, status, said = BAD[name]
    response = post(client, lines(episode("e"), bad, GOOD), **NDJSON)
    assert response.status_code == 207
    assert statuses(response) == ["stored", "invalid", "stored"]
    problem = response.json()["items"][1]["problem"]
    assert problem["status"] == status
    assert problem["type"].startswith("urn:tracestore:problem:")
    assert said in problem["detail"]
    assert client.get("/v1/calls/good").status_code == 200


def test_a_bad_event_alone_is_422_and_stores_nothing(client: TestClient) -> None:
    response = post(client, BAD["an unknown field"][0])
    assert (response.status_code, statuses(response)) == (422, ["invalid"])
    assert client.get("/v1/episodes").json()["items"] == []


def test_an_event_over_the_size_limit_fails_alone(store: Store) -> None:
    app = create_app(store, settings=Settings(max_event_bytes=1000, max_body_bytes=10_000))
    large = episode("large", task="x" * 1000)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        response = post(client, array(episode("e"), large, GOOD), **JSON)
    assert (response.status_code, statuses(response)) == (207, ["stored", "invalid", "stored"])
    problem = response.json()["items"][1]["problem"]
    assert (problem["status"], problem["limit"]) == (413, 1000)
    assert response.json()["items"][1]["id"] == "large"


def test_the_event_that_would_close_a_cycle_is_refused(client: TestClient) -> None:
    first = call("c1", [user("a")], "b", parent="c2")
    second = call("c2", [user("a")], "b", parent="c1")
    response = post(client, lines(first, second, GOOD), **NDJSON)
    assert (response.status_code, statuses(response)) == (207, ["stored", "invalid", "stored"])
    assert "c1" in response.json()["items"][1]["problem"]["detail"]


def test_a_parent_in_another_project_is_a_parent_that_never_came(client: TestClient) -> None:
    post(client, lines(episode("e"), call("parent", [user("a")], "b")), X_Tracestore_Project="other")
    child = call("child", [user("c")], "d", parent="parent", episode="e2")
    never = call("orphan", [user("c")], "d", parent="never", episode="e3")
    assert statuses(post(client, lines(child, never))) == ["stored", "stored"]
    links = [client.get(f"/v1/calls/{id_}").json()["link"] for id_ in ("child", "orphan")]
    assert links[0] == links[1]
    assert client.get("/v1/calls/parent").status_code == 404


@pytest.mark.parametrize(
    "body", [b"[", b'[{"v":1,"kind":"episode","id":"e1"}', b'[{"v":1}, {]', b"", b"  \n"]
)
def test_a_malformed_array_or_an_empty_body_is_400_and_stores_nothing(
    client: TestClient, body: bytes
) -> None:
    response = post(client, body, **JSON)
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["hint"]
    assert client.get("/v1/episodes").json()["items"] == []


def test_an_empty_array_is_a_success(client: TestClient) -> None:
    response = post(client, b"[]", **JSON)
    assert (response.status_code, response.json()["items"]) == (200, [])


def test_limits_of_the_whole_body_are_413_and_store_nothing(store: Store) -> None:
    limits = Settings(max_event_bytes=500, max_body_bytes=500, max_events=3)
    with TestClient(create_app(store, settings=limits), base_url="http://127.0.0.1") as client:
        many = post(client, array(*(episode(f"e{n}") for n in range(4))), **JSON)
        large = post(client, b" " * 501, **JSON)
        bomb = post(client, gzip.compress(b" " * 501), **JSON, Content_Encoding="gzip")
        zstd_bomb = post(client, zstandard.compress(b" " * 501), **JSON, Content_Encoding="zstd")
        assert [r.status_code for r in (many, large, bomb, zstd_bomb)] == [413] * 4
        assert many.json()["limit"] == 3
        assert client.get("/v1/episodes").json()["items"] == []


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Encoding": "br"}, 415),
        ({"Content-Encoding": "gzip"}, 400),
        ({"X-Tracestore-Project": "a\x01b"}, 400),
    ],
)
def test_a_request_that_says_something_unusable_is_a_problem(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    response = client.post("/v1/events", content=line(episode("e1")), headers=headers)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "hint"} <= response.json().keys()


def test_what_encodings_are_read_is_said_where_one_is_not(client: TestClient) -> None:
    response = post(client, line(episode("e1")), Content_Encoding="br")
    assert response.headers["accept-encoding"] == "gzip, zstd"


def test_query_parameters_are_refused(client: TestClient) -> None:
    response = client.post("/v1/events?project=other", content=line(episode("e1")))
    assert (response.status_code, response.json()["title"]) == (
        422,
        "The query has a parameter that this route does not know",
    )


def test_a_full_queue_is_503_with_retry_after_and_stores_nothing(store: Store) -> None:
    app = create_app(store, settings=Settings(max_requests_in_hand=0))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        response = post(client, line(episode("e1")))
        assert response.status_code == 503
        assert response.headers["retry-after"] == "1"
        assert response.headers["content-type"] == "application/problem+json"
        assert client.get("/v1/episodes").json()["items"] == []


def test_four_clients_at_once_store_every_event_once(client: TestClient) -> None:
    def client_events(number: int) -> list[list[AnyEvent]]:
        # All four also post the same shared episodes.
        return [
            [
                episode(f"shared{n}", task_id="t"),
                episode(f"e{number}.{n}"),
                agent(f"a{number}.{n}", episode=f"e{number}.{n}"),
                call(
                    f"c{number}.{n}",
                    [user("same text for all")],
                    answer("ok", ids=[n]),
                    episode=f"e{number}.{n}",
                ),
            ]
            for n in range(15)
        ]

    def run(number: int) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        for events in client_events(number):
            response = post(client, array(*events), **JSON)
            assert response.status_code == 200, response.text
            items += response.json()["items"]
        return items

    with ThreadPoolExecutor(4) as threads:
        items = [item for found in threads.map(run, range(4)) for item in found]
    stored = [(item["kind"], item["id"]) for item in items if item["status"] == "stored"]
    # 15 shared episodes once, and 4 x 15 x 3 events of their own.
    assert len(stored) == len(set(stored)) == 15 + 4 * 15 * 3
    assert len(client.get("/v1/episodes?limit=1000").json()["items"]) == 15 + 4 * 15


def test_requests_come_back_byte_for_byte(client: TestClient) -> None:
    request = (
        b'{ "model":"m",\t"seed":1e400, "big":123456789012345678901234567890, "zero":-0,\n'
        b'"messages":[ {"role":"user","content":"\\ud83d \\u0000 \xc3\xa9"} ,'
        b'{"content":"b","role":"assistant"}],"n":1.0}'
    )
    event = b'{"v":1,"kind":"call","id":"c1","episode_id":"e","agent_id":"main","request":' + request + b"}"
    assert statuses(post(client, event)) == ["stored"]
    assert client.get("/v1/calls/c1/request").content == request
    assert (
        b'"message":{"role":"user","content":"\\ud83d \\u0000 \xc3\xa9"}}'
        in client.get("/v1/calls/c1/context").content
    )
    assert json.loads(client.get("/v1/calls/c1").content)["request"]["model"] == "m"


@pytest.mark.parametrize("padding", [0, SMALL_BYTES])
def test_a_small_and_a_large_body_are_answered_alike(client: TestClient, padding: int) -> None:
    body = array(episode("e1"), episode("e1", task_id="other"), episode("e2"))
    first = post(client, body + b" " * padding)
    assert (first.status_code, statuses(first)) == (207, ["stored", "conflict", "stored"])
    again = post(client, array(episode("e2")) + b"\n" * padding)
    assert (again.status_code, statuses(again)) == (200, ["duplicate"])
    assert post(client, b"[]" + b" " * padding).json()["items"] == []
    scored = client.post("/v1/rewards", content=posted(reward("r", 1.0))[1] + b" " * padding)
    assert scored.json() == {"id": "r", "id_made_by": "client", "status": "stored"}
