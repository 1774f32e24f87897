"""Recorded exchanges with real providers, played back through the proxy: the counted facts come out.

An upstream replays each recorded response, cut at odd places, to each recorded request. What the proxy
recorded is asked for the same facts as what the importers read of the files.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.proxy.scripted import Running, Said, Upstream, running_proxy, scripted_upstream
from tests.api.proxy.test_recording import post
from tests.databases import empty_store
from tests.fixtures import fixture, fixtures_root
from tests.importers.reading import Imported, assert_builds
from tracestore.importers import cassettes, formats, provider_answers
from tracestore.importers.exchanges import Exchange, answered
from tracestore.importers.items import raw
from tracestore.importers.notes import Notes
from tracestore.importers.sources import sources
from tracestore.store.store import Store

_MANIFEST = fixtures_root() / "MANIFEST.jsonl"
ROWS: list[dict[str, Any]] = (
    [
        row
        for row in map(json.loads, _MANIFEST.read_text().splitlines())
        if row["path"].startswith(("cassettes/", "cline/"))
    ]
    if _MANIFEST.is_file()
    else []
)
_ABSENT = pytest.mark.skip(reason="no fixtures: TRACESTORE_FIXTURES names their folder")
_PATHS = {
    "openai_chat": "/v1/chat/completions",
    "openai_responses": "/v1/responses",
    "text": "/v1/completions",
}
OF_REQUESTS = {"request_bodies_recorded": "a request that passes has a body; these files have none"}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Upstream]]:
    file = tmp_path_factory.mktemp("played") / "t.db"
    with (
        Store.open(empty_store(file)) as store,
        scripted_upstream() as upstream,
        running_proxy(store, upstream.url) as running,
    ):
        running.proxy.recorder._grace_s = 0.0
        yield running, upstream


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row["path"]) for row in ROWS] or [pytest.param(None, marks=_ABSENT)]
)
def test_a_recording_that_passes_the_proxy_gives_the_counted_facts(
    row: dict[str, Any], played: tuple[Running, Upstream], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, upstream = played
    exchanges, notes = read_exchanges(fixture(row["path"]), monkeypatch)
    episode = str(ROWS.index(row))
    for exchange in exchanges:
        upstream.says(response_of(exchange))
        status, _, body = post(proxy, f"/episode={episode}{path_of(exchange)}", request_of(exchange))
        assert (status, body) == (exchange.status or 200, bytes_of(exchange.response))
    proxy.settle()
    imported = recorded(proxy.store, episode, exchanges, notes)
    facts = importlib.import_module(f"tests.importers.facts.{row['format']}")
    ours = facts.facts(imported)
    for name, counted in row["facts"].items():
        if name not in facts.NOT_OURS and name not in OF_REQUESTS:
            expected = facts.DIFFERENT.get((row["path"], name), (counted, ""))[0]
            assert (name, ours.get(name)) == (name, expected)
    assert_builds(imported)


def read_exchanges(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Exchange], Notes]:
    """The exchanges with a model that the importers find in a file."""
    found: list[Exchange] = []

    def take(exchanges: list[Exchange], **_: Any) -> Iterator[Any]:
        found.extend(exchanges)
        return iter(())

    for module in (cassettes, provider_answers):
        monkeypatch.setattr(module, "conversation", take)
    notes = Notes()
    assert not list(formats.read(sources([str(path)], notes=notes), format="auto", notes=notes))
    return found, notes


def path_of(exchange: Exchange) -> str:
    if exchange.url is not None:
        return urlsplit(exchange.url).path
    answer = answered(exchange.response)
    assert answer is not None
    return _PATHS.get(answer.dialect, "/v1/messages")


def bytes_of(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else bytes(raw(body))


def request_of(exchange: Exchange) -> bytes:
    return b'{"messages":[]}' if exchange.request is None else bytes_of(exchange.request)


def response_of(exchange: Exchange) -> Said:
    body = bytes_of(exchange.response)
    is_stream = body.lstrip().startswith((b"event:", b"data:", b":"))
    kind = "text/event-stream" if is_stream else "application/json"
    coding = (("content-encoding", "gzip"),) if body.startswith(b"\x1f\x8b") else ()
    cut = [body[at : at + 997] for at in range(0, len(body), 997)]
    return Said(
        cut,
        status=exchange.status or 200,
        headers=(("content-type", kind), *coding),
        has_length=not is_stream,
    )


def recorded(store: Store, episode: str, exchanges: list[Exchange], notes: Notes) -> Imported:
    """What the proxy stored of them, as if it had been imported from where they were recorded."""
    events = store.load("default", episode)
    calls = sorted((one for one in events if one.kind == "call"), key=lambda call: call.started_at or 0)
    assert len(calls) == len(exchanges)
    there = [
        call.model_copy(update={"endpoint": exchange.url})
        for call, exchange in zip(calls, exchanges, strict=True)
    ]
    for call in there:
        for name, num in call.meta.value()["proxy"].get("events", {}).items():
            notes.rows[f"stream event/{name}"] += num
    return Imported([*there, *(one for one in events if one.kind != "call")], notes)
