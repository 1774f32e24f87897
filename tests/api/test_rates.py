"""A project that sends too much is told when to come back; the others notice nothing."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.factories import episode, posted
from tracestore.settings import Settings
from tracestore.store import Store
from tracestore_api.app import create_app
from tracestore_api.rates import Bucket

BODY = posted(episode("e"))[1]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_is_owed_is_made_up_for_at_the_rate() -> None:
    bucket = Bucket(100, now=0.0)
    bucket.take(350)
    # 100 - 350 = -250, and one more unit must be there: 251 / 100 s
    assert bucket.wait_s(now=0.0) == pytest.approx(2.51)
    assert bucket.wait_s(now=2.0) == pytest.approx(0.51)
    assert bucket.wait_s(now=2.6) == 0
    bucket.take(0)
    # One second fills it; a second hour does not overfill it: 100 - 101 = -1, so 2 / 100 s
    bucket.wait_s(now=3600.0)
    bucket.take(101)
    assert bucket.wait_s(now=3600.0) == pytest.approx(0.02)


def test_requests_over_the_rate_are_answered_429_until_they_are_made_up_for(store: Store) -> None:
    clock = Clock()
    app = create_app(store, settings=Settings(max_requests_per_s=3), clock=clock)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        statuses = [client.get("/v1/meta").status_code for _ in range(4)]
        assert statuses == [200, 200, 200, 429]
        refused = client.post("/v1/events", content=BODY)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.json()["limit"] == "3 requests a second"
        assert client.get("/v1/health").status_code == 200
        assert client.get("/v1/meta", headers={"X-Tracestore-Project": "other"}).status_code == 200
        clock.now += 1 / 3 + 1e-6
        assert [client.get("/v1/meta").status_code for _ in range(2)] == [200, 429]


def test_a_body_larger_than_a_second_brings_is_taken_and_then_paid_for(store: Store) -> None:
    clock = Clock()
    rate = len(BODY) // 4
    app = create_app(store, settings=Settings(max_bytes_per_s=rate), clock=clock)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.post("/v1/events", content=BODY).status_code == 200
        refused = client.get("/v1/meta")
        assert refused.status_code == 429
        # One second was there before, so about three more are owed.
        assert 3 <= int(refused.headers["retry-after"]) <= 4
        clock.now += int(refused.headers["retry-after"])
        assert client.post("/v1/events", content=BODY).status_code == 200
