"""A migration in steps, of which those over many rows go batch by batch, and on from where they stood.

A module of `versions/` with `STEPS` is run by them, one without is one step: its `upgrade`. A step is called
until it has no marker left to give. Between two calls the transaction may end and the process may be killed:
the marker is kept in the same transaction as the rows, so each batch happens once. As many calls share a
transaction as touch `rows_at_once` rows together; a small database is upgraded in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection, text

ROWS_AT_ONCE = 50_000

Marker: TypeAlias = list[int | str]
"""The key of the last row that is done."""


class Batch(NamedTuple):
    """What one call of a step did."""

    marker: Marker | None
    """Where the next call goes on; None: that was all."""
    num_rows: int


class Step(NamedTuple):
    """One part of a migration."""

    name: str
    """Unique in its revision. It is kept in databases, so the name of a released step stays."""
    run: Callable[[Connection, Marker | None, int], Batch]
    """Takes the marker that the call before gave (None: this is the first) and how many rows it may touch."""


def once(name: str, do: Callable[[], None]) -> Step:
    """A step in one transaction, written with `alembic.op`: schema changes, tables that are never large."""

    def run(_connection: Connection, _marker: Marker | None, _limit: int) -> Batch:
        do()
        return Batch(None, 0)

    return Step(name, run)


def steps_of(module: ModuleType) -> Sequence[Step]:
    """The steps of a migration."""
    steps: Sequence[Step] | None = getattr(module, "STEPS", None)
    return (once("schema", module.upgrade),) if steps is None else steps


def copy_rows(table: str, *, into: str, columns: Mapping[str, str], key: Sequence[str]) -> Step:
    """Copy a table batch by batch, in the order of a key.

    Args:
        columns: column of `into` -> the SQL expression over `table` that gives its value.
        key: columns of `table` of numbers or text, unique together, NOT NULL, and an index in this order.
    """
    names, values = ", ".join(columns), ", ".join(columns.values())

    def run(connection: Connection, marker: Marker | None, limit: int) -> Batch:
        part = _Part(connection, table, key, marker, limit)
        done = connection.execute(
            text(
                f"INSERT INTO {into} ({names}) SELECT {values} FROM {table}{part.where} ORDER BY {part.key}"
            ),
            part.bounds,
        )
        return Batch(part.end, done.rowcount)

    return Step(f"copy {table} into {into}", run)


def delete_rows(table: str, *, where: str, key: Sequence[str]) -> Step:
    """Delete the rows of a table for which an SQL condition holds, batch by batch in the order of a key.

    Args:
        key: as of `copy_rows`. A batch is counted in rows that are looked at.
    """

    def run(connection: Connection, marker: Marker | None, limit: int) -> Batch:
        part = _Part(connection, table, key, marker, limit)
        condition = f"{part.where} AND ({where})" if part.where else f" WHERE {where}"
        done = connection.execute(text(f"DELETE FROM {table}{condition}"), part.bounds)
        return Batch(part.end, limit if part.end is not None else done.rowcount)

    return Step(f"delete from {table}", run)


class _Part:
    """The next rows of a table after a marker, as a condition with its values."""

    def __init__(
        self, connection: Connection, table: str, key: Sequence[str], marker: Marker | None, limit: int
    ) -> None:
        self.key = ", ".join(key)
        self.bounds: dict[str, int | str] = {}
        after = None if marker is None else f"({self.key}) > ({self._bound('after', marker)})"
        order = f"ORDER BY {self.key} LIMIT 1 OFFSET {limit - 1}"
        last = connection.execute(
            text(f"SELECT {self.key} FROM {table}{_where(after)} {order}"), self.bounds
        ).one_or_none()
        self.end: Marker | None = None if last is None else list(last)
        up_to = None if self.end is None else f"({self.key}) <= ({self._bound('last', self.end)})"
        self.where = _where(after, up_to)

    def _bound(self, name: str, values: Sequence[int | str]) -> str:
        """Placeholders of these values, which the statement is given with it."""
        named = {f"{name}_{number}": value for number, value in enumerate(values)}
        self.bounds |= named
        return ", ".join(f":{each}" for each in named)


def _where(*conditions: str | None) -> str:
    stated = [condition for condition in conditions if condition is not None]
    return f" WHERE {' AND '.join(stated)}" if stated else ""
