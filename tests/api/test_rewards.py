"""`POST /v1/rewards` takes what a scorer has, and stores what an event post would have stored."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient

from tracestore.wire.decode import decode_event
from tracestore.wire.limits import LIMITS
from tracestore_api.rewards import whole_reward

BARE = b' {"target":{"episode_id":"e"}, "name":"exact", "value":0.1, "meta":{ "n":1e400 }}\n'


def test_the_posted_text_is_kept_and_what_was_left_out_is_put_in_front() -> None:
    text, made_id = whole_reward(BARE, limits=LIMITS)
    assert made_id is not None
    assert text == b'{"v":1,"kind":"reward","id":"' + made_id.encode() + b'",' + BARE.strip()[1:]
    assert decode_event(text).meta == b'{ "n":1e400 }'


def test_a_whole_event_is_taken_as_it_is() -> None:
    event = b'{"v":1,"kind":"reward","id":"r","target":{"episode_id":"e"},"name":"n","value":1}'
    assert whole_reward(event, limits=LIMITS) == (event, None)


def test_an_empty_object_misses_its_fields_and_not_a_comma(client: TestClient) -> None:
    response = client.post("/v1/rewards", content=b"{}")
    assert (response.status_code, response.json()["type"]) == (422, "urn:tracestore:problem:invalid-fields")


def test_an_id_made_by_the_server_is_said_to_be(client: TestClient) -> None:
    answer = client.post("/v1/rewards", content=BARE).json()
    assert (answer["id_made_by"], answer["status"]) == ("server", "stored")
    [stored] = client.get("/v1/rewards").json()["items"]
    assert (stored["id"], stored["value"], stored["target"]) == (answer["id"], 0.1, "episode")


def test_a_scorer_with_its_own_id_may_retry(client: TestClient) -> None:
    body = json.dumps({"id": "r1", "target": {"episode_id": "e"}, "name": "exact", "value": 1.0})
    answers = [client.post("/v1/rewards", content=body) for _ in range(2)]
    assert [(a.status_code, a.json()) for a in answers] == [
        (200, {"id": "r1", "id_made_by": "client", "status": "stored"}),
        (200, {"id": "r1", "id_made_by": "client", "status": "duplicate"}),
    ]
    other = client.post("/v1/rewards", content=body.replace("1.0", "2.0"))
    assert (other.status_code, other.json()["type"]) == (409, "urn:tracestore:problem:conflicting-reward")


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b'{"kind":"gap","cause":"x"}', 422, "POST /v1/events"),
        (b"[]", 422, "one object"),
        (b"{", 422, "JSON"),
        (b'{"target":{"episode_id":"e"},"name":"n","value":NaN}', 422, "finite"),
        (b'{"target":{"episode_id":"e"},"name":"n","value":1,"score":2}', 422, "score"),
        (b'{"target":{"episode_id":"e"},"name":"n","name":"m","value":1}', 422, "name"),
    ],
)
def test_what_is_no_reward_is_a_problem(client: TestClient, body: bytes, status: int, said: str) -> None:
    response = client.post("/v1/rewards", content=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert said in response.json()["detail"]
    assert client.get("/v1/rewards").json()["items"] == []
