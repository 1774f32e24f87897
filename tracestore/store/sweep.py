"""Rows that nothing refers to any more -> nothing, in steps, after a deletion or a redaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Table, select

from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.doomed import SWEPT, rescue, waiting
from tracestore.store.query import find_project, snapshot
from tracestore.store.store import Store
from tracestore.store.transaction import Transaction


class Taken(NamedTuple):
    """What one step took."""

    rows: int
    contents: int
    """Of the rows."""


Counted = Callable[[Transaction, Taken], None]
"""Notes, in the transaction of each step, what it took, and that it took a commit position."""


def sweep(store: Store, project: str, counted: Counted) -> None:
    """Take away what waits in `doomed` and nothing refers to: found by a reader, beside whom ingest goes on,
    and taken in steps."""
    with store.read() as connection:
        project_id = find_project(connection, project) or 0
        at = snapshot(connection, project)
        found = [(table, *waiting(connection, project_id, table)) for table in SWEPT]
    for table, dead, alive in found:
        for chunk in chunks(sorted(dead)):
            store.perform(project, partial(_take, table=table, keys=chunk, at=at, counted=counted)).result()
        if alive:
            store.perform(project, partial(_spare, table=table, keys=alive, counted=counted)).result()


def _take(tx: Transaction, *, table: Table, keys: Sequence[int], at: int, counted: Counted) -> None:
    """Those of the rows that are still noted as they were: ingest strikes off what it looks up."""
    doomed = t.doomed.c
    noted = select(doomed.key).where(
        doomed.project_id == tx.project_id, doomed.name == table.name, doomed.key.in_(keys), doomed.pos <= at
    )
    this = (table.c.project_id == tx.project_id, table.c.key.in_(noted))
    taken = tx.connection.execute(table.delete().where(*this)).rowcount
    rescue(tx.connection, table, keys, project_id=tx.project_id)
    counted(tx, Taken(taken, taken if table is t.content else 0))


def _spare(tx: Transaction, *, table: Table, keys: Collection[int], counted: Counted) -> None:
    """Strike off what something refers to."""
    rescue(tx.connection, table, keys, project_id=tx.project_id)
    counted(tx, Taken(0, 0))
