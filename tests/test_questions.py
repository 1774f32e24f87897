"""docs/questions.md is checked: every query runs on the sample traces and gives the result that is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from tests.databases import empty_store
from tests.factories import posted
from tests.sample_traces.traces import NAMES, trace_events
from tests.store.servers import postgresql
from tracestore.cli.common import cell, table
from tracestore.store import Store
from tracestore.store.duck import run_sql
from tracestore_migrations import open_store

PAGE = (Path(__file__).parent.parent / "docs" / "questions.md").read_text(encoding="utf-8")
ANSWERS = re.findall(r"^```sql\n(.*?)^```\n\n```text\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
NUMBERED = [pytest.param(*answer, id=str(index)) for index, answer in enumerate(ANSWERS)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(empty_store(tmp_path_factory.mktemp("questions") / "t.db")) as opened:
        ingest_all(opened)
        yield opened


def ingest_all(store: Store) -> None:
    for name in NAMES:
        store.ingest("default", [posted(event) for event in trace_events(name)])


def test_every_query_shows_its_result_and_has_at_most_ten_lines() -> None:
    assert len(ANSWERS) == PAGE.count("```sql") == PAGE.count("```text")
    assert [sql for sql, _ in ANSWERS if len(sql.splitlines()) > 10] == []
    assert {"FoldGRPO", "MEM1", "CompactionRL", "PARL", "RLM", "RAO", "RAH", "RSIAgent", "PKPO"} <= set(
        re.findall(r"\w+", PAGE)
    )


def rows_of(store: Store, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    with store.read() as connection:
        found = connection.execute(text(sql.replace(":", r"\:")))
        return list(found.keys()), [tuple(row) for row in found]


@pytest.mark.parametrize(("sql", "shown"), NUMBERED)
def test_sqlite_itself_gives_the_result_that_is_shown(sql: str, shown: str, store: Store) -> None:
    columns, rows = rows_of(store, sql)
    # SQLite has no truth values: its columns hold 0 and 1.
    truths = {index for index, column in enumerate(_cells(shown)) if column & {"true", "false"}}
    as_shown = [
        [_truth(value) if index in truths else value for index, value in enumerate(row)] for row in rows
    ]
    assert table(columns, as_shown) + "\n" == shown


def test_tracestore_sql_gives_the_same_rows_on_postgresql(store: Store) -> None:
    """All in one query, since each child costs a second."""
    asked = [
        f"SELECT {number} AS number, x::VARCHAR FROM ({sql}) x" for number, (sql, _) in enumerate(ANSWERS)
    ]
    sql = " UNION ALL ".join(asked) + " ORDER BY 1, 2"
    with postgresql() as url:
        with open_store(url) as large:
            ingest_all(large)
        found = run_sql(url, "default", sql).rows
    assert found == run_sql(str(store.engine.url), "default", sql).rows
    with_rows = {number for number, (_, shown) in enumerate(ANSWERS) if len(shown.splitlines()) > 2}
    assert {row[0] for row in found} == with_rows


@pytest.mark.parametrize(("sql", "shown"), NUMBERED[::6])
def test_tracestore_sql_gives_the_result_that_is_shown(sql: str, shown: str, store: Store) -> None:
    require_shown(sql, shown, store)


@pytest.mark.soak
@pytest.mark.parametrize(("sql", "shown"), NUMBERED)
def test_tracestore_sql_gives_every_result_that_is_shown(sql: str, shown: str, store: Store) -> None:
    require_shown(sql, shown, store)


def require_shown(sql: str, shown: str, store: Store) -> None:
    url = store.engine.url.render_as_string(hide_password=False)
    found = run_sql(url, "default", sql)
    assert table(found.columns, found.rows) + "\n" == shown


def _cells(shown: str) -> list[set[str]]:
    """The values of each column of a table as text."""
    _, rule, *rows = shown.splitlines()
    spans = [found.span() for found in re.finditer("-+", rule)]
    return [{row[start:end].strip() for row in rows} for start, end in spans]


def _truth(value: Any) -> bool | None:
    assert cell(value) in ("NULL", "0", "1", "true", "false"), value
    return None if value is None else bool(value)
