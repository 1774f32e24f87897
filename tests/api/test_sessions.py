"""A browser shows its key once, and then a cookie that no script, other site or database gives away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.cookies import SimpleCookie

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response
from sqlalchemy import select

from tests.factories import episode, posted
from tracestore.settings import Settings
from tracestore.store import Store
from tracestore.store import tables as t
from tracestore.store.engine import writer
from tracestore.store.keys import NewKey, create_key, hash_of, revoke_key
from tracestore_api.access import REMEMBERED_S
from tracestore_api.app import create_app
from tracestore_api.sessions import SESSION_S

BODY = posted(episode("e"))[1]
ORIGIN = {"Origin": "http://127.0.0.1"}
ALLOWED = "http://127.0.0.1:3000"


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def browser(store: Store, clock: Clock) -> Iterator[TestClient]:
    app = create_app(store, settings=Settings(allow_origin=(ALLOWED,)), clock=clock)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture
def key(store: Store) -> NewKey:
    with writer(store.engine).begin() as connection:
        return create_key(
            connection, "mine", name="n", scopes=frozenset(("read", "write")), expires_at=None, now=1
        )


def log_in(browser: TestClient, key: NewKey, **headers: str) -> Response:
    return browser.post("/v1/session", headers={"Authorization": f"Bearer {key.text}", **ORIGIN, **headers})


def cookie_of(response: Response) -> dict[str, str]:
    [(_, morsel)] = SimpleCookie(response.headers["set-cookie"]).items()
    return {name: str(value) for name, value in morsel.items()} | {"value": morsel.value}


def test_a_session_reads_and_posts_as_its_key_does(browser: TestClient, key: NewKey) -> None:
    response = log_in(browser, key)
    assert response.status_code == 201
    assert response.json()["project"] == "mine"
    assert response.json()["scopes"] == ["read", "write"]
    assert browser.post("/v1/events", content=BODY, headers=ORIGIN).status_code == 200
    assert [item["id"] for item in browser.get("/v1/episodes").json()["items"]] == ["e"]


def test_its_cookie_is_for_this_server_and_for_no_script(browser: TestClient, key: NewKey) -> None:
    cookie = cookie_of(log_in(browser, key))
    assert (cookie["samesite"], cookie["httponly"], cookie["path"]) == ("strict", "True", "/")
    assert cookie["secure"] == ""
    assert SESSION_S - 60 < int(cookie["max-age"]) <= SESSION_S
    assert key.text not in cookie["value"]


def test_behind_https_the_cookie_never_goes_over_http(browser: TestClient, key: NewKey) -> None:
    assert cookie_of(log_in(browser, key, Origin="https://127.0.0.1"))["secure"] == "True"


def test_the_database_does_not_give_the_cookie_away(browser: TestClient, store: Store, key: NewKey) -> None:
    value = cookie_of(log_in(browser, key))["value"]
    with store.read() as connection:
        [row] = connection.execute(select(t.session)).mappings()
    assert row["hash"] == hash_of(value)
    assert value not in str(dict(row))


def test_a_page_elsewhere_does_nothing_in_a_session_even_on_this_host(
    browser: TestClient, key: NewKey
) -> None:
    log_in(browser, key)
    # SameSite lets the cookie go with requests of another port: a page there may only read with a key.
    for headers in ({"Origin": ALLOWED}, {}):
        assert browser.post("/v1/events", content=BODY, headers=headers).status_code == 403
        assert browser.delete("/v1/session", headers=headers).status_code == 403
    assert browser.get("/v1/episodes", headers={"Origin": ALLOWED}).status_code == 403
    assert browser.get("/v1/episodes").json()["items"] == []


def test_a_session_that_was_closed_is_over_for_every_copy_of_its_cookie(
    browser: TestClient, key: NewKey
) -> None:
    value = cookie_of(log_in(browser, key))["value"]
    assert browser.get("/v1/episodes").status_code == 200
    closed = browser.delete("/v1/session", headers=ORIGIN)
    assert (closed.status_code, cookie_of(closed)["max-age"]) == (204, "0")
    copied = browser.get("/v1/episodes", headers={"Cookie": f"tracestore_session={value}"})
    assert copied.status_code == 401


def test_a_session_ends_with_its_key(browser: TestClient, store: Store, key: NewKey, clock: Clock) -> None:
    log_in(browser, key)
    assert browser.get("/v1/episodes").status_code == 200
    with writer(store.engine).begin() as connection:
        revoke_key(connection, "mine", key.key.prefix, now=2)
    clock.now += REMEMBERED_S
    assert browser.get("/v1/episodes").status_code == 401


def test_a_key_that_ends_earlier_ends_the_session_earlier(browser: TestClient, store: Store) -> None:
    expires_at = 2**62
    with writer(store.engine).begin() as connection:
        short = create_key(
            connection, "p", name="n", scopes=frozenset(("read",)), expires_at=expires_at, now=expires_at - 9
        )
    assert log_in(browser, short).json()["expires_at"] < expires_at


def test_a_session_opens_no_other_and_without_keys_there_is_none(
    browser: TestClient, store: Store, clock: Clock
) -> None:
    assert browser.post("/v1/session", headers=ORIGIN).status_code == 409
    with writer(store.engine).begin() as connection:
        key = create_key(connection, "p", name="n", scopes=frozenset(("read",)), expires_at=None, now=1)
    log_in(browser, key)
    clock.now += REMEMBERED_S
    refused = browser.post("/v1/session", headers=ORIGIN)
    assert refused.status_code == 409
    assert json.loads(refused.text)["type"] == "urn:tracestore:problem:no-session"
