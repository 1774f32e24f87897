"""One SELECT over the views and listed functions, and nothing else, however it is written."""

from __future__ import annotations

import duckdb
import pytest

from tracestore.store.sql_guard import SqlRefused, check

VIEWS = {"calls", "episodes"}


def used(sql: str) -> frozenset[str]:
    row = duckdb.connect().execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None
    return check(row[0], views=VIEWS)


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        ("SELECT 1", set()),
        ("FROM calls", {"calls"}),
        ("select count(*), sum(x) filter (x > 1) from Calls c left join episodes using (episode_id)", VIEWS),
        ("WITH a AS (SELECT * FROM calls), b AS (FROM a) SELECT * FROM b WHERE x IN (SELECT 1)", {"calls"}),
        ("SELECT * FROM calls UNION ALL SELECT * FROM calls ORDER BY 1 LIMIT 3", {"calls"}),
        ("SELECT rank() OVER (PARTITION BY a ORDER BY b), a::varchar, x LIKE 'y%' FROM calls", {"calls"}),
        ("SELECT date_trunc('day', to_timestamp(started_at / 1e9)), message_text(1) FROM calls", {"calls"}),
        ("SELECT * FROM range(3), unnest([1, 2])", set()),
        ("VALUES (1), (2)", set()),
        (
            "SELECT [x + 1 FOR x IN [1, 2]], CASE WHEN a BETWEEN 1 AND 2 THEN {'k': 1} END FROM calls",
            {"calls"},
        ),
        ("SELECT * FROM episodes e WHERE EXISTS (SELECT 1 FROM calls c WHERE c.x = e.x)", VIEWS),
    ],
)
def test_queries_of_analysts_pass(sql: str, views: set[str]) -> None:
    assert used(sql) == views


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "SELECT 1; SELECT 2",
        "DELETE FROM calls",
        "INSERT INTO calls VALUES (1)",
        "CREATE TABLE x AS FROM calls",
        "ATTACH '/x.db' AS x",
        "COPY calls TO '/x.csv'",
        "INSTALL sqlite",
        "LOAD '/x.so'",
        "PRAGMA database_list",
        "SET threads = 9",
        "EXPORT DATABASE '/x'",
        "CALL sqlite_attach('/x.db')",
        "EXPLAIN SELECT 1",
        "SELECT * FROM call",
        "SELECT * FROM main.calls",
        "SELECT * FROM memory.main.calls",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM sqlite_scan('/x.db', 'call')",
        "SELECT * FROM postgres_query('x', 'y')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM '/etc/passwd'",
        'SELECT * FROM "calls.csv"',
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('calls')",
        "SELECT * FROM calls WHERE x = (SELECT content FROM read_text('/x'))",
        "WITH a AS (FROM read_csv('/x')) FROM a",
        "SELECT getenv('HOME')",
        "SELECT current_setting('home_directory')",
        "SELECT * FROM calls ORDER BY getenv('HOME')",
        "SELECT sum(getvariable('x')) OVER () FROM calls",
        "DESCRIBE calls",
        "SELECT * FROM (DESCRIBE calls)",
        "SELECT * FROM (SHOW ALL TABLES)",
        "SUMMARIZE calls",
        "SELECT nextval('s')",
        "SELECT system.main.getenv('HOME')",
        "SELEC 1",
    ],
)
def test_everything_else_is_refused(sql: str) -> None:
    with pytest.raises(SqlRefused):
        used(sql)


def test_a_refusal_says_what_may_be_named() -> None:
    with pytest.raises(SqlRefused, match=r"table='call'; the views are calls, episodes"):
        used("SELECT * FROM call")
    with pytest.raises(SqlRefused, match="function='getenv'"):
        used("SELECT getenv('HOME')")
