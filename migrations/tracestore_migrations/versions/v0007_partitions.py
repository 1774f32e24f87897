"""On PostgreSQL the large tables in parts by project; on SQLite nothing changes.

Table by table: its rows move into a new one with the same columns, checks, keys, indexes and references.
References to it wait until it is there; all are checked once, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LARGE = ("raw_event", "edge", "tool_call", "version_run", "token_run")
_PARTITIONS = 8


class _Reference(NamedTuple):
    table: str
    name: str
    definition: str


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name != "postgresql":
        return
    # What earlier revisions wrote is checked now: with checks in wait no table can change.
    connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
    # They name the tables that go; each upgrade makes them anew.
    for view in _rows(connection, "SELECT viewname FROM pg_views WHERE schemaname = current_schema()"):
        connection.exec_driver_sql(f"DROP VIEW {view[0]} CASCADE")
    references = [_Reference(*row) for row in _rows(connection, _REFERENCES, tables=list(_LARGE))]
    for one in references:
        connection.exec_driver_sql(f"ALTER TABLE {one.table} DROP CONSTRAINT {one.name}")
    for table in _LARGE:
        for statement in _in_parts(connection, table):
            connection.exec_driver_sql(statement)
    for one in references:
        connection.exec_driver_sql(f"ALTER TABLE {one.table} ADD CONSTRAINT {one.name} {one.definition}")
    connection.exec_driver_sql("SET CONSTRAINTS ALL DEFERRED")


def _in_parts(connection: sa.Connection, table: str) -> Iterator[str]:
    keys = _rows(connection, _KEYS, table=table)
    indexes = _rows(connection, _INDEXES, table=table)
    yield f"ALTER TABLE {table} RENAME TO whole_{table}"
    yield (
        f"CREATE TABLE {table} (LIKE whole_{table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        " PARTITION BY HASH (project_id)"
    )
    for number in range(_PARTITIONS):
        where = f"WITH (MODULUS {_PARTITIONS}, REMAINDER {number})"
        yield f"CREATE TABLE {table}_{number} PARTITION OF {table} FOR VALUES {where}"
    yield f"INSERT INTO {table} SELECT * FROM whole_{table}"
    yield f"DROP TABLE whole_{table}"
    for name, definition in keys:
        yield f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}"
    for (definition,) in indexes:
        yield definition


def _rows(connection: sa.Connection, sql: str, **values: object) -> Sequence[Any]:
    return connection.execute(sa.text(sql), values).all()


_REFERENCES = """
SELECT k.conrelid::regclass::text, quote_ident(k.conname), pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_class a ON a.oid = k.conrelid JOIN pg_class b ON b.oid = k.confrelid
 WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace
   AND (a.relname = ANY(:tables) OR b.relname = ANY(:tables))
 ORDER BY 1, 2
"""
_KEYS = """
SELECT quote_ident(k.conname), pg_get_constraintdef(k.oid)
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
 WHERE c.relname = :table AND k.connamespace = current_schema()::regnamespace AND k.contype IN ('p', 'u')
 ORDER BY 1
"""
_INDEXES = """
SELECT pg_get_indexdef(i.indexrelid)
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 WHERE c.relname = :table AND c.relnamespace = current_schema()::regnamespace
   AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u'))
 ORDER BY 1
"""
