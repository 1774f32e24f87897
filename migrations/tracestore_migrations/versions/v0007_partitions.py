"""On PostgreSQL the large tables in parts by project; on SQLite nothing changes.

Table by table: its rows are copied into a new one, batch by batch, which then takes its place with the same
checks, keys, indexes and references.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

from tracestore.store.schema import view_statements
from tracestore_migrations.steps import Batch, Marker, Step, copy_rows, once

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_LARGE = ("raw_event", "edge", "tool_call", "version_run", "token_run")
_PARTITIONS = 8


def _on_postgresql(step: Step) -> Step:
    def run(connection: sa.Connection, marker: Marker | None, limit: int) -> Batch:
        return (
            step.run(connection, marker, limit) if connection.dialect.name == "postgresql" else Batch(None, 0)
        )

    return step._replace(run=run)


def _steps(table: str) -> Iterator[Step]:
    yield once(f"begin {table}", partial(_begin, table))
    yield Step(f"copy {table}", partial(_copy, table))
    yield once(f"end {table}", partial(_end, table))


def _begin(table: str) -> None:
    op.execute(
        f"CREATE TABLE {table}_in_parts (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        " PARTITION BY HASH (project_id)"
    )
    for number in range(_PARTITIONS):
        where = f"WITH (MODULUS {_PARTITIONS}, REMAINDER {number})"
        op.execute(f"CREATE TABLE {table}_{number} PARTITION OF {table}_in_parts FOR VALUES {where}")


def _copy(table: str, connection: sa.Connection, marker: Marker | None, limit: int) -> Batch:
    found = sa.inspect(connection)
    columns = {column["name"]: column["name"] for column in found.get_columns(table)}
    key = found.get_pk_constraint(table)["constrained_columns"]
    return copy_rows(table, into=f"{table}_in_parts", columns=columns, key=key).run(connection, marker, limit)


def _end(table: str) -> None:
    connection = op.get_bind()
    references = _rows(connection, _REFERENCES, table=table)
    made = [
        *(
            f"ALTER TABLE {table} ADD CONSTRAINT {key.name} {key.definition}"
            for key in _rows(connection, _KEYS, table=table)
        ),
        *(index.definition for index in _rows(connection, _INDEXES, table=table)),
        *(f"ALTER TABLE {one.owner} ADD CONSTRAINT {one.name} {one.definition}" for one in references),
    ]
    _run(f"ALTER TABLE {one.owner} DROP CONSTRAINT {one.name}" for one in references)
    # They name the table that goes; each upgrade makes them anew.
    _run(f"DROP VIEW IF EXISTS {view}" for view in view_statements())
    _run([f"DROP TABLE {table}", f"ALTER TABLE {table}_in_parts RENAME TO {table}", *made])


def _run(statements: Iterable[str]) -> None:
    for statement in statements:
        op.execute(sa.text(statement.replace(":", r"\:")))


def _rows(connection: sa.Connection, sql: str, **values: object) -> Sequence[Any]:
    return connection.execute(sa.text(sql), values).all()


STEPS = tuple(_on_postgresql(step) for table in _LARGE for step in _steps(table))

_REFERENCES = """
SELECT k.conrelid::regclass::text AS owner, quote_ident(k.conname) AS name,
       pg_get_constraintdef(k.oid) AS definition
  FROM pg_constraint k JOIN pg_class a ON a.oid = k.conrelid JOIN pg_class b ON b.oid = k.confrelid
 WHERE k.contype = 'f' AND k.connamespace = current_schema()::regnamespace
   AND k.conparentid = 0 AND (a.relname = :table OR b.relname = :table)
 ORDER BY 1, 2
"""
_KEYS = """
SELECT quote_ident(k.conname) AS name, pg_get_constraintdef(k.oid) AS definition
  FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
 WHERE c.relname = :table AND k.connamespace = current_schema()::regnamespace AND k.contype IN ('p', 'u')
 ORDER BY 1
"""
_INDEXES = """
SELECT pg_get_indexdef(i.indexrelid) AS definition
  FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
 WHERE c.relname = :table AND c.relnamespace = current_schema()::regnamespace
   AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.indexrelid AND k.contype IN ('p', 'u'))
 ORDER BY 1
"""
