"""Analyst SQL -> rows, in a child process with a limit on time, rows and memory.

The child is the only process that opens the database through DuckDB, and it never opens it through sqlite3:
in one process, closing DuckDB's handle would drop SQLite's POSIX locks, and acknowledged rows could be lost.
DuckDB does not recurse over the attached file either (minutes instead of a second): the child copies the
narrow columns that the query's views need, of one project, and lets go of the file before the SQL runs.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa
from sqlalchemy import Boolean, LargeBinary, make_url

from tracestore.errors import TracestoreError
from tracestore.store.engine import BadUrl
from tracestore.store.schema import view_statements
from tracestore.store.sql_guard import SqlRefused
from tracestore.store.tables import KEY_BITS, metadata

__all__ = ["ArrowResult", "SqlFailed", "SqlRefused", "SqlResult", "SqlTooSlow", "run_sql", "run_sql_arrow"]


class SqlFailed(TracestoreError):
    """The SQL could not be run"""


class SqlTooSlow(TracestoreError):
    """The SQL ran longer than it may"""

    status = 408


@dataclass(frozen=True, slots=True)
class SqlResult:
    """A table."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    truncated: bool
    """There were more rows than may come back."""


@dataclass(frozen=True, slots=True)
class ArrowResult:
    """The same as Arrow gives it: typed columns, also where there is no row."""

    table: pa.Table
    truncated: bool


def run_sql(
    url: str,
    project: str,
    sql: str,
    *,
    limit_rows: int = 10_000,
    timeout_s: float = 60,
    memory_mb: int = 1024,
) -> SqlResult:
    """`run_sql_arrow` as Python values."""
    found = run_sql_arrow(url, project, sql, limit_rows=limit_rows, timeout_s=timeout_s, memory_mb=memory_mb)
    columns = [[_plain(value) for value in column.to_pylist()] for column in found.table.columns]
    return SqlResult(tuple(found.table.column_names), list(zip(*columns, strict=True)), found.truncated)


def run_sql_arrow(
    url: str,
    project: str,
    sql: str,
    *,
    limit_rows: int = 10_000,
    timeout_s: float = 60,
    memory_mb: int = 1024,
) -> ArrowResult:
    """Run one SELECT over the views (`views.sql`) of one project.

    Raises:
        SqlRefused: not one SELECT, or it names something other than the views and the listed functions.
        SqlFailed: DuckDB's own error: a wrong column, a cast that fails, no memory left.
        SqlTooSlow: `timeout_s` went by.
        BadUrl: not a SQLite store.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise BadUrl(url=url, hint="analyst SQL runs on SQLite stores; ask a PostgreSQL server itself")
    request = {
        "file": parsed.database,
        "project": project,
        "sql": sql,
        "views": view_statements(),
        "tables": _narrow_columns(),
        "key_bits": KEY_BITS,
        "limit_rows": limit_rows,
        "memory_mb": memory_mb,
    }
    command = [sys.executable, "-m", "tracestore.store.duck_child"]
    try:
        done = subprocess.run(
            command, input=json.dumps(request).encode(), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise SqlTooSlow(
            timeout_s=timeout_s, hint="filter by episode_id or call_id, or allow more time"
        ) from None
    if done.returncode:
        raise _error(done)
    with pa.ipc.open_stream(io.BytesIO(done.stdout)) as reader:
        table = reader.read_all()
    return ArrowResult(table.slice(0, limit_rows), table.num_rows > limit_rows)


@cache
def _narrow_columns() -> dict[str, str]:
    """What the child copies of each table, as a SELECT list: all but bytes. It loads no schema of its own."""
    return {
        table.name: ", ".join(
            f'CAST("{column.name}" AS BOOLEAN) AS "{column.name}"'
            if isinstance(column.type, Boolean)
            else f'"{column.name}"'
            for column in table.columns
            if not isinstance(column.type, LargeBinary)
        )
        for table in metadata.tables.values()
    }


def _error(done: subprocess.CompletedProcess[bytes]) -> TracestoreError:
    last = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    try:
        problem = json.loads(last)
    except json.JSONDecodeError:
        return SqlFailed(
            exit_code=done.returncode, error=last or None, hint="the query took its process down"
        )
    kind = SqlRefused if problem["refused"] else SqlFailed
    return kind(hint=problem["hint"], **problem["values"])


def _plain(value: Any) -> Any:
    # A sum of integers is a HUGEINT, which Arrow knows as a decimal without digits after the point.
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return value
