"""What a query reads of a view is found by the names in it, and the rest of the view can be left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import duckdb
import pytest

from tracestore.store.duck import _column_types
from tracestore.store.schema import view_statements
from tracestore.store.sql_columns import columns_of, mentioned, narrowed, tables_of

VIEWS = {"calls": ["call_id", "model", "n"], "gaps": ["call_id", "cause"]}
WHOLE = VIEWS["calls"]


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    row = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None
    found = json.loads(row[0])
    assert not found["error"], found
    return found


def parsed_view(connection: duckdb.DuckDBPyConnection, name: str) -> Any:
    return parsed(connection, view_statements()[name].partition(" AS\n")[2])


@pytest.mark.parametrize(
    ("sql", "calls", "gaps"),
    [
        ("SELECT count(*) FROM calls", [], []),
        ("SELECT Model FROM calls ORDER BY n", ["model", "n"], []),
        ('SELECT c."MODEL" FROM calls c', ["model"], []),
        ("SELECT n FROM calls JOIN gaps USING (call_id)", ["call_id", "n"], ["call_id"]),
        ("SELECT g.cause FROM calls c JOIN gaps g ON g.call_id = c.call_id", ["call_id"], VIEWS["gaps"]),
        ("SELECT sum(n) FILTER (model = 'm') OVER (PARTITION BY call_id) FROM calls", WHOLE, ["call_id"]),
        ("SELECT (SELECT 1 FROM gaps g WHERE g.call_id = c.call_id) FROM calls c", ["call_id"], ["call_id"]),
        ("WITH t AS (SELECT model FROM calls) SELECT * FROM t", ["model"], []),
        ("SELECT t.* FROM (SELECT model FROM calls) t JOIN gaps ON cause = model", ["model"], ["cause"]),
        # What is not named.
        ("FROM calls", WHOLE, []),
        ("SELECT c.* FROM calls c, gaps", WHOLE, []),
        ("SELECT * EXCLUDE (n) FROM calls", WHOLE, []),
        ("SELECT COLUMNS('mod') FROM calls", WHOLE, []),
        ("SELECT count(COLUMNS(c -> c = 'n')) FROM calls", WHOLE, []),
        ("SELECT 1 FROM gaps ORDER BY COLUMNS(*)", [], VIEWS["gaps"]),
        ("SELECT c FROM calls c", WHOLE, []),
        ("SELECT calls::VARCHAR FROM calls", WHOLE, []),
        ("SELECT t.c.model FROM (SELECT c FROM calls c) t", WHOLE, []),
        ("SELECT #2 FROM calls", WHOLE, VIEWS["gaps"]),
        ("SELECT x FROM calls AS c(x)", WHOLE, []),
        ("SELECT 1 FROM calls NATURAL JOIN gaps", WHOLE, VIEWS["gaps"]),
        ("SELECT t.* FROM (calls c JOIN gaps g ON true) t", WHOLE, VIEWS["gaps"]),
        ("SELECT 1 FROM calls WHERE EXISTS (FROM gaps)", [], VIEWS["gaps"]),
        ("SELECT 1 FROM calls UNION ALL (TABLE gaps)", [], VIEWS["gaps"]),
    ],
)  # fmt: skip
def test_columns_count_that_are_named_or_given_without_a_name(
    database: duckdb.DuckDBPyConnection, sql: str, calls: list[str], gaps: list[str]
) -> None:
    assert mentioned(parsed(database, sql), views=VIEWS) == {"calls": calls, "gaps": gaps}


def test_of_a_count_is_read_what_makes_a_row_one(database: duckdb.DuckDBPyConnection) -> None:
    view = narrowed(parsed_view(database, "calls"), [])
    assert tables_of(view, tables=_column_types()) == {
        "call": {"project_id", "episode_key", "pos"},
        "project": {"project_id", "name"},
        "episode": {"project_id", "key", "first_pos"},
    }


@pytest.mark.parametrize("join", ["LEFT JOIN", "JOIN"])
@pytest.mark.parametrize("on", ["b.project_id = a.project_id AND b.key = a.key", "b.key = a.key"])
def test_a_join_goes_that_neither_drops_nor_doubles_a_row(
    database: duckdb.DuckDBPyConnection, join: str, on: str
) -> None:
    view = parsed(database, f"SELECT a.id AS a_id, b.id AS b_id FROM call a {join} call b ON {on}")
    left = {node["type"] for node in (narrowed(view, ["a_id"])["statements"][0]["node"]["from_table"],)}
    may_go = join == "LEFT JOIN" and "project_id" in on
    assert left == {"BASE_TABLE" if may_go else "JOIN"}
    assert narrowed(view, ["a_id", "b_id"]) == view


@pytest.mark.parametrize("name", view_statements())
def test_every_column_of_a_view_can_be_read_where_its_own_tables_are_alone(name: str) -> None:
    with duckdb.connect() as connection:
        whole = parsed_view(connection, name)
        for column in columns_of(whole):
            view = narrowed(whole, [column])
            bound = _bound(connection, view)
            assert column in bound
            assert len(bound) == 1 or name == "orphans"


def _bound(connection: duckdb.DuckDBPyConnection, view: Mapping[str, Any]) -> list[str]:
    types = _column_types()
    for table, columns in tables_of(view, tables=types).items():
        listed = ", ".join(f'"{column}" {types[table][column]}' for column in columns)
        connection.execute(f"CREATE OR REPLACE TABLE {table} ({listed})")
    row = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(view)]).fetchone()
    assert row is not None
    return connection.sql(row[0]).columns
