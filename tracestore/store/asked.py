"""What was asked for and goes on in steps, by its number in a project: one, the latest, what is not done."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection, Table, select

from tracestore.store import tables as t
from tracestore.store.query import find_project
from tracestore.store.store import Store

T = TypeVar("T")


class Read(Protocol[T]):
    """Rows of a table as they are shown, the latest first."""

    def __call__(
        self, connection: Connection, project_id: int, /, *where: Any, limit: int | None = None
    ) -> list[T]: ...


def numbered(store: Store, project: str, table: Table, read: Read[T], key: int) -> T | None:
    """The one of this number; None where there is none."""
    # No number of ours is longer, and no database takes one that is.
    this = table.c.key == min(key, 2**63 - 1)
    with store.read() as connection:
        found = read(connection, find_project(connection, project) or 0, this)
    return found[0] if found else None


def latest(
    store: Store, project: str, table: Table, read: Read[T], *, before: int | None, limit: int | None
) -> list[T]:
    """Those of a project, the latest first.

    Args:
        before: those that were asked for before this number.
    """
    where = () if before is None else (table.c.key < before,)
    with store.read() as connection:
        return read(connection, find_project(connection, project) or 0, *where, limit=limit)


def unfinished(store: Store, table: Table) -> list[tuple[str, int]]:
    """(project, number) of those that are not done."""
    c = table.c
    with store.read() as connection:
        rows = connection.execute(
            select(t.project.c.name, c.key)
            .join(t.project, t.project.c.project_id == c.project_id)
            .where(c.state != "done")
            .order_by(c.project_id, c.key)
        )
        return [(name, key) for name, key in rows]
