"""Every error is application/problem+json and says what to do."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tracestore.errors import TracestoreError
from tracestore.store.store import Store
from tracestore_api.app import create_app
from tracestore_api.problems import problem_of


class TokenMismatch(TracestoreError):
    """Recorded and posted ids differ."""

    status = 422


def test_a_problem_carries_the_errors_values_and_its_hint() -> None:
    problem = problem_of(
        TokenMismatch(position=1532, recorded=None, raw=b"x", status="text", hint="post the ids")
    )
    assert problem == {
        "type": "urn:tracestore:problem:token-mismatch",
        "title": "Recorded and posted ids differ",
        "status": 422,
        "detail": "Recorded and posted ids differ: position=1532, raw=b'x', status='text'; post the ids",
        "position": 1532,
        "raw": "b'x'",
        "hint": "post the ids",
    }


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/events", 405),
        ("DELETE", "/v1/episodes", 405),
        ("GET", "/v1/episodes/none", 404),
        ("GET", "/v1/calls/none", 404),
        ("GET", "/v1/calls/none/context", 404),
        ("GET", "/v1/calls/none/request", 404),
        ("GET", "/v1/episodes?grup_id=g", 422),
        ("GET", "/v1/episodes/none?x=1", 422),
        ("GET", "/v1/health?x=1", 422),
        ("GET", "/v1/meta?x=1", 422),
        ("GET", "/v1/episodes?limit=0", 422),
        ("GET", "/v1/episodes?limit=1001", 422),
        ("GET", "/v1/episodes?split=dev", 422),
        ("GET", "/v1/episodes?started_from=2026-01-01T00:00:00", 422),
        ("GET", "/v1/episodes?cursor=x", 422),
    ],
)
def test_what_is_asked_wrongly_is_a_problem(client: TestClient, method: str, path: str, status: int) -> None:
    response = client.request(method, path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert {"type", "title", "status", "detail", "hint"} <= problem.keys()


def test_a_method_that_is_not_allowed_names_the_ones_that_are(client: TestClient) -> None:
    assert client.get("/v1/events").headers["allow"] == "POST"
    assert client.delete("/v1/rewards").headers["allow"] == "GET, POST"


def test_an_unknown_parameter_is_named(client: TestClient) -> None:
    problem = client.get("/v1/episodes?grup_id=g").json()
    assert [fault["parameter"] for fault in problem["errors"]] == ["grup_id"]


def test_a_fault_of_ours_is_a_500_that_says_how_to_go_on_and_shows_no_inside(store: Store) -> None:
    app = create_app(store)

    @app.get("/v1/fault")
    def fault() -> None:
        raise RuntimeError("inside")

    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        response = client.get("/v1/fault")
    assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
    assert "inside" not in response.text
    assert "post the same events again" in response.json()["hint"]
