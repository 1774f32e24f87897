"""Rows -> a table of PostgreSQL by COPY: one statement and one stream, however many rows.

They go straight into the table. A temporary one, from which INSERT ... ON CONFLICT takes them, costs a fifth
more of the server's time and guards against nothing: who writes rows of a project holds the lock of the
project's row (`Committer._begin`), so no other transaction is writing the same contents, in whatever order,
and a row that is there twice is a fault that has to be refused (benchmarks/RESULTS.md, "PostgreSQL").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Connection,
    Dialect,
    Double,
    Engine,
    LargeBinary,
    Table,
    Text,
    event,
)
from sqlalchemy.types import TypeDecorator, TypeEngine

_COPIED = "tracestore_copied"
_TYPES: Mapping[type[TypeEngine[Any]], str] = {
    BigInteger: "int8",
    Boolean: "bool",
    Double: "float8",
    LargeBinary: "bytea",
    Text: "text",
}
"""What PostgreSQL calls the types of our columns. COPY in binary makes no value into another type."""


class _Copy(NamedTuple):
    sql: str
    types: tuple[str, ...]


def listen(engine: Engine) -> None:
    """Let `copy_rows` work on connections of a PostgreSQL engine.

    SQLAlchemy carries the statement out by us, so what fails there is told like any other failure.
    """
    event.listen(engine, "do_executemany", _on_executemany)


def copy_rows(
    connection: Connection, table: Table, names: tuple[str, ...], rows: Sequence[tuple[Any, ...]]
) -> None:
    """Write rows (two or more) that hold values of these columns, in this order, as the driver takes them."""
    copy = _copy_of(table, names, connection.dialect)
    connection.exec_driver_sql(copy.sql, rows, execution_options={_COPIED: copy.types})


def _on_executemany(cursor: Any, statement: str, rows: Sequence[Any], context: Any) -> bool:
    types = context.execution_options.get(_COPIED)
    if types is None:
        return False
    with cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)
    return True


@lru_cache(maxsize=1024)
def _copy_of(table: Table, names: tuple[str, ...], dialect: Dialect) -> _Copy:
    quote = dialect.identifier_preparer.quote
    columns = ", ".join(map(quote, names))
    sql = f"COPY {quote(table.name)} ({columns}) FROM STDIN (FORMAT BINARY)"
    return _Copy(sql, tuple(_type_of(table.c[name].type) for name in names))


def _type_of(type_: TypeEngine[Any]) -> str:
    stored = type_.impl_instance if isinstance(type_, TypeDecorator) else type_
    return _TYPES[type(stored)]
