"""Whatever is posted gets an answer that names a cause; nothing of it is a fault of the server."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import answer, call, episode, posted, reward, user
from tracestore_api.app import create_app
from tracestore_migrations import open_store

EVENTS = [
    posted(event)[1]
    for event in (
        episode("e", task={"q": [1, 2.5, "é\ud83d"]}),
        call("c", [user("u")], answer("a", ids=[1, 2]), parent="b", prompt_ids=[3]),
        reward("r", 0.5, call_id="c", completion=0, token_start=0, token_length=1),
    )
]
CODINGS = {"identity": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A body of good events, cut, with bytes put in or taken out."""
    body = draw(st.sampled_from([b"[%b]", b"%b"])) % draw(st.sampled_from([b",", b"\n"])).join(
        draw(st.lists(st.sampled_from(EVENTS), max_size=3))
    )
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(body)))
        piece = draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"{", b"]", b"NaN", b"-1", b"\\u0000", b"[" * 300])
        )
        body = body[:at] + piece + body[at + draw(st.integers(0, 5)) :]
    return body


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder: Path = tmp_path_factory.mktemp("any_body")
    store = open_store(f"sqlite:///{folder / 't.db'}")
    with TestClient(create_app(store), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client
    store.close()


@settings(max_examples=120)
@given(
    body=st.binary(max_size=60) | spoiled(),
    content_type=st.sampled_from([None, "application/json", "application/x-ndjson"]),
    coding=st.sampled_from(sorted(CODINGS)),
    route=st.sampled_from(["/v1/events", "/v1/rewards"]),
)
def test_any_body_is_stored_or_refused_with_a_reason(
    service: TestClient, body: bytes, content_type: str | None, coding: str, route: str
) -> None:
    headers = {"Content-Encoding": coding, **({"Content-Type": content_type} if content_type else {})}
    response = service.post(route, content=CODINGS[coding](body), headers=headers)
    assert response.status_code in (200, 207, 400, 409, 413, 422), response.text
    content = json.loads(response.text)
    if "items" in content:
        reasons = [item["problem"] for item in content["items"] if item["status"] in ("invalid", "conflict")]
        assert all(reason["detail"] for reason in reasons)
        assert (response.status_code == 200) == (not reasons)
    elif response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        assert content["detail"]


def test_what_was_stored_meanwhile_can_be_read(service: TestClient) -> None:
    for name in ("episodes", "groups", "rewards", "candidates", "gaps", "orphans"):
        for item in service.get(f"/v1/{name}").json()["items"]:
            if name == "episodes":
                assert service.get(f"/v1/episodes/{quote(item['id'], safe='')}").status_code == 200
