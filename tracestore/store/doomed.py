"""Rows that wait for the sweep: what erased rows referred to, and perhaps nothing else does.

    erase    notes every row that it takes a reference from                        (a step of the committer)
    ingest   strikes off what it looks up, since it may refer to it from now on    (the committer)
    sweep    finds the rest that nothing refers to, and takes it away              (a reader, then a step)

So a reference that comes between the search of the sweep and its step is never to a row that went: no
process remembers a row from before it was noted, and all that is looked up later is struck off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from typing import NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Table, exists, insert, literal, select

from tracestore.store import tables as t
from tracestore.store.chunks import chunks

SWEPT = (t.call, t.agent, t.snapshot, t.candidate_set, t.episode, t.task_group, t.content)
"""Tables whose rows are kept by what refers to them: contents, and placeholders of everything else."""


class Reference(NamedTuple):
    """A column that refers to rows of a table."""

    table: Table
    column: Column[int]


@cache
def references_to(target: Table) -> tuple[Reference, ...]:
    """Every column of the schema that refers to a table."""
    return tuple(
        Reference(table, table.c[list(constraint.column_keys)[-1]])
        for table in t.metadata.tables.values()
        for constraint in table.foreign_key_constraints
        if constraint.referred_table is target
    )


@cache
def references_of(table: Table) -> tuple[tuple[Column[int], Table], ...]:
    """Columns of a table that refer to rows which are swept."""
    return tuple(
        (one.column, target) for target in SWEPT for one in references_to(target) if one.table is table
    )


def note(
    connection: Connection, column: Column[int], target: Table, *where: ColumnElement[bool], pos: int
) -> None:
    """Note, at a position, the rows that a column refers to; `where` names the rows of its table."""
    table, doomed = column.table, t.doomed.c
    is_noted = exists().where(
        doomed.project_id == table.c.project_id, doomed.name == target.name, doomed.key == column
    )
    rows = select(table.c.project_id, literal(target.name), column, literal(pos)).where(
        *where, column.is_not(None), ~is_noted
    )
    connection.execute(insert(t.doomed).from_select(["project_id", "name", "key", "pos"], rows.distinct()))


def rescue(connection: Connection, table: Table, keys: Collection[int], *, project_id: int) -> None:
    """Strike off rows of a table that something may refer to from now on."""
    doomed = t.doomed.c
    for chunk in chunks(sorted(keys)):
        this = (doomed.project_id == project_id, doomed.name == table.name, doomed.key.in_(chunk))
        connection.execute(t.doomed.delete().where(*this))


def waiting(connection: Connection, project_id: int, target: Table) -> tuple[set[int], set[int]]:
    """Keys of the noted rows of a table that nothing refers to, and of those that something does.

    Walks once through every table that may refer to it.
    """
    doomed = t.doomed.c
    noted = select(doomed.key).where(doomed.project_id == project_id, doomed.name == target.name)
    noted_keys = set(connection.execute(noted).scalars())
    alive = set(_alive(connection, project_id, target)) if noted_keys else set()
    return noted_keys - alive, alive


def _alive(connection: Connection, project_id: int, target: Table) -> Iterator[int]:
    doomed = t.doomed.c
    noted = select(doomed.key).where(doomed.project_id == project_id, doomed.name == target.name)
    for table, column in references_to(target):
        here = select(column).where(table.c.project_id == project_id, column.in_(noted)).distinct()
        yield from connection.execute(here).scalars()
    if target is not t.content:
        has_come = select(target.c.key).where(
            target.c.project_id == project_id, target.c.key.in_(noted), ~target.c.is_placeholder
        )
        yield from connection.execute(has_come).scalars()
