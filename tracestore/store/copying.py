"""All rows of one database -> another, empty one: how a store gets from PostgreSQL into a file, and back.

Both have the same tables and hold the same values in them, escaped text as it is. Foreign keys are looked at
when all rows are there: tables refer to each other in circles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, ColumnClause, Connection, Table, Text, insert, select
from sqlalchemy import column as sql_column
from sqlalchemy import table as sql_table

from tracestore.store import tables as t
from tracestore.store.types import ExactText

_AT_ONCE = 2000

Heard = Callable[[int, int], None]
"""Told (done, all there is) of whatever is counted."""


def copy_rows(source: Connection, target: Connection, *, heard: Heard) -> None:
    """Copy every row of a database at this code's revision into one with the same empty schema."""
    tables = list(t.metadata.tables.values())
    for done, table in enumerate(tables):
        heard(done, len(tables))
        _copy_table(source, target, table)
    heard(len(tables), len(tables))


def _copy_table(source: Connection, target: Connection, table: Table) -> None:
    plain = sql_table(table.name, *map(_plain, table.columns))
    rows = source.execute(select(plain).execution_options(yield_per=_AT_ONCE))
    for some in rows.mappings().partitions():
        target.execute(insert(plain), [dict(row) for row in some])


def _plain(column: Column[Any]) -> ColumnClause[Any]:
    """The column as the database holds it."""
    return sql_column(column.name, Text() if isinstance(column.type, ExactText) else column.type)
