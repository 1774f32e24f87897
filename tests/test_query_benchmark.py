"""The query benchmark measures what it says: its store is one that events were posted to."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, assistant, call, user
from tracestore.store import Store
from tracestore.store.schema import view_columns
from tracestore.store.tables import metadata
from tracestore.store.verify import verify
from tracestore.wire.decode import decode_body
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PROJECT = "default"
SECOND_NS = 10**9


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def _events() -> list[AnyEvent]:
    """One of every kind, in a group of its own."""
    at = {"started_at": 10**18, "ended_at": 10**18 + 5}
    first = answer(assistant(None, tool_calls=[make.tool_use("run")]), ids=[3, 4])
    main: dict[str, Any] = {"episode": "bench-e", "agent": "bench-main"}
    return [
        make.group("bench-g", size=1),
        make.episode("bench-e", group_id="bench-g", task_id="task", **at),
        make.agent("bench-main", episode="bench-e"),
        call("bench-c0", [user("u")], first, prompt_ids=[1, 2], **main, **at),
        make.tool_call("bench-x", "bench-c0", episode="bench-e"),
        make.agent("bench-sub", episode="bench-e", parent_agent_id="bench-main"),
        call("bench-c1", [user("v")], "a", "b", parent="bench-c0", delta=True, **main),
        make.candidate_set("bench-s", make.member("bench-c1"), make.member("bench-c1", 1), **main),
        make.selection("bench-l", "bench-s", 1, episode="bench-e"),
        make.compaction("bench-k", before_call_id="bench-c0", after_call_id="bench-c1", **main),
        make.reward("bench-r", episode="bench-e"),
        make.gap("bench-p", episode="bench-e"),
        make.blob("bench-b", episode="bench-e"),
        make.consumption("bench-u", "bench-c0", episode="bench-e"),
    ]


def _bodies(number: int) -> bytes:
    """The events as copy `number`: under its ids, that many seconds later."""
    text = b"\n".join(encode(event) for event in _events())
    if number == 0:
        return text
    text = re.sub(rb'"(bench-\w+)"', rb'"\g<1>+%d"' % number, text)
    return re.sub(rb"\b1\d{18}\b", lambda hit: b"%d" % (int(hit[0]) + number * SECOND_NS), text)


def _post(file: Path, body: bytes) -> None:
    with Store.open(f"sqlite:///{file}") as store:
        items = decode_body(body, content_type="application/x-ndjson")
        outcomes = store.ingest(PROJECT, [(one.event, one.text) for one in items if one.event is not None])
        assert [one.status for one in outcomes] == ["stored"] * len(_events())


def test_copies_of_an_episode_are_what_posting_it_under_other_ids_stores(tmp_path: Path) -> None:
    from query_store import multiply, written  # type: ignore[import-not-found]

    multiplied, posted = tmp_path / "multiplied.db", tmp_path / "posted.db"
    for file in (multiplied, posted):
        empty_store(file)
    base = written(multiplied, lambda: _post(multiplied, _bodies(0)))
    multiply(multiplied, base, copies=3)
    for number in range(4):
        _post(posted, _bodies(number))
    assert _facts(multiplied) == _facts(posted)


def _facts(file: Path) -> dict[str, Any]:
    """Rows of every table by number, what is read back of every episode, and every view without numbers
    that are the store's own."""
    with closing(sqlite3.connect(file)) as connection:
        sizes = {
            name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone() for name in metadata.tables
        }
        assert not connection.execute("PRAGMA foreign_key_check").fetchall()
    with Store.open(f"sqlite:///{file}") as store:
        assert not verify(store, PROJECT).problems
        events = {
            id_: store.load(PROJECT, id_) for group in store.groups(PROJECT) for id_ in group.episode_ids
        }
        with store.read() as connection:
            views = {
                view: Counter(
                    connection.exec_driver_sql(f"SELECT {', '.join(_shown(columns))} FROM {view}").all()
                )
                for view, columns in view_columns(connection).items()
            }
        return {"sizes": sizes, "events": events, "views": views, "groups": store.groups(PROJECT)}


def _shown(columns: list[str]) -> Iterator[str]:
    return (name for name in columns if not name.endswith(("message_id", "content_id")))
