"""Analyst SQL -> rows, in a child process with a limit on time, rows and memory.

The child is the only process that opens the database through DuckDB, and it never opens it through sqlite3:
in one process, closing DuckDB's handle would drop SQLite's POSIX locks, and acknowledged rows could be lost.
DuckDB does not recurse over an attached database either (minutes instead of a second): the child copies what
the query needs, of one project, and lets go of the database before the SQL runs. Of a view that it names rows
of by id (`sql_filters`) that is those, as the database itself finds them, else the columns of its tables that
what it reads of the view is made of (`sql_columns`). Exported shards and Parquet are read where they lie.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Boolean, Double, LargeBinary, Text, make_url

from tracestore.errors import TracestoreError
from tracestore.store.engine import BadUrl
from tracestore.store.schema import view_statements
from tracestore.store.sql_filters import FOUND_BY
from tracestore.store.sql_guard import SqlRefused
from tracestore.store.tables import KEY_BITS, metadata
from tracestore.store.types import ExactText

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    *(
        "ArrowResult",
        "Source",
        "SqlAnswer",
        "SqlCancelled",
        "SqlFailed",
        "SqlLimits",
        "SqlQuery",
        "SqlRefused",
    ),
    *("SqlResult", "SqlTooSlow", "database", "parquet", "run_sql", "run_sql_arrow", "shards"),
]
_NICENESS = 10
"""Of the child: recording goes before questions."""

_FOUND_WHOLE = ["compaction_messages"]
"""Views of which the database finds the rows also where all of a project are asked: it walks paths by its
indexes, where DuckDB would pair every call with every message."""

_TYPES = {BigInteger: "BIGINT", Boolean: "BOOLEAN", Double: "DOUBLE", Text: "VARCHAR", ExactText: "VARCHAR"}

Source = Mapping[str, Any]
"""What is asked, as the child takes it: made by `database`, `shards` or `parquet`."""


class SqlFailed(TracestoreError):
    """The SQL could not be run"""


class SqlTooSlow(TracestoreError):
    """The SQL ran longer than it may"""

    status = 408


class SqlCancelled(TracestoreError):
    """The SQL was ended, since nobody waits for it any more"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlLimits:
    """What one query may take."""

    max_rows: int = 10_000
    timeout_s: float = 60
    memory_mb: int = 1024
    answer_bytes: int = 256 * 2**20
    """Of the rows that come back, as Arrow; those beyond it are left out."""


@dataclass(frozen=True, slots=True)
class SqlAnswer:
    """Rows as bytes in the format asked for."""

    body: bytes
    num_rows: int
    truncated: bool
    """There were more rows than may come back."""


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


def database(url: str, project: str) -> Source:
    """The views (`views.sql`) of one project of a live store.

    Raises:
        BadUrl: neither a SQLite file nor a PostgreSQL database.
    """
    parsed = make_url(url)
    backend = parsed.get_backend_name()
    if backend == "postgresql":
        where = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    elif backend == "sqlite" and parsed.database:
        where = parsed.database
    else:
        raise BadUrl(url=url, hint="analyst SQL runs on SQLite files and PostgreSQL databases")
    return {
        "kind": backend,
        "where": where,
        "project": project,
        "views": view_statements(),
        "found_by": _found_by(),
        "found_whole": _FOUND_WHOLE,
        "tables": _column_types(),
        "key_bits": KEY_BITS,
    }


def parquet(folder: Path, project: str) -> Source:
    """The views of one project as `tracestore db parquet` wrote them: a folder of files for each view."""
    return {"kind": "parquet", "where": str(folder), "project": project}


def shards(folder: Path) -> Source:
    """The view `samples` of an export."""
    return {"kind": "shards", "where": str(folder)}


class SqlQuery:
    """One SELECT, to be answered in a child process that another thread can end."""

    def __init__(self, source: Source, sql: str, *, limits: SqlLimits, as_: str = "arrow") -> None:
        """
        Args:
            as_: one of `sql_formats.FORMATS`.
        """
        self._limits = limits
        self._request = {"source": source, "sql": sql, "limits": asdict(limits), "as_": as_}
        self._lock = Lock()
        self._is_cancelled = False
        self._child: subprocess.Popen[bytes] | None = None

    def answer(self) -> SqlAnswer:
        """What DuckDB answers; to be asked once.

        Raises:
            SqlRefused: not one SELECT, or it names something other than the views and the listed functions.
            SqlFailed: DuckDB's own error: a wrong column, a cast that fails, no memory left.
            SqlTooSlow: the time went by.
            SqlCancelled: `cancel` was called.
        """
        request = json.dumps(self._request | {"parent": os.getpid()}).encode()
        with self._started() as child:
            try:
                out, err = child.communicate(request, timeout=self._limits.timeout_s)
            except subprocess.TimeoutExpired:
                hint = "filter by episode_id or call_id, or allow more time"
                raise SqlTooSlow(timeout_s=self._limits.timeout_s, hint=hint) from None
            finally:
                child.kill()
        if self._is_cancelled:
            raise SqlCancelled
        if child.returncode:
            raise _error(child.returncode, err)
        head, _, body = out.partition(b"\n")
        return SqlAnswer(body=body, **json.loads(head))

    def cancel(self) -> None:
        """End the child, or never start it; `answer` raises SqlCancelled."""
        with self._lock:
            self._is_cancelled = True
            if self._child is not None:
                self._child.kill()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_cancelled:
                raise SqlCancelled
            pipe = subprocess.PIPE
            command = [sys.executable, "-m", "tracestore.store.duck_child"]
            self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
        # From here and not by the child itself: its imports are half of what a small query costs.
        niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)
        os.setpriority(os.PRIO_PROCESS, self._child.pid, niceness)
        return self._child


def run_sql(
    url: str,
    project: str,
    sql: str,
    *,
    limit_rows: int = 10_000,
    timeout_s: float = 60,
    memory_mb: int = 1024,
) -> SqlResult:
    """Run one SELECT over the views (`views.sql`) of one project; raises what `SqlQuery.answer` does.

    Raises:
        BadUrl: neither a SQLite file nor a PostgreSQL database.
    """
    limits = SqlLimits(max_rows=limit_rows, timeout_s=timeout_s, memory_mb=memory_mb)
    return result_of(_answer(url, project, sql, limits))


def run_sql_arrow(
    url: str,
    project: str,
    sql: str,
    *,
    limit_rows: int = 10_000,
    timeout_s: float = 60,
    memory_mb: int = 1024,
) -> ArrowResult:
    """`run_sql` as Arrow gives it."""
    limits = SqlLimits(max_rows=limit_rows, timeout_s=timeout_s, memory_mb=memory_mb)
    answer = _answer(url, project, sql, limits)
    return ArrowResult(_table_of(answer), answer.truncated)


def _answer(url: str, project: str, sql: str, limits: SqlLimits) -> SqlAnswer:
    # While the child works: to import it takes as long as a small query.
    Thread(target=import_module, args=("pyarrow",)).start()
    return SqlQuery(database(url, project), sql, limits=limits).answer()


def result_of(answer: SqlAnswer) -> SqlResult:
    """The rows of an answer in Arrow."""
    from tracestore.store.sql_formats import rows

    table = _table_of(answer)
    return SqlResult(tuple(table.column_names), list(rows(table)), answer.truncated)


def _table_of(answer: SqlAnswer) -> pa.Table:
    # The server, which passes answers on as they are, does without.
    import pyarrow as pa

    with pa.ipc.open_stream(answer.body) as reader:
        return reader.read_all()


@cache
def _column_types() -> dict[str, dict[str, str]]:
    """The columns of each table that the child may copy, with DuckDB's types: all but bytes."""
    return {
        table.name: {
            column.name: next(name for kind, name in _TYPES.items() if isinstance(column.type, kind))
            for column in table.columns
            if not isinstance(column.type, LargeBinary)
        }
        for table in metadata.tables.values()
    }


@cache
def _found_by() -> dict[str, list[str]]:
    """Of each view the columns by which the database finds its rows."""
    return {
        name: [column for column in FOUND_BY if re.search(rf"\bAS {column}\b", statement)]
        for name, statement in view_statements().items()
    }


def _error(exit_code: int, err: bytes) -> TracestoreError:
    last = err.decode("utf-8", "replace").strip().rpartition("\n")[2]
    try:
        problem = json.loads(last)
    except json.JSONDecodeError:
        return SqlFailed(
            exit_code=exit_code, error=last or None, hint="the query took its process down: ask for less"
        )
    kind = SqlRefused if problem["refused"] else SqlFailed
    return kind(hint=problem["hint"], **problem["values"])
