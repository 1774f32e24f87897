"""No statement on the way in or out looks through a whole table, or it would cost more with every row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event, text

from tests import factories as make
from tests.factories import answer, assistant, call, completion, posted, user
from tracestore.store import Store
from tracestore.store.query import _require_snapshot

# Tables with a handful of rows, and what is no table.
_SMALL = re.compile(
    r"\b(project|field_set|dictionary|redaction|alembic_version|CONSTANT ROW|path|chain|SUBQUERY)\b"
)
_WHOLE_PROJECT = re.compile(r"\(project_id=\?\)")


@contextmanager
def statements(engine: Engine) -> Iterator[list[tuple[str, Any]]]:
    seen: dict[str, Any] = {}

    def note(_c: Any, _cursor: Any, sql: str, parameters: Any, _context: Any, executemany: bool) -> None:
        seen[sql] = parameters[0] if executemany else parameters

    event.listen(engine, "before_cursor_execute", note)
    found: list[tuple[str, Any]] = []
    yield found
    event.remove(engine, "before_cursor_execute", note)
    found += seen.items()


def whole_table_steps(store: Store, seen: list[tuple[str, Any]]) -> list[str]:
    """Steps of the query plans that read more than they name."""
    found = []
    with store.read() as connection:
        connection.execute(text("SELECT 1"))
        for sql, parameters in seen:
            if not re.match(r"\s*(SELECT|UPDATE|DELETE|WITH)", sql):
                continue
            for *_, step in connection.connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters):  # type: ignore[attr-defined]
                reads_all = step.startswith("SCAN") or _WHOLE_PROJECT.search(step)
                if reads_all and not _SMALL.search(step):
                    found.append(f"{step}: {sql}")
    return found


def _events(number: int) -> list[Any]:
    episode, chat = f"e{number}", [user(f"u{number}")]
    first, second = f"c{number}.0", f"c{number}.1"
    uses = [make.tool_use("run")]
    return [
        make.group(f"g{number}"),
        make.episode(episode, group_id=f"g{number}"),
        make.agent(f"a{number}", episode=episode),
        call(first, chat, phase="start", episode=episode, agent=f"a{number}"),
        call(
            first,
            None,
            answer(assistant(None, tool_calls=uses), ids=[3]),
            phase="end",
            episode=episode,
            agent=f"a{number}",
            prompt_ids=[1, 2],
        ),
        make.tool_call(f"x{number}", first, episode=episode),
        call(second, [user("v")], parent=first, delta=True, episode=episode, agent=f"a{number}"),
        completion(second, 0, episode=episode),
        completion(second, 0, id=f"again{number}", episode=episode),
        make.candidate_set(f"s{number}", make.member(second), episode=episode),
        make.reward(f"r{number}", episode=episode),
        make.blob(f"b{number}", episode=episode),
    ]


def test_no_statement_reads_a_whole_table(sqlite_store: Store) -> None:
    store = sqlite_store
    for number in range(3):
        store.ingest("p", [posted(one) for one in _events(number)])
    with statements(store.engine) as seen:
        late = call("c1.0", [user("u1")], phase="start", model="m", episode="e1", agent="a1")
        for one in [*_events(4), *_events(1), late]:
            store._committer._memories.clear()
            store.ingest("p", [posted(one)])
        for one in _events(2):
            store._committer._memories.clear()
            store.ingest("p", [posted(one.model_copy(update={"revision": 1}))])
        store.load("p", "e1")
        store.load("p", "e1", snapshot=24)
        with store.read() as connection:
            _require_snapshot(connection, 1, 24)
        store.context("p", "c1.1")
        store.request("p", "c1.1")
    assert len(seen) > 60
    assert whole_table_steps(store, seen) == []
