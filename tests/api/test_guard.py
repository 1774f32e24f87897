"""A server without keys answers to this machine and to its own pages only."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.factories import episode, posted
from tracestore_api.errors import NotLoopback
from tracestore_api.serve import loopback_address

BODY = posted(episode("e1"))[1]


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


def test_only_loopback_addresses_can_be_listened_on() -> None:
    assert [loopback_address(host) for host in ("localhost", "127.0.0.1", "::1", "[::1]")] == [
        "127.0.0.1",
        "127.0.0.1",
        "::1",
        "::1",
    ]
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(NotLoopback):
            loopback_address(host)
