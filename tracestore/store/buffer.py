"""Rows of one transaction, gathered and written table by table, what is referred to before what refers.

A row that changes before it is written costs nothing. Foreign keys are deferred, so any order would be right;
but while a reference of a SQLite transaction is open, every insert into a table that others refer to looks
through all of them for it. So there references to rows that come later are filled in afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache, lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import Boolean, Connection, Dialect, LargeBinary, Table, bindparam
from sqlalchemy.types import TypeEngine

from tracestore.store import tables as t
from tracestore.store.copy import copy_rows
from tracestore.store.types import ExactText, escape

Key = Any
"""Primary key without project_id: the one value of it, or a tuple."""


class Buffer:
    def __init__(self, project_id: int) -> None:
        self._project_id = project_id
        self._inserts: dict[Table, dict[Key, dict[str, Any]]] = defaultdict(dict)
        self._updates: dict[Table, dict[Key, dict[str, Any]]] = defaultdict(dict)
        self._deletes: dict[Table, set[Key]] = defaultdict(set)

    def insert(self, table: Table, row: dict[str, Any]) -> None:
        """A new row; columns left out are NULL."""
        self._inserts[table][_key_of(table)(row)] = row

    def update(self, table: Table, key: int, values: Mapping[str, Any]) -> None:
        """New values of a row known by its `key`, written or not."""
        fresh = self._inserts[table].get(key)
        if fresh is not None:
            fresh.update(values)
        else:
            self._updates[table].setdefault(key, {}).update(values)

    def replace(
        self, table: Table, key: Key, row: dict[str, Any] | None, *, owner: tuple[Table, int]
    ) -> None:
        """The row at a key, whatever stood there before; None: no row.

        Args:
            owner: the row it belongs to. Where that is not written yet, nothing stood there.
        """
        if self.fresh(*owner) is None:
            self._deletes[table].add(key)
        if row is None:
            self._inserts[table].pop(key, None)
        else:
            self._inserts[table][key] = row

    def delete(self, table: Table, keys: Iterable[Key]) -> None:
        """Rows that are written, by their primary keys."""
        self._deletes[table].update(keys)

    def fresh(self, table: Table, key: int) -> dict[str, Any] | None:
        """A row that is not written yet."""
        return self._inserts[table].get(key)

    def pending(self, table: Table, key: int) -> Mapping[str, Any] | None:
        """What is gathered of a row: all of it, its changes, or nothing."""
        return self._inserts[table].get(key) or self._updates[table].get(key)

    def flush(self, connection: Connection) -> None:
        """Write everything gathered."""
        for table, keys in self._deletes.items():
            self._flush_deletes(connection, table, sorted(keys))
        for table in sorted(self._inserts, key=_place_in_order):
            rows = self._inserts[table]
            if rows:
                if connection.dialect.name == "sqlite":
                    self._hold_back(table, rows)
                self._flush_inserts(connection, table, rows.values())
        for table, changes in self._updates.items():
            self._flush_updates(connection, table, changes)
        self._inserts.clear()
        self._updates.clear()
        self._deletes.clear()

    def _hold_back(self, table: Table, rows: dict[Key, dict[str, Any]]) -> None:
        """Turn references to rows that are not written yet into updates."""
        for column, target in _later_references(table):
            waiting = self._inserts.get(target)
            if not waiting:
                continue
            written: set[Key] = set()
            for key, row in rows.items():
                value = row.get(column)
                if value is not None and value in waiting and value not in written:
                    self._updates[table].setdefault(key, {})[column] = value
                    row[column] = None
                if target is table:
                    written.add(key)

    def _flush_inserts(self, connection: Connection, table: Table, rows: Collection[dict[str, Any]]) -> None:
        """Write new rows: on PostgreSQL by COPY, on SQLite those with the same columns together.

        There columns without a value are not named: Python's SQLite driver takes longer to bind a NULL than
        SQLite takes to store an integer. For the same reason SQLAlchemy does not make the parameters.
        """
        is_postgresql = connection.dialect.name == "postgresql"
        alike: Mapping[tuple[str, ...], Collection[dict[str, Any]]]
        if is_postgresql or _refers_to_itself(table):
            # In the order in which they came, so that what a row refers to stands before it.
            alike = {tuple(sorted(set(chain.from_iterable(rows)))): rows}
        else:
            alike = _by_columns(rows)
        for names, some in alike.items():
            insert = _insert_of(table, names, connection.dialect)
            parameters = insert.parameters(some, self._project_id)
            # One row is sooner there by INSERT; from two on COPY takes less of both processes' time.
            if is_postgresql and len(parameters) > 1:
                copy_rows(connection, table, (*names, "project_id"), parameters)
            else:
                connection.exec_driver_sql(insert.sql, parameters)

    def _flush_deletes(self, connection: Connection, table: Table, keys: list[Key]) -> None:
        names = _key_columns(table)
        this = (table.c[name] == bindparam(f"this_{name}") for name in names)
        statement = table.delete().where(table.c.project_id == self._project_id, *this)
        places = [f"this_{name}" for name in names]
        whole = keys if len(places) > 1 else [(key,) for key in keys]
        connection.execute(statement, [dict(zip(places, key, strict=True)) for key in whole])

    def _flush_updates(
        self, connection: Connection, table: Table, changes: Mapping[Key, Mapping[str, Any]]
    ) -> None:
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
        for key, values in changes.items():
            row = {f"new_{name}": value for name, value in values.items()}
            alike[tuple(values)].append({**row, "this_key": key})
        for names, rows in alike.items():
            statement = (
                table.update()
                .where(table.c.project_id == self._project_id, table.c.key == bindparam("this_key"))
                .values({name: bindparam(f"new_{name}") for name in names})
            )
            connection.execute(statement, rows)


_REFERRED_TO = (
    *(t.field_set, t.dictionary, t.content, t.blob, t.task_group, t.episode, t.agent, t.snapshot),
    *(t.token_run, t.node, t.call, t.completion, t.context_edit, t.candidate_set, t.candidate_selection),
)
_ORDER = {table: place for place, table in enumerate(_REFERRED_TO)}


def _place_in_order(table: Table) -> int:
    return _ORDER.get(table, len(_ORDER))


@cache
def _later_references(table: Table) -> tuple[tuple[str, Table], ...]:
    """Columns of a table that others refer to which refer to it, or to one that is written after it."""
    found = []
    for constraint in table.foreign_key_constraints:
        column, target = list(constraint.column_keys)[-1], constraint.referred_table
        if table in _ORDER and _place_in_order(target) >= _ORDER[table]:
            found.append((column, target))
    return tuple(found)


@cache
def _refers_to_itself(table: Table) -> bool:
    return any(constraint.referred_table is table for constraint in table.foreign_key_constraints)


@cache
def _key_columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key.columns if column.name != "project_id")


@cache
def _key_of(table: Table) -> Callable[[Mapping[str, Any]], Key]:
    return itemgetter(*_key_columns(table))


def _by_columns(rows: Iterable[dict[str, Any]]) -> Mapping[tuple[str, ...], Collection[dict[str, Any]]]:
    """Rows by the columns in which they have a value; those without one are left out."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if None in row.values():
            row = {name: value for name, value in row.items() if value is not None}
        alike[tuple(row)].append(row)
    return alike


class _Insert(NamedTuple):
    """The statement that inserts rows of some columns and `project_id`, in this order."""

    sql: str
    parameters: Callable[[Iterable[dict[str, Any]], int], list[tuple[Any, ...]]]
    """(rows, project_id) -> the values, as the driver takes them."""


@lru_cache(maxsize=1024)
def _insert_of(table: Table, names: tuple[str, ...], dialect: Dialect) -> _Insert:
    quote = dialect.identifier_preparer.quote
    mark = "?" if dialect.positional else "%s"
    columns = ", ".join(map(quote, (*names, "project_id")))
    sql = f"INSERT INTO {quote(table.name)} ({columns}) VALUES ({', '.join([mark] * (len(names) + 1))})"
    return _Insert(sql, _parameters_of(table, names, dialect))


def _parameters_of(
    table: Table, names: tuple[str, ...], dialect: Dialect
) -> Callable[[Iterable[dict[str, Any]], int], list[tuple[Any, ...]]]:
    """Written out and compiled: it runs for every row, and what it asks is known beforehand."""
    processes = {
        f"process_{place}": _process(table.c[name].type, dialect) for place, name in enumerate(names)
    }
    may_lack_some = dialect.name == "postgresql" or _refers_to_itself(table)
    values = []
    for place, name in enumerate(names):
        value = f"row.get({name!r})" if may_lack_some else f"row[{name!r}]"
        if processes[f"process_{place}"] is not None:
            value = f"(None if (value := {value}) is None else process_{place}(value))"
        values.append(value)
    made: dict[str, Any] = processes
    source = f"def parameters(rows, project_id): return [({', '.join(values)}, project_id) for row in rows]"
    exec(compile(source, f"<rows of {table.name}>", "exec"), made)
    parameters: Callable[[Iterable[dict[str, Any]], int], list[tuple[Any, ...]]] = made["parameters"]
    return parameters


def _process(type_: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """What makes a value of a column one that the driver takes."""
    if isinstance(type_, ExactText):
        return escape
    if dialect.name == "sqlite":
        # The driver looks for an adapter of every value that is not exactly an int, float, str or bytearray.
        if isinstance(type_, LargeBinary):
            return bytearray
        if isinstance(type_, Boolean):
            return int
    return type_.dialect_impl(dialect).bind_processor(dialect)
