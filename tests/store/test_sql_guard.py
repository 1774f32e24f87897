"""One SELECT over the views and listed functions, and nothing else, however it is written."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import as_file, files

import duckdb
import pytest

from tracestore.store.sql_guard import FUNCTIONS, TABLE_FUNCTIONS, SqlRefused, check

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
        ("SELECT list_aggregate([1, 2], 'sum'), u.user FROM (SELECT 1 AS user) u", set()),
        ("SELECT * FROM calls PIVOT (count(*) FOR x IN ('a')) POSITIONAL JOIN episodes", VIEWS),
        (
            "SELECT json_extract(x, '$.a'), x ->> '$.a', x::JSON -> 'a', list_reverse([1]) FROM calls",
            {"calls"},
        ),
        ("UNPIVOT calls ON x, y INTO NAME n VALUE v", {"calls"}),
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
        # Functions that look like columns: who, where and when is not asked.
        *(f"SELECT {name} FROM calls" for name in ("user", "CURRENT_USER", "current_catalog", "localtime")),
        "SELECT x FROM calls ORDER BY current_timestamp",
        # Functions under another spelling, or named by a text.
        "SELECT GETENV('HOME')",
        """SELECT "getenv"('HOME')""",
        "SELECT /* */ getenv /* */ ('HOME')",
        "SELECT ('HOME').getenv()",
        "SELECT x.getenv() FROM calls",
        "SELECT \uff47etenv('HOME')",
        "SELECT list_aggregate(['HOME'], 'getenv')",
        "SELECT list_aggregate([1], x) FROM calls",
        "SELECT list_aggregate([1], 's' || 'um')",
        "SELECT list_aggregate([1], NULL)",
        "SELECT pg_catalog.lower('x')",
        # In every place where an expression may stand.
        *(
            sql.replace("F", "getenv('HOME')")
            for sql in (
                "select list_apply(['HOME'], x -> getenv(x))",
                "select [F]",
                "select {'a': F}",
                "select map {'a': F}",
                "select (row(F)).a",
                "select F[1]",
                "select try_cast(F as int)",
                "select case when true then F end",
                "select x between F and 'y' from calls",
                "select x in (F) from calls",
                "select * replace (F as x) from calls",
                "select columns(c -> F = c) from calls",
                "select distinct on (F) * from calls",
                "select count(*) from calls group by rollup (F)",
                "select count(*) from calls having F = ''",
                "select x from calls qualify F = ''",
                "select sum(x) filter (where F = '') from calls",
                "select sum(x order by F) from calls",
                "select sum(x) over (partition by F) from calls",
                "select sum(x) over (order by x rows between F::int preceding and current row) from calls",
                "select sum(x) over w from calls window w as (partition by F)",
                "select lag(x, 1, F) over () from calls",
                "from calls limit F::int",
                "from calls limit (select F::int)",
                "from calls offset (select F::int)",
                "from calls c join episodes e on F = ''",
                "from calls, lateral (select F)",
                "from range((select F::int))",
                "from unnest([F])",
                "from (values (F))",
                "values (F)",
                "select 1 union by name select F",
                "(select 1) intersect (select F)",
                "with a as materialized (select F) select 1",
                "with recursive a(n) using key (n) as (select 1 union select F) from a",
                "pivot calls on x using max(F)",
                "unpivot (select F as a) on a",
            )
        ),
        # Tables by other ways.
        "SELECT * FROM temp.calls",
        "SELECT * FROM store.calls",
        "SELECT * FROM calls AT (VERSION => 1)",
        "SELECT * FROM duckdb_tables",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM sqlite_query('store', 'SELECT 1')",
        "SELECT * FROM postgres_execute('store', 'SELECT 1')",
        "SELECT * FROM query_table(['calls'])",
        "SELECT * FROM json_execute_serialized_sql('x')",
        "SELECT * FROM pragma_table_info('calls')",
        "SELECT * FROM repeat_row(1, num_rows := 10)",
        "SELECT * FROM calls, LATERAL (SELECT * FROM read_csv(calls.x))",
        "SELECT * FROM calls POSITIONAL JOIN read_text('/x')",
        "SELECT * FROM calls SEMI JOIN call USING (x)",
        "SELECT * FROM (calls JOIN call ON true)",
        "PIVOT read_csv('/x') ON x USING count(*)",
        "TABLE call",
        "SELECT * FROM \uff43alls",
        'SELECT * FROM "calls "',
        "SELECT * FROM 'https://x/y.parquet'",
        # Statements.
        *("SHOW TABLES", "PREPARE v AS SELECT 1", "EXECUTE v", "SET VARIABLE x = 1", "USE x", "DETACH store"),
        *("CREATE MACRO f() AS 1", "BEGIN", "CHECKPOINT", "VACUUM", "IMPORT DATABASE 'x'", "SELECT $x"),
        "WITH x AS (INSERT INTO calls VALUES (1)) FROM x",
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
    with pytest.raises(SqlRefused, match=r"function='medain'.*median\b.*\?"):
        used("SELECT medain(x) FROM calls")


@pytest.mark.parametrize(
    "sql",
    [
        # A CTE that is not visible there: DuckDB would read the system table, the file or the view instead.
        "SELECT * FROM (WITH duckdb_settings AS (SELECT 1) FROM duckdb_settings) a, duckdb_settings b",
        "SELECT * FROM (WITH sqlite_master AS (SELECT 1) SELECT 1) a, sqlite_master b",
        "WITH a AS (FROM b), b AS (SELECT 1) FROM a",
        "WITH a AS (FROM a) FROM a",
        "WITH RECURSIVE a AS (FROM a) FROM a",
        "WITH RECURSIVE pg_class AS (FROM pg_class UNION ALL SELECT * FROM pg_class) FROM pg_class",
        "SELECT (WITH call AS (SELECT 1) SELECT 1), x FROM call",
        'WITH "/etc/passwd" AS (SELECT 1) FROM "/etc/passwd"',
        'WITH "x.csv" AS (SELECT 1) FROM "x.csv"',
        # To Python the Kelvin sign is a k in lower case, to DuckDB it is not: that would be the system table.
        'WITH "duc\u212adb_tables" AS (SELECT 1) FROM duckdb_tables',
        'WITH duckdb_tables AS (SELECT 1) FROM "duc\u212adb_tables"',
        # A CTE that shadows a view.
        "WITH calls AS (SELECT 1) FROM calls",
        "WITH Calls AS (SELECT * FROM calls) FROM Calls",
        "SELECT * FROM (WITH calls AS (SELECT 1) FROM calls) a, calls b",
        "WITH a AS (WITH b AS (FROM read_text('/x')) FROM b) FROM a",
        "SELECT $1",
        "SELECT ?",
        "SELECT (" * 400 + "1" + ")" * 400 + "; DROP TABLE calls",
    ],
)
def test_a_cte_opens_no_way_to_another_table(sql: str) -> None:
    with pytest.raises(SqlRefused):
        used(sql)


@pytest.mark.parametrize(
    ("sql", "views"),
    [
        (
            "WITH RECURSIVE up(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < 9) FROM up, calls",
            {"calls"},
        ),
        (
            "WITH a AS (SELECT 1), b AS (FROM a, A) SELECT (SELECT 1 FROM b), * FROM a ORDER BY (FROM b)",
            set(),
        ),
        ("WITH a AS (SELECT 1) (WITH b AS (FROM a) FROM b) UNION ALL FROM a", set()),
        ("SELECT * FROM calls c, LATERAL (WITH d AS (SELECT c.x) FROM d)", {"calls"}),
    ],
)
def test_a_cte_can_be_named_wherever_it_is_visible(sql: str, views: set[str]) -> None:
    assert used(sql) == views


def test_of_all_functions_of_duckdb_only_the_listed_run_and_none_of_them_has_effects() -> None:
    """With the scanners of SQLite and PostgreSQL loaded, as they are in the process of a query."""
    connection = duckdb.connect()
    for kind in ("sqlite", "postgres"):
        _load(connection, kind)
    listed = FUNCTIONS | TABLE_FUNCTIONS
    found = connection.execute(
        "SELECT DISTINCT lower(function_name), function_type, coalesce(has_side_effects, false) "
        "FROM duckdb_functions()"
    ).fetchall()
    names = {name for name, _, _ in found}
    assert {"sqlite_scan", "sqlite_attach", "postgres_query", "postgres_execute", "read_csv"} <= names
    # Raising an error counts as one.
    assert [name for name, _, has_effects in found if has_effects and name in listed] == ["error"]
    for name in sorted(names):
        quoted = '"' + name.replace('"', '""') + '"'
        _is_run(f"SELECT {quoted}(1)", connection, allowed=name in listed)
        _is_run(f"SELECT * FROM {quoted}('/x')", connection, allowed=name in TABLE_FUNCTIONS)
        if name not in listed:
            _is_run(f"SELECT {quoted}(x) OVER () FROM calls", connection, allowed=False)
            _is_run(f"WITH a AS (SELECT 1 ORDER BY {quoted}()) FROM a", connection, allowed=False)


def _load(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    folder = files(import_module(f"duckdb_extension_{kind}_scanner")) / "extensions"
    with as_file(folder) as path:
        (library,) = path.glob(f"*/{kind}_scanner.duckdb_extension")
        connection.execute(f"LOAD '{library}'")


def _is_run(sql: str, connection: duckdb.DuckDBPyConnection, *, allowed: bool) -> None:
    row = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None
    try:
        check(row[0], views=VIEWS)
    except SqlRefused:
        assert not allowed, sql
    else:
        assert allowed, sql
