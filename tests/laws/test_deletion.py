"""Law 12: after a deletion the store is one that never got what was deleted, whatever came in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from sqlalchemy import select

from tests.databases import empty_store
from tests.factories import posted
from tests.strategies import deliveries, episodes, split_up
from tracestore.store import Store, erase
from tracestore.store import tables as t
from tracestore.store.delete import carry_out, delete_episodes, delete_project, unfinished
from tracestore.store.query import find_project
from tracestore.store.tombstones import Deleted
from tracestore.store.verify import verify
from tracestore.wire.events import AnyEvent

NOT_IDS = {"task_id", "provider_id", "tool_call_id", "spawned_by_tool_call_id", "sample_id"}


class Killed(Exception):
    """As if the process ended here."""


@pytest.fixture(scope="module")
def on_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(empty_store(tmp_path_factory.mktemp("deletion") / "store.db")) as store:
        yield store


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(erase, "ROWS", 3)


@settings(max_examples=3)
@given(data=st.data())
def test_after_a_deletion_the_store_is_one_that_never_got_the_episodes(
    on_sqlite: Store, data: st.DataObject
) -> None:
    _delete_and_compare(on_sqlite, data)


@settings(max_examples=1)
@given(data=st.data())
def test_the_same_holds_on_postgresql(on_postgresql: Store, data: st.DataObject) -> None:
    _delete_and_compare(on_postgresql, data)


@pytest.mark.soak
@settings(max_examples=100)
@given(data=st.data())
def test_it_holds_whatever_comes_in_between(on_sqlite: Store, data: st.DataObject) -> None:
    _delete_and_compare(on_sqlite, data)


@pytest.mark.soak
@settings(max_examples=30)
@given(data=st.data())
def test_it_does_on_postgresql_too(on_postgresql: Store, data: st.DataObject) -> None:
    _delete_and_compare(on_postgresql, data)


def _delete_and_compare(store: Store, data: st.DataObject) -> None:
    kept, gone = uuid4().hex, uuid4().hex
    stories: dict[str, list[AnyEvent]] = {}
    for number in range(data.draw(st.integers(2, 3))):
        told = data.draw(split_up(data.draw(episodes(max_calls=4))))
        stories[f"e{number}"] = [_renamed(event, str(number)) for event in told]
    doomed = data.draw(st.sets(st.sampled_from(sorted(stories)), min_size=1))
    later = data.draw(st.booleans())
    order = sorted(stories, key=lambda name: (later and name not in doomed, name))
    for name in order:
        if later and name not in doomed and not _is_asked(store, gone):
            _ask(store, gone, doomed)
        for batch in data.draw(deliveries(stories[name])):
            _post(store, gone, batch)
            # A group is no part of its episodes.
            _post(store, kept, [event for event in batch if name not in doomed or event.kind == "group"])
    if not _is_asked(store, gone):
        _ask(store, gone, doomed)
    _carry_out_with_kills(store, data)
    assert verify(store, gone).problems == ()
    assert _difference(store, gone, kept) == {}
    for name, events in stories.items():
        if name not in doomed:
            assert store.load_graph(gone, name) == store.load_graph(kept, name)
            continue
        with pytest.raises(Deleted):
            store.load(gone, name)
        again = [event for event in events if event.kind != "group"]
        outcomes = store.ingest(gone, [posted(event) for event in again])
        assert {outcome.status for outcome in outcomes} <= {"deleted"}
    assert _difference(store, gone, kept) == {}


def _is_asked(store: Store, project: str) -> bool:
    """Of this project alone: an example that Hypothesis breaks off leaves its own deletion unfinished."""
    return any(name == project for name, _ in unfinished(store))


def _ask(store: Store, project: str, doomed: set[str]) -> None:
    found = delete_episodes(store, project, sorted(doomed), what="age", name="a rule")
    assert (found.state, found.episodes, found.episodes_erased) == ("erasing", len(doomed), 0)


def _carry_out_with_kills(store: Store, data: st.DataObject) -> None:
    """Carry out what is unfinished, killed now and then before and after a step is committed."""
    with pytest.MonkeyPatch.context() as patch:
        stopped_now_and_then(patch, data.draw(st.lists(st.integers(0, 12), max_size=3)))
        while waiting := unfinished(store):
            try:
                for project, key in waiting:
                    carry_out(store, project, key)
            except Killed:
                store._committer._memories.clear()


def stopped_now_and_then(patch: pytest.MonkeyPatch, after: list[int]) -> None:
    """Let `Store.perform` raise `Killed` after each of these numbers of steps."""
    whole, left = Store.perform, [*after]

    def perform(self: Store, project: str, do: Any) -> Any:
        if left and left[0] <= 0:
            left.pop(0)
            raise Killed
        if left:
            left[0] -= 1
        return whole(self, project, do)

    patch.setattr(Store, "perform", perform)


def _difference(store: Store, gone: str, kept: str) -> dict[str, Any]:
    """By table, the rows that one project has and the other has not."""
    one, other = _rows(store, gone), _rows(store, kept)
    return {
        name: (one[name] - other[name], other[name] - one[name]) for name in one if one[name] != other[name]
    }


def _post(store: Store, project: str, batch: list[AnyEvent]) -> None:
    outcomes = store.ingest(project, [posted(event) for event in batch])
    assert [o.problem for o in outcomes if o.status not in ("stored", "duplicate")] == []


def _renamed(value: Any, suffix: str, name: str = "") -> Any:
    """An event of an episode of its own: every id but those that episodes share."""
    if isinstance(value, BaseModel):
        fields = {field: _renamed(getattr(value, field), suffix, field) for field in type(value).model_fields}
        return type(value).model_construct(_fields_set=set(value.model_fields_set), **fields)
    if isinstance(value, tuple | list) and (not value or isinstance(value[0], BaseModel | str)):
        return type(value)(_renamed(one, suffix, name.removesuffix("s")) for one in value)
    is_id = name == "id" or name.endswith("_id")
    return value + suffix if isinstance(value, str) and is_id and name not in NOT_IDS else value


_BESIDE = {
    *("project", "tombstone", "deletion", "deletion_export", "field_set", "dictionary", "api_key", "session"),
    "redaction",
}


def _rows(store: Store, project: str) -> dict[str, Counter[tuple[Any, ...]]]:
    """Every row without what depends on when it came."""
    found = {}
    with store.read() as connection:
        here = find_project(connection, project)
        for table in t.metadata.tables.values():
            if table.name in _BESIDE:
                continue
            columns = [column for column in table.columns if _is_compared(table.name, column.name)]
            rows = connection.execute(select(*columns).where(table.c.project_id == here))
            found[table.name] = Counter(tuple(row) for row in rows)
    return found


def _is_compared(table: str, column: str) -> bool:
    is_when = column in ("project_id", "key", "pos", "end_pos", "first_pos", "received_at", "owner_key")
    # How bytes are packed depends on what came before.
    is_packed = column in ("data", "codec", "ids", "packed_ids", "logprobs", "num_ids")
    is_reference = column.endswith("_key") and column not in ("match_key",)
    return not (is_when or is_packed or is_reference)


def test_a_deleted_project_is_empty_and_refuses_everything(on_sqlite: Store) -> None:
    from tests import factories as make

    project, other = uuid4().hex, uuid4().hex
    for name in (project, other):
        _post(on_sqlite, name, [make.episode("e"), make.agent("a", episode="e")])
    found = delete_project(on_sqlite, project)
    assert carry_out(on_sqlite, project, found.id).state == "done"
    assert sum(map(len, _rows(on_sqlite, project).values())) == 0
    assert verify(on_sqlite, project).problems == ()
    [outcome] = on_sqlite.ingest(project, [posted(make.episode("new"))])
    assert outcome.status == "deleted"
    assert delete_project(on_sqlite, project) == carry_out(on_sqlite, project, found.id)
    assert len(on_sqlite.load(other, "e")) == 2
