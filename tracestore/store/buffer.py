"""Rows of one transaction, gathered and written table by table, what is referred to before what refers.

A row that changes before it is written costs nothing. Foreign keys are deferred, so any order would be right;
but while a reference of a SQLite transaction is open, every insert into a table that others refer to looks
through all of them for it. So references to rows that come later are filled in afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, Table, bindparam

from tracestore.store import tables as t

Key = tuple[Any, ...]
"""Primary key without project_id."""


class Buffer:
    def __init__(self, project_id: int) -> None:
        self._project_id = project_id
        self._inserts: dict[Table, dict[Key, dict[str, Any]]] = defaultdict(dict)
        self._updates: dict[Table, dict[Key, dict[str, Any]]] = defaultdict(dict)
        self._deletes: dict[Table, set[Key]] = defaultdict(set)

    def insert(self, table: Table, row: dict[str, Any]) -> None:
        """A new row; columns left out are NULL."""
        self._inserts[table][tuple(row[name] for name in _key_columns(table))] = row

    def update(self, table: Table, key: int, values: Mapping[str, Any]) -> None:
        """New values of a row known by its `key`, written or not."""
        fresh = self._inserts[table].get((key,))
        if fresh is not None:
            fresh.update(values)
        else:
            self._updates[table].setdefault((key,), {}).update(values)

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

    def fresh(self, table: Table, key: int) -> dict[str, Any] | None:
        """A row that is not written yet."""
        return self._inserts[table].get((key,))

    def pending(self, table: Table, key: int) -> Mapping[str, Any] | None:
        """What is gathered of a row: all of it, its changes, or nothing."""
        return self._inserts[table].get((key,)) or self._updates[table].get((key,))

    def flush(self, connection: Connection) -> None:
        """Write everything gathered."""
        for table, keys in self._deletes.items():
            self._flush_deletes(connection, table, sorted(keys))
        for table in sorted(self._inserts, key=_place_in_order):
            rows = self._inserts[table]
            if rows:
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
                if value is not None and (value,) in waiting and (value,) not in written:
                    self._updates[table].setdefault(key, {})[column] = value
                    row[column] = None
                if target is table:
                    written.add(key)

    def _flush_inserts(self, connection: Connection, table: Table, rows: Collection[dict[str, Any]]) -> None:
        """Write new rows. SQLAlchemy takes longer to make parameters than SQLite takes to write them."""
        for row in rows:
            row["project_id"] = self._project_id
        insert = _insert_of(table, connection.dialect)
        named = set().union(*rows)
        unknown = (None,) * len(rows)
        columns: list[Sequence[Any]] = []
        for name, process in insert.columns:
            values = [row.get(name) for row in rows] if name in named else unknown
            if process is not None and values is not unknown:
                values = [None if value is None else process(value) for value in values]
            columns.append(values)
        parameters: list[Any] = list(zip(*columns, strict=True))
        if not insert.is_positional:
            names = [name for name, _ in insert.columns]
            parameters = [dict(zip(names, values, strict=True)) for values in parameters]
        connection.exec_driver_sql(insert.sql, parameters)

    def _flush_deletes(self, connection: Connection, table: Table, keys: list[Key]) -> None:
        names = _key_columns(table)
        this = (table.c[name] == bindparam(f"this_{name}") for name in names)
        statement = table.delete().where(table.c.project_id == self._project_id, *this)
        places = [f"this_{name}" for name in names]
        connection.execute(statement, [dict(zip(places, key, strict=True)) for key in keys])

    def _flush_updates(
        self, connection: Connection, table: Table, changes: Mapping[Key, Mapping[str, Any]]
    ) -> None:
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
        for (key,), values in changes.items():
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
def _key_columns(table: Table) -> tuple[str, ...]:
    return tuple(column.name for column in table.primary_key.columns if column.name != "project_id")


class _Insert(NamedTuple):
    """The statement that inserts whole rows."""

    sql: str
    columns: tuple[tuple[str, Callable[[Any], Any] | None], ...]
    """In the order of the parameters: the name, and what makes a value one that the driver takes."""
    is_positional: bool


@lru_cache(maxsize=256)
def _insert_of(table: Table, dialect: Dialect) -> _Insert:
    compiled = table.insert().compile(dialect=dialect)
    columns = []
    for name in compiled.positiontup or compiled.params:
        process = table.c[name].type.dialect_impl(dialect).bind_processor(dialect)
        columns.append((name, process))
    return _Insert(str(compiled), tuple(columns), compiled.positional)
