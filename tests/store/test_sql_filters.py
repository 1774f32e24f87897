"""What a query needs of a view is found in its parse, and the query sees no difference."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracestore.store.sql_filters import Ids, needed

COLUMNS = {"contexts": ("call_id", "episode_id"), "calls": ("call_id", "episode_id"), "gaps": ("episode_id",)}
VALUES = ("k1", "k2", "k3")


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def found(connection: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Ids]:
    row = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert row is not None
    parsed = json.loads(row[0])
    assert not parsed["error"], parsed
    return needed(parsed, columns=COLUMNS)


CALL, EPISODE = Ids("call_id", ("k1",)), Ids("episode_id", ("k1",))


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM contexts WHERE call_id = 'k1'", {"contexts": CALL}),
        ("FROM Contexts X WHERE 'k1' = x.Call_Id AND position < 3", {"contexts": CALL}),
        ("FROM gaps WHERE episode_id IN ('k2', 'k1')", {"gaps": Ids("episode_id", ("k1", "k2"))}),
        # The more selective column, where both are known.
        ("FROM calls WHERE episode_id = 'k2' AND call_id = 'k1'", {"calls": CALL}),
        ("FROM calls c JOIN contexts x ON x.call_id = c.call_id WHERE c.call_id = 'k1'",
         {"calls": CALL, "contexts": CALL}),
        ("FROM calls c, contexts x WHERE x.call_id = c.call_id AND c.call_id = 'k1'",
         {"calls": CALL, "contexts": CALL}),
        ("FROM calls JOIN contexts USING (call_id) WHERE call_id = 'k1'", {"calls": CALL, "contexts": CALL}),
        ("FROM calls c LEFT JOIN gaps g USING (episode_id) WHERE c.episode_id = 'k1'",
         {"calls": EPISODE, "gaps": EPISODE}),
        ("FROM calls c LEFT JOIN gaps g ON g.episode_id = 'k1'", {"gaps": EPISODE}),
        ("WITH c AS (FROM calls WHERE call_id = 'k1') SELECT (SELECT 1 FROM gaps WHERE episode_id = 'k1')"
         " FROM c", {"calls": CALL, "gaps": EPISODE}),
        # Every mention of a view counts.
        ("FROM calls WHERE call_id = 'k1' UNION ALL FROM calls WHERE call_id = 'k2'",
         {"calls": Ids("call_id", ("k1", "k2"))}),
        ("FROM calls WHERE call_id = 'k1' UNION ALL FROM calls", {}),
        ("FROM calls WHERE call_id = 'k1' UNION ALL FROM calls WHERE episode_id = 'k1'", {}),
        # Not what certainly holds.
        ("FROM contexts WHERE call_id = 'k1' OR position = 1", {}),
        ("FROM contexts WHERE NOT call_id = 'k1'", {}),
        ("FROM contexts WHERE call_id NOT IN ('k1')", {}),
        ("FROM contexts WHERE call_id = 'k1' COLLATE nocase", {}),
        ("FROM contexts WHERE call_id = 1", {}),
        ("FROM contexts WHERE lower(call_id) = 'k1'", {}),
        ("FROM contexts WHERE author_call_id = 'k1'", {}),
        ("FROM gaps WHERE call_id = 'k1'", {}),
        ("FROM contexts TABLESAMPLE 50% WHERE call_id = 'k1'", {}),
        ("FROM contexts WHERE call_id = 'k1' USING SAMPLE 1", {}),
        ("FROM contexts AS x(call_id, y) WHERE call_id = 'k1'", {}),
        ("FROM calls c JOIN contexts x ON true WHERE call_id = 'k1'", {}),
        ("FROM calls c POSITIONAL JOIN contexts x WHERE c.call_id = 'k1'", {}),
        ("FROM calls c ASOF JOIN gaps g ON g.episode_id >= c.episode_id WHERE c.call_id = 'k1'", {}),
        ("FROM calls c ANTI JOIN contexts x ON x.call_id = c.call_id WHERE c.call_id = 'k1'", {}),
        ("FROM calls c LEFT JOIN gaps g ON c.episode_id = 'k1' AND g.episode_id = c.episode_id", {}),
        ("SELECT * FROM (SELECT * FROM contexts) WHERE call_id = 'k1'", {}),
        # A column that DuckDB casts to compare it is equal to texts that differ.
        ("FROM contexts x JOIN (SELECT 5 AS call_id) c ON c.call_id = x.call_id WHERE c.call_id = '5'", {}),
        # DuckDB tells the Kelvin sign from a k.
        ("FROM contexts k, (SELECT {'call_id': 'k1'} AS \"\u212a\") s WHERE \"\u212a\".call_id = 'k1'", {}),
        ("FROM contexts WHERE call_id = 'k1' AND call_id = 'k2'", {"contexts": Ids("call_id", ())}),
    ],
)  # fmt: skip
def test_what_certainly_holds_is_found_and_nothing_else(
    database: duckdb.DuckDBPyConnection, sql: str, expected: dict[str, Ids]
) -> None:
    assert found(database, sql) == expected


@st.composite
def _conditions(draw: st.DrawFn, names: list[str]) -> str:
    """Equalities between columns and texts of these tables, joined by AND, sometimes by OR or under a NOT."""

    def column() -> str:
        name = draw(st.sampled_from(names))
        return f"{name}.{draw(st.sampled_from(['call_id', 'episode_id', 'n']))}"

    parts = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["text", "text", "in", "column", "column", "null", "not"]))
        text = f"'{draw(st.sampled_from(VALUES))}'"
        parts.append(
            {
                "text": f"{column()} = {text}",
                "in": f"{column()} IN ({text}, 'k2')",
                "column": f"{column()} = {column()}",
                "null": f"{column()} IS NULL",
                "not": f"NOT {column()} = {text}",
            }[kind]
        )
    return draw(st.sampled_from([" AND ", " AND ", " AND ", " OR "])).join(parts)


@st.composite
def _froms(draw: st.DrawFn, names: list[str]) -> str:
    """These tables, joined in some way."""
    if len(names) == 1:
        view = draw(st.sampled_from(["contexts", "calls", "gaps"]))
        return f"{view} {names[0]}"
    cut = draw(st.integers(1, len(names) - 1))
    left, right = draw(_froms(names[:cut])), draw(_froms(names[cut:]))
    if "JOIN" in right:
        right = f"({right})"
    how = draw(st.sampled_from(["JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]))
    return f"{left} {how} {right} ON {draw(_conditions(names))}"


@st.composite
def queries(draw: st.DrawFn) -> str:
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    where = f" WHERE {draw(_conditions(names))}" if draw(st.integers(0, 3)) else ""
    columns = ", ".join(f"{name}.call_id, {name}.n" for name in names)
    return f"SELECT {columns} FROM {draw(_froms(names))}{where}"


ROWS = st.lists(
    st.tuples(st.sampled_from([*VALUES, None]), st.sampled_from([*VALUES, None]), st.sampled_from(VALUES)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=150)
@given(queries(), st.fixed_dictionaries(dict.fromkeys(COLUMNS, ROWS)))
def test_a_query_over_the_rows_that_it_needs_gives_the_rows_of_the_whole(
    database: duckdb.DuckDBPyConnection, sql: str, content: dict[str, list[Any]]
) -> None:
    for name, rows in content.items():
        listed = ", ".join(str(row).replace("None", "NULL") for row in rows)
        columns = "call_id::VARCHAR AS call_id, episode_id::VARCHAR AS episode_id, n"
        database.execute(
            f"CREATE OR REPLACE TABLE {name} AS "
            f"SELECT {columns} FROM (VALUES {listed}) v(call_id, episode_id, n)"
        )
    expected = sorted(database.execute(sql).fetchall(), key=str)
    for view, (column, values) in found(database, sql).items():
        marks = ", ".join("?" for _ in values) or "NULL"
        database.execute(f"DELETE FROM {view} WHERE ({column} IN ({marks})) IS NOT TRUE", [*values])
    assert sorted(database.execute(sql).fetchall(), key=str) == expected
