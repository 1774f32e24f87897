"""A server answers to its own names and pages, and to those that its settings name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.factories import episode, posted
from tracestore.settings import Settings
from tracestore.store import Store
from tracestore_api.app import create_app
from tracestore_api.errors import AddressUnavailable
from tracestore_api.serve import numeric_address

BODY = posted(episode("e1"))[1]
PAGE = "https://pages.example"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8421", "127.1.2.3", "[::1]:8421", "LOCALHOST:1"])
def test_loopback_names_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/v1/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""]
)
def test_a_foreign_host_is_refused_so_that_dns_rebinding_reads_nothing(client: TestClient, host: str) -> None:
    response = client.get("/v1/episodes", headers={"Host": host})
    assert response.status_code == 421
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://[", "", "http://127.0.0.1:9999", "http://localhost"]
)
def test_a_page_of_another_origin_posts_nothing(client: TestClient, origin: str) -> None:
    response = client.post("/v1/events", content=BODY, headers={"Origin": origin, "Host": "127.0.0.1:8421"})
    assert response.status_code == 403
    assert client.get("/v1/episodes").json()["items"] == []


def test_a_page_of_the_server_itself_may_post(client: TestClient) -> None:
    headers = {"Origin": "http://127.0.0.1:8421", "Host": "127.0.0.1:8421"}
    response = client.post("/v1/events", content=BODY, headers=headers)
    assert response.status_code == 200


def test_no_answer_carries_a_cors_header(client: TestClient) -> None:
    preflight = client.options("/v1/events", headers={"Access-Control-Request-Method": "POST"})
    for response in (preflight, client.get("/v1/health")):
        assert not [name for name in response.headers if name.lower().startswith("access-control")]


@pytest.fixture
def open_client(store: Store) -> Iterator[TestClient]:
    """Of a server that more names and one more origin may call."""
    settings = Settings(allow_host=("traces.example", "fd00--1.example"), allow_origin=(PAGE,))
    app = create_app(store, settings=settings, own_hosts=("10.0.0.5", "[fd00::1]"))
    with TestClient(app, base_url="http://10.0.0.5:8421") as client:
        yield client


@pytest.mark.parametrize("host", ["10.0.0.5", "[fd00::1]:8421", "Traces.Example", "localhost:1"])
def test_the_address_it_listens_on_and_the_names_of_the_settings_are_answered(
    open_client: TestClient, host: str
) -> None:
    assert open_client.get("/v1/health", headers={"Host": host}).status_code == 200
    for foreign in (f"evil.{host}", f"{host}.evil.example", "10.0.0.6"):
        assert open_client.get("/v1/health", headers={"Host": foreign}).status_code == 421


def test_two_hosts_are_no_host(open_client: TestClient) -> None:
    response = open_client.request("GET", "/v1/health", headers=[("Host", "10.0.0.5"), ("Host", "10.0.0.5")])
    assert response.status_code == 421


def test_an_origin_of_the_settings_may_call_and_gets_the_headers_for_it(open_client: TestClient) -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    preflight = open_client.options(
        "/v1/events", headers={**asked, "Access-Control-Request-Headers": "authorization, content-type"}
    )
    assert preflight.status_code == 200
    response = open_client.post("/v1/events", content=BODY, headers={"Origin": PAGE})
    assert response.status_code == 200
    refused = open_client.get("/v1/calls/unknown", headers={"Origin": PAGE})
    for answer in (preflight, response, refused):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "access-control-allow-credentials" not in answer.headers


def test_another_origin_gets_nothing_beside_one_that_is_allowed(open_client: TestClient) -> None:
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in open_client.options("/v1/events", headers=asked).headers
    response = open_client.post("/v1/events", content=BODY, headers={"Origin": "https://evil.example"})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers


def test_an_error_of_a_plain_door_is_answered_as_the_app_answers_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "submit", broken)
    with TestClient(create_app(store), base_url="http://127.0.0.1") as client:
        response = client.post("/v1/events", content=BODY)
        assert (response.status_code, response.json()["title"]) == (500, "Internal Server Error")
        assert client.post("/v1/events?x=1", content=BODY).status_code == 422


def test_only_an_address_in_numbers_can_be_listened_on() -> None:
    found = [str(numeric_address(host)) for host in ("localhost", "127.0.0.1", "::1", "[::1]", "0.0.0.0")]
    assert found == ["127.0.0.1", "127.0.0.1", "::1", "::1", "0.0.0.0"]
    for host in ("example.org", "", "1.2.3"):
        with pytest.raises(AddressUnavailable):
            numeric_address(host)
