"""The child of `duck.SqlQuery`: request on stdin; on stdout what came out and the rows; errors on stderr.

Nothing here may open the database through sqlite3. Every query pays for what this module imports, so what is
known of the schema comes with the request, and pyarrow comes when `main` has seen to it that it comes alone.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
from duckdb.func import FunctionNullHandling, PythonUDFType

from tracestore.errors import TracestoreError
from tracestore.store.sql_columns import Node, columns_of, mentioned, narrowed, objects, tables_of
from tracestore.store.sql_filters import Ids, needed
from tracestore.store.sql_guard import SqlRefused, check

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = "message_text"
_BESIDE_MB = 1024
"""What the process maps besides DuckDB's memory and the answer: libraries, stacks, buffers."""
_GRACE_S = 5
"""Whoever asked ends this process when the time is over, and says so; it ends by itself a little later."""
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)

_SAMPLES = """
CREATE VIEW samples AS
SELECT project,
       episodes[s.episode + 1].episode_id AS episode_id,
       group_id,
       s.sample_id,
       agents[s.agent + 1].agent_id AS agent_id,
       agents[s.agent + 1].role AS role,
       calls[completions[s.completions[-1] + 1].call + 1].call_id AS call_id,
       completions[s.completions[-1] + 1].index AS completion,
       episodes[s.episode + 1].status AS status,
       episodes[s.episode + 1].split AS split,
       s.cause,
       len(s.segments) AS num_segments,
       len(s.completions) AS num_completions,
       s.num_tokens,
       s.num_owned
  FROM (SELECT *, unnest(samples) AS s FROM shard_rows)
"""


class StoreUnreadable(TracestoreError):
    """DuckDB cannot read this"""


def main() -> int:
    request = json.load(sys.stdin)
    if not _reads_texts(request["sql"]):
        # pyarrow imports it wherever it is installed, which takes longer than all other imports together, and
        # does without; DuckDB wants it for functions that are written in Python.
        sys.modules["numpy"] = None  # type: ignore[assignment]
    import pyarrow as pa

    limits = request["limits"]
    _end_with(request.pop("parent"), timeout_s=limits["timeout_s"])
    _cap_memory(limits["memory_mb"] + limits["answer_bytes"] // 2**20)
    try:
        head, body = answer(**request)
    except (TracestoreError, duckdb.Error, pa.ArrowException, MemoryError, UnicodeError) as error:
        problem = {"refused": isinstance(error, SqlRefused), "values": {"error": str(error)}, "hint": None}
        if isinstance(error, TracestoreError):
            problem |= {"values": error.values, "hint": error.hint}
        elif isinstance(error, MemoryError):
            problem |= {"values": {}, "hint": "it takes more memory than a query may have"}
        sys.stderr.write(json.dumps(problem) + "\n")
        return 1
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")
    sys.stdout.buffer.write(body)
    return 0


def _end_with(parent: int, *, timeout_s: float) -> None:
    """End this process with the one that asked, or when its time is over, whatever DuckDB is doing."""

    def watch() -> None:
        until = time.monotonic() + timeout_s + _GRACE_S
        while os.getppid() == parent and time.monotonic() < until:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _cap_memory(size_mb: int) -> None:
    """A wall behind DuckDB's own limit, which knows nothing of texts that Python unpacks."""
    size = (size_mb + _BESIDE_MB) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def answer(
    *, source: Mapping[str, Any], sql: str, limits: Mapping[str, Any], as_: str
) -> tuple[dict[str, Any], bytes]:
    """How many rows one SELECT has and whether that is all, and the rows themselves."""
    if "\x00" in sql:
        # What is parsed would end there, and be another statement than what is run.
        raise SqlRefused(hint="SQL has no NUL character")
    # The scanners come in wheels, as this module does; to check their signatures takes longer than the rest.
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute(f"SET memory_limit = '{int(limits['memory_mb'])}MB'")
    connection.execute("SET threads = 2")
    connection.execute("SET max_temp_directory_size = '0KB'")
    serialized = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert serialized is not None
    _OPENERS[source["kind"]](connection, source, sql=sql, serialized=serialized[0])
    connection.execute("SET allow_unsigned_extensions = false")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    from tracestore.store.sql_formats import write

    reader = connection.execute(sql).to_arrow_reader(1024)
    table, truncated = _first(reader, max_rows=limits["max_rows"], max_bytes=limits["answer_bytes"])
    head = {"num_rows": table.num_rows, "truncated": truncated}
    return head, write(table, as_=as_, truncated=truncated)


def _first(reader: pa.RecordBatchReader, *, max_rows: int, max_bytes: int) -> tuple[pa.Table, bool]:
    """The first rows, and whether there are more."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    num_rows = size = 0
    truncated = False
    for batch in reader:
        room = batch.slice(0, max_rows - num_rows)
        size += batch.nbytes
        truncated = room.num_rows < batch.num_rows or size > max_bytes
        if size > max_bytes:
            # A batch is 1,024 rows at most; of the one that is too much, as many as there is room for.
            share = (max_bytes - size + batch.nbytes) / batch.nbytes
            room = room.slice(0, int(room.num_rows * share))
        batches.append(room)
        num_rows += room.num_rows
        if truncated:
            break
    return pa.Table.from_batches(batches, reader.schema), truncated


def _open_database(
    connection: duckdb.DuckDBPyConnection, source: Mapping[str, Any], *, sql: str, serialized: str
) -> None:
    """The views that a query reads, over copies of what it needs of them; then the database is let go.

    Of a view of which a few ids are asked the database itself finds the rows; of the others the columns of
    tables that matter are copied.
    """
    used = check(serialized, views=source["views"])
    reads_texts = _reads_texts(sql)
    if not used and not reads_texts:
        return
    by_ids = _few(serialized, source["found_by"])
    few = {name: by_ids.get(name) for name in used if name in by_ids or name in source["found_whole"]}
    views = {name: source["views"][name].partition(" AS\n")[2] for name in used}
    parsed = {name: _parsed(connection, view) for name, view in views.items()}
    columns = mentioned(
        json.loads(serialized), views={name: columns_of(view) for name, view in parsed.items()}
    )
    dictionaries = _declare_texts(connection) if reads_texts else None
    _declare(connection, views, parsed, source["tables"])
    is_postgresql = source["kind"] == "postgresql"
    scanner = "postgres" if is_postgresql else "sqlite"
    _load(connection, scanner)
    with _untold_errors():
        _attach(connection, scanner, source["where"])
    # From here on DuckDB sees the query, if only to understand it.
    connection.execute("SET enable_external_access = false")
    # What is wrong with the query is found before anything is copied, and told by all the columns there are.
    bound = connection.sql(sql)
    found = {
        name: connection.sql(f"SELECT {_listed(columns[name] or columns_of(parsed[name])[:1])} FROM {name}")
        for name in few
    }
    for name in used:
        connection.execute(f"DROP VIEW {name}")
    narrow = {name: narrowed(view, columns[name]) for name, view in parsed.items() if name not in few}
    with _untold_errors():
        # One transaction: everything is copied as of the same commit.
        connection.execute("BEGIN")
        copy = _Copy(connection, is_postgresql=is_postgresql, project=source["project"])
        for table, types in _to_copy(narrow.values(), source["tables"]).items():
            copy.table(table, _select_list(types))
        if dictionaries is not None:
            _copy_texts(copy, dictionaries, source["key_bits"])
        if is_postgresql:
            # Its binary one knows no parameters.
            connection.execute("SET pg_use_text_protocol = true")
        for name, ids in few.items():
            copy.view(name, dict(zip(found[name].columns, found[name].types, strict=True)), ids)
        connection.execute("COMMIT")
        connection.execute("DETACH store")
    for name, tree in narrow.items():
        connection.execute(f"CREATE VIEW {name} AS {_sql(connection, tree)}")
    rebound = connection.sql(sql)
    assert (rebound.columns, rebound.types) == (bound.columns, bound.types), "a column was left out"


@contextmanager
def _untold_errors() -> Iterator[None]:
    """Those of a database name hosts, users and files, and whoever asks may be a tenant."""
    try:
        yield
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error as error:
        raise StoreUnreadable(
            error=type(error).__name__, hint="is the database there, and does it answer?"
        ) from None


def _declare(
    connection: duckdb.DuckDBPyConnection,
    views: Mapping[str, str],
    parsed: Mapping[str, Node],
    tables: Mapping[str, Mapping[str, str]],
) -> None:
    """Views over tables without a row."""
    for table in set().union(*(tables_of(view, tables=tables) for view in parsed.values())):
        listed = ", ".join(f'"{name}" {type_}' for name, type_ in tables[table].items())
        connection.execute(f"CREATE TABLE {table} ({listed})")
    for name, view in views.items():
        connection.execute(f"CREATE VIEW {name} AS {view}")


def _parsed(connection: duckdb.DuckDBPyConnection, select: str) -> Any:
    row = connection.execute("SELECT json_serialize_sql(?)", [select]).fetchone()
    assert row is not None
    tree = json.loads(row[0])
    # DuckDB 1.5 leaves the word out of the tree, but writes it where the tree says it.
    materialized = set(re.findall(r"(\w+) \([^()]*\) AS MATERIALIZED", select))
    for node in objects(tree):
        for query in node.get("cte_map", {}).get("map", ()):
            if query["key"] in materialized:
                query["value"]["materialized"] = "CTE_MATERIALIZE_ALWAYS"
    return tree


def _sql(connection: duckdb.DuckDBPyConnection, tree: Node) -> str:
    row = connection.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
    assert row is not None
    return str(row[0])


def _few(serialized: str, found_by: Mapping[str, Any]) -> dict[str, Ids]:
    """The views of which the database itself finds the rows."""
    try:
        return needed(json.loads(serialized), columns=found_by)
    except RecursionError:
        raise SqlRefused(hint="the SQL is nested too deep") from None


def _to_copy(views: Iterable[Node], tables: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Of each table that views read the columns that they read, with their types."""
    found: dict[str, dict[str, str]] = {}
    for view in views:
        for table, columns in tables_of(view, tables=tables).items():
            found.setdefault(table, {}).update({name: tables[table][name] for name in columns})
    return found


def _select_list(types: Mapping[str, str]) -> str:
    """Columns of a table; the databases have claims as numbers."""
    return ", ".join(
        f'CAST("{name}" AS BOOLEAN) AS "{name}"' if type_ == "BOOLEAN" else f'"{name}"'
        for name, type_ in types.items()
    )


def _load(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    """Load the extension that came in a wheel.

    Raises:
        StoreUnreadable: its wheel is not installed.
    """
    try:
        wheel = import_module(f"duckdb_extension_{kind}_scanner").__file__
    except ModuleNotFoundError as missing:
        raise StoreUnreadable(hint=f"pip install {str(missing.name).replace('_', '-')}") from missing
    assert wheel is not None
    (library,) = Path(wheel).parent.glob(f"extensions/*/{kind}_scanner.duckdb_extension")
    connection.execute(f"LOAD '{_quoted(str(library))}'")
    connection.execute("SET allow_unsigned_extensions = false")


def _attach(connection: duckdb.DuckDBPyConnection, kind: str, where: str) -> None:
    """Attach a database, read-only."""
    if kind == "sqlite":
        # Otherwise each thread of a scan reads through a connection, and as of a commit, of its own.
        connection.execute("SET sqlite_disable_multithreaded_scans = true")
    connection.execute(f"ATTACH '{_quoted(where)}' AS store (TYPE {kind}, READ_ONLY)")


class _Copy:
    """Rows of one project, out of the attached database."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, is_postgresql: bool, project: str) -> None:
        self._connection = connection
        self._is_postgresql = is_postgresql
        self._project = project
        found = self.rows("SELECT project_id FROM {project} WHERE name = " + f"'{_quoted(project)}'")
        self.project_id = int(found[0][0]) if found else -1

    def table(self, name: str, columns: str, *, as_: str | None = None) -> None:
        """Copy columns of a table, given as a SELECT list."""
        select = f"SELECT {columns} FROM {{{name}}} WHERE project_id = {self.project_id}"
        self._connection.execute(f"CREATE OR REPLACE TABLE {as_ or name} AS {self._source(select)}")

    def view(self, name: str, types: Mapping[str, Any], ids: Ids | None) -> None:
        """Copy columns of the rows of a view that have these ids; None: of all of the project."""
        listed = ", ".join(f'"{column}" {type_}' for column, type_ in types.items())
        self._connection.execute(f"CREATE TABLE {name} ({listed})")
        if ids is not None and not ids.values:
            return
        columns = ", ".join(self._exact(column, str(type_)) for column, type_ in types.items())
        project, *marks = (self._mark(number) for number in range(1, len(ids.values if ids else ()) + 2))
        where = f"project = {project}" + (f" AND {ids.column} IN ({', '.join(marks)})" if ids else "")
        query = "postgres_query" if self._is_postgresql else "sqlite_query"
        self._connection.execute(
            f"INSERT INTO {name} FROM {query}('store', ?, params := row(?{', ?' * len(marks)}))",
            [f"SELECT {columns} FROM {name} WHERE {where}", self._project, *(ids.values if ids else ())],
        )

    def rows(self, select: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(self._source(select)).fetchall()

    def _exact(self, column: str, type_: str) -> str:
        # The scanner of SQLite gives what a query finds as text, of which SQLite writes 15 digits.
        if self._is_postgresql or type_ != "DOUBLE":
            return f'"{column}"'
        return f'CASE WHEN "{column}" IS NOT NULL THEN printf(\'%!.20g\', "{column}") END'

    def _mark(self, number: int) -> str:
        return f"${number}" if self._is_postgresql else f"?{number}"

    def _source(self, select: str) -> str:
        """A SELECT over the store, in which its tables stand in braces."""
        if not self._is_postgresql:
            return re.sub(r"\{(\w+)\}", r"store.\1", select)
        # Run by the server itself: it knows its indexes and partitions.
        return f"FROM postgres_query('store', '{_quoted(re.sub(r'[{}]', '', select))}')"


def _reads_texts(sql: str) -> bool:
    return _TEXT in sql.lower()


def _declare_texts(connection: duckdb.DuckDBPyConnection) -> dict[int | None, bytes | None]:
    """The function that reads the bodies of contents, of which there are none yet; its dictionaries."""
    dictionaries: dict[int | None, bytes | None] = {None: None}
    connection.create_function(
        "text_of_body",
        partial(_text_of_body, dictionaries),
        ["VARCHAR", "BLOB", "BIGINT"],
        "VARCHAR",
        type=PythonUDFType.ARROW,
        null_handling=FunctionNullHandling.SPECIAL,
    )
    connection.execute(
        "CREATE TABLE content_body (content_id BIGINT, codec VARCHAR, data BLOB, dictionary_key BIGINT)"
    )
    connection.execute(
        f"CREATE MACRO {_TEXT}(id) AS (SELECT text_of_body(b.codec, b.data, b.dictionary_key) "
        "FROM content_body b WHERE b.content_id = id)"
    )
    return dictionaries


def _copy_texts(copy: _Copy, dictionaries: dict[int | None, bytes | None], key_bits: int) -> None:
    """The bodies of contents, and what they were compressed with."""
    first = copy.project_id << key_bits
    copy.table("content", f"{first} | key AS content_id, codec, data, dictionary_key", as_="content_body")
    found = copy.rows(f"SELECT key, data FROM {{dictionary}} WHERE project_id = {copy.project_id}")
    dictionaries.update(dict(found))


def _text_of_body(
    dictionaries: Mapping[int | None, bytes | None], codecs: Any, bodies: Any, keys: Any
) -> Any:
    # Most queries read no text, and pay nothing for it.
    import pyarrow as pa

    from tracestore.store.codec import decompress
    from tracestore.store.text import readable

    rows = zip(codecs.to_pylist(), bodies.to_pylist(), keys.to_pylist(), strict=True)
    return pa.array(
        [
            None if data is None else readable(decompress(data, codec=codec, dictionary=dictionaries[key]))
            for codec, data, key in rows
        ],
        pa.string(),
    )


def _open_parquet(
    connection: duckdb.DuckDBPyConnection, source: Mapping[str, Any], *, sql: str, serialized: str
) -> None:
    """The views of a folder, read where they lie."""
    folder = Path(source["where"]).absolute()
    found = {path.name for path in folder.glob("*/") if _PLAIN_NAME.fullmatch(path.name)}
    views = {name for name in found if any((folder / name).rglob("*.parquet"))}
    if not views:
        raise StoreUnreadable(folder=str(folder), hint="write it with `tracestore db parquet`")
    for name in check(serialized, views=views):
        files_ = _quoted(str(folder / name / "**" / "*.parquet"))
        connection.execute(
            f"CREATE VIEW {name} AS SELECT * FROM "
            f"read_parquet('{files_}', union_by_name = true, hive_partitioning = false) "
            f"WHERE project = '{_quoted(source['project'])}'"
        )
    connection.execute(f"SET allowed_directories = ['{_quoted(str(folder))}']")


def _open_shards(
    connection: duckdb.DuckDBPyConnection, source: Mapping[str, Any], *, sql: str, serialized: str
) -> None:
    """The samples of an export. Only the columns that a query needs are read from the files."""
    from pyarrow import dataset

    folder = Path(source["where"])
    found = sorted(map(str, folder.rglob("*.arrow")))
    if not found:
        raise StoreUnreadable(folder=str(folder), hint="name a folder that `tracestore export` wrote")
    check(serialized, views={"samples"})
    connection.register("shard_rows", dataset.dataset(found, format="ipc"))
    connection.execute(_SAMPLES)


_OPENERS = {
    "sqlite": _open_database,
    "postgresql": _open_database,
    "parquet": _open_parquet,
    "shards": _open_shards,
}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _quoted(text: str) -> str:
    return text.replace("'", "''")


if __name__ == "__main__":
    sys.exit(main())
