"""Whenever rules come, the store ends as if they had been first, and nothing of what they took is left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted
from tests.laws.test_deletion import Killed, stopped_now_and_then
from tests.store.servers import postgresql
from tests.strategies import deliveries, episodes, split_up
from tracestore.store import Store, dictionary, pack
from tracestore.store import redact as redacting
from tracestore.store import tables as t
from tracestore.store.query import find_project
from tracestore.store.redact import add_rules, carry_out, unfinished
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent

WORDS = json.dumps(
    [{"name": "w", "pattern": "go|hm"}, {"name": "a", "path": "**.arguments"}, {"name": "s", "path": "error"}]
)


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(empty_store(tmp_path_factory.mktemp("redaction") / "store.db")) as store:
        yield store


@pytest.fixture(scope="module")
def on_postgresql() -> Iterator[Store]:
    with postgresql() as url, Store.open(url) as store:
        yield store


@contextmanager
def small_steps() -> Iterator[None]:
    """Few things in a step, and no file written anew for every example."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redacting, "EVENTS", 3)
        patch.setattr(pack, "ROWS", 3)
        patch.setattr(Store, "vacuum", lambda self: None)
        yield


@settings(max_examples=3)
@given(data=st.data())
def test_rules_that_come_late_leave_what_rules_that_came_first_leave(
    on_sqlite: Store, data: st.DataObject
) -> None:
    with small_steps():
        _redact_and_compare(on_sqlite, data)


@settings(max_examples=1)
@given(data=st.data())
def test_the_same_holds_on_postgresql(on_postgresql: Store, data: st.DataObject) -> None:
    with small_steps():
        _redact_and_compare(on_postgresql, data)


@pytest.mark.soak
@settings(max_examples=100)
@given(data=st.data())
def test_rules_may_come_at_any_time(on_sqlite: Store, data: st.DataObject) -> None:
    with small_steps():
        _redact_and_compare(on_sqlite, data)


@pytest.mark.soak
@settings(max_examples=30)
@given(data=st.data())
def test_they_may_on_postgresql_too(on_postgresql: Store, data: st.DataObject) -> None:
    with small_steps():
        _redact_and_compare(on_postgresql, data)


def _redact_and_compare(store: Store, data: st.DataObject) -> None:
    first, late = uuid4().hex, uuid4().hex
    events = data.draw(split_up(data.draw(episodes(max_calls=4))))
    batches = data.draw(deliveries(events))
    when = data.draw(st.integers(0, len(batches)))
    carry_out(store, first, add_rules(store, first, WORDS).id)
    for place, batch in enumerate(batches):
        _post(store, first, batch)
        if place == when:
            add_rules(store, late, WORDS)
            with pytest.MonkeyPatch.context() as patch:
                stopped_now_and_then(patch, data.draw(st.lists(st.integers(0, 6), max_size=2)))
                _carry_out(store)
        _post(store, late, batch)
    if when == len(batches):
        add_rules(store, late, WORDS)
    _carry_out(store)
    for project in (first, late):
        assert verify(store, project).problems == ()
    assert store.load_graph(late, "e") == store.load_graph(first, "e")
    assert _contents(store, late) == _contents(store, first)
    assert {"duplicate"} == {outcome.status for outcome in store.ingest(late, list(map(posted, events)))}


def _carry_out(store: Store) -> None:
    while waiting := unfinished(store):
        try:
            for project, key in waiting:
                carry_out(store, project, key)
        except Killed:
            store._committer._memories.clear()


def _post(store: Store, project: str, batch: list[AnyEvent]) -> None:
    outcomes = store.ingest(project, [posted(event) for event in batch])
    assert [o.problem for o in outcomes if o.status not in ("stored", "duplicate")] == []


def _contents(store: Store, project: str) -> list[tuple[Any, ...]]:
    c = t.content.c
    with store.read() as connection:
        here = find_project(connection, project)
        query = select(c.sha256, c.role, c.preview, c.size).where(c.project_id == here)
        return sorted(tuple(row) for row in connection.execute(query))


SECRET = "sk-SECRET0123456789"


def secretive(number: int) -> list[AnyEvent]:
    """An episode that holds the secret wherever text may stand."""
    said = f"The key of number {number} is {SECRET}, and " + "much else is told that no other tells. " * 3
    call = f"c{number}"
    return [
        make.episode(f"e{number}", error=said, group_id="g"),
        make.agent(f"a{number}", episode=f"e{number}", scope_prompt=make.raw(said), name=said),
        make.call(
            call,
            [make.system(said), make.user([{"type": "text", "text": said}])],
            make.answer(
                make.assistant(None, tool_calls=[make.tool_use("run", json.dumps({"key": said}))]),
                ids=[700_000 + number % 7, *range(90)],
            ),
            episode=f"e{number}",
            agent=f"a{number}",
            prompt_ids=[1, 2, 3, *range(number, number + 90)],
            meta=make.raw({"why": said}),
        ),
        make.tool_call(
            f"t{number}", call, episode=f"e{number}", arguments=said, result=make.raw(make.tool(said))
        ),
        make.reward(f"r{number}", episode=f"e{number}", scorer=said),
        make.gap(f"g{number}", episode=f"e{number}", detail=said),
    ]


def test_no_byte_of_it_is_left_in_any_file_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dictionaries included, which are trained on contents and on runs of ids."""
    monkeypatch.setattr(dictionary, "SAMPLES", 150)
    monkeypatch.setattr(pack, "SAMPLES", 150)
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        for start in range(0, 100, 20):
            events = [event for number in range(start, start + 20) for event in secretive(number)]
            _post(store, "p", [make.group("g", task=make.raw(SECRET)), *events] if start == 0 else events)
        before = _dictionaries(store)
        assert any(SECRET[:6].encode() in data for data in before.values())
        assert _is_in(tmp_path, SECRET)
        rules = json.dumps([{"name": "key", "pattern": "sk-[A-Z0-9]+"}])
        done = carry_out(store, "p", add_rules(store, "p", rules, reason="leaked").id)
        assert (done.state, done.reason) == ("done", "leaked")
        assert verify(store, "p").problems == ()
        assert before.keys().isdisjoint(_dictionaries(store))
        assert not _is_in(tmp_path, SECRET)
        assert {"duplicate"} == {o.status for o in store.ingest("p", list(map(posted, events)))}
        _post(store, "p", secretive(1000))
    assert not _is_in(tmp_path, SECRET)


def _dictionaries(store: Store) -> dict[int, bytes]:
    c = t.dictionary.c
    with store.read() as connection:
        query = select(c.key, c.data).where(c.purpose.is_distinct_from("logprobs"))
        return {row.key: row.data for row in connection.execute(query)}


def _is_in(folder: Path, text: str) -> bool:
    return any(text.encode() in file.read_bytes() for file in folder.rglob("*") if file.is_file())
