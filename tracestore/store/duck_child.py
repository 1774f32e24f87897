"""The child of `duck.run_sql`: request on stdin, Arrow on stdout, an error as one JSON line on stderr.

Nothing here may open the database through sqlite3. Every query pays for what this module imports, so what is
known of the schema comes with the request.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from importlib.resources import as_file, files
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from tracestore.errors import TracestoreError
from tracestore.store.codec import decompress
from tracestore.store.sql_guard import SqlRefused, check

_TEXT = "message_text"


def main() -> int:
    request = json.load(sys.stdin)
    try:
        table = answer(**request)
    except (TracestoreError, duckdb.Error) as error:
        problem = {"refused": isinstance(error, SqlRefused), "values": {"error": str(error)}, "hint": None}
        if isinstance(error, TracestoreError):
            problem |= {"values": error.values, "hint": error.hint}
        sys.stderr.write(json.dumps(problem) + "\n")
        return 1
    with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as writer:
        writer.write_table(table)
    return 0


def answer(
    *,
    file: str,
    project: str,
    sql: str,
    views: Mapping[str, str],
    tables: Mapping[str, str],
    key_bits: int,
    limit_rows: int,
    memory_mb: int,
) -> pa.Table:
    """At most `limit_rows` + 1 rows of one SELECT.

    Args:
        views: the statement that makes each view.
        tables: the columns to copy of each table, as a SELECT list.
        key_bits: bits of a key below the project's number.
    """
    connection = duckdb.connect()
    connection.execute("SET autoinstall_known_extensions = false")
    connection.execute("SET autoload_known_extensions = false")
    connection.execute(f"SET memory_limit = '{int(memory_mb)}MB'")
    connection.execute("SET threads = 2")
    connection.execute("SET max_temp_directory_size = '0KB'")
    serialized = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchone()
    assert serialized is not None
    used = check(serialized[0], views=views)
    read = _tables_of(views[name] for name in used)
    columns = {table: tables[table] for table in tables if table in read}
    _copy(connection, file, project, columns, key_bits=key_bits if _TEXT in sql.lower() else None)
    for name in used:
        connection.execute(views[name])
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    reader = connection.execute(sql).to_arrow_reader(1024)
    return _first(reader, limit_rows + 1)


def _first(reader: pa.RecordBatchReader, count: int) -> pa.Table:
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch.slice(0, count))
        count -= batches[-1].num_rows
        if count <= 0:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _tables_of(statements: Iterable[str]) -> set[str]:
    """The tables that views read, among other names."""
    names = {name for sql in statements for name in re.findall(r"(?:FROM|JOIN)\s+(\w+)", sql)}
    return names | {"project"}


def _copy(
    connection: duckdb.DuckDBPyConnection,
    file: str,
    project: str,
    tables: Mapping[str, str],
    *,
    key_bits: int | None,
) -> None:
    """Copy narrow columns of one project, and with `key_bits` its texts, and let go of the file."""
    extension = files("duckdb_extension_sqlite_scanner") / "extensions"
    with as_file(extension) as folder:
        (library,) = folder.glob("*/sqlite_scanner.duckdb_extension")
        connection.execute(f"LOAD '{_quoted(str(library))}'")
    connection.execute(f"ATTACH '{_quoted(file)}' AS store (TYPE sqlite, READ_ONLY)")
    # One transaction: every table is copied as of the same commit.
    connection.execute("BEGIN")
    found = connection.execute("SELECT project_id FROM store.project WHERE name = ?", [project]).fetchone()
    number = -1 if found is None else int(found[0])
    for table, columns in tables.items():
        source = f"SELECT {columns} FROM store.{table} WHERE project_id = {number}"
        connection.execute(f"CREATE TABLE {table} AS {source}")
    if key_bits is not None:
        _copy_texts(connection, number, key_bits)
    connection.execute("COMMIT")
    connection.execute("DETACH store")


def _copy_texts(connection: duckdb.DuckDBPyConnection, number: int, key_bits: int) -> None:
    """The bodies of contents, and the function that reads them."""
    connection.execute(
        "CREATE TABLE content_body AS "
        f"SELECT {number << key_bits} | key AS content_id, codec, data, dictionary_key "
        f"FROM store.content WHERE project_id = {number}"
    )
    sql = f"SELECT key, data FROM store.dictionary WHERE project_id = {number}"
    dictionaries: dict[int | None, bytes | None] = {None: None, **dict(connection.execute(sql).fetchall())}
    connection.create_function(
        "text_of_body",
        partial(_text_of_body, dictionaries),
        ["VARCHAR", "BLOB", "BIGINT"],
        "VARCHAR",
        type=PythonUDFType.ARROW,
        null_handling=FunctionNullHandling.SPECIAL,
    )
    connection.execute(
        f"CREATE MACRO {_TEXT}(id) AS (SELECT text_of_body(b.codec, b.data, b.dictionary_key) "
        "FROM content_body b WHERE b.content_id = id)"
    )


def _text_of_body(
    dictionaries: Mapping[int | None, bytes | None], codecs: Any, bodies: Any, keys: Any
) -> pa.Array:
    # Most queries read no text, and pay nothing for it.
    from tracestore.store.text import readable

    rows = zip(codecs.to_pylist(), bodies.to_pylist(), keys.to_pylist(), strict=True)
    return pa.array(
        [
            None if data is None else readable(decompress(data, codec=codec, dictionary=dictionaries[key]))
            for codec, data, key in rows
        ],
        pa.string(),
    )


def _quoted(text: str) -> str:
    return text.replace("'", "''")


if __name__ == "__main__":
    sys.exit(main())
