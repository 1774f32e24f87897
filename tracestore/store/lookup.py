"""Many rows: without what SQLAlchemy adds to each; by one column, in few statements whose text is the same.

What a batch of events refers to is looked up before every transaction. Building these statements anew took
several times longer than the database takes to answer them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect, Select, Table

from tracestore.store.chunks import chunks


def driver_rows(
    connection: Connection, query: Select[Any], parameters: Mapping[str, int]
) -> Iterator[tuple[Any, ...]]:
    """The rows of a query, of columns that every driver gives as they are: numbers, plain text, bytes."""
    with connection.execute(query, parameters) as result:
        cursor: Any = result.cursor
        yield from cursor


def look_up(
    connection: Connection,
    table: Table,
    columns: tuple[str, ...],
    *,
    by: str,
    values: Sequence[Any],
    project_id: int,
) -> Iterator[tuple[Any, ...]]:
    """The columns, as the driver gives them, of the rows whose `by` is one of the values."""
    for chunk in chunks(values):
        # Only few lengths, so that the driver has the statement prepared; a value twice changes nothing.
        padded = (*chunk, *[chunk[-1]] * ((1 << (len(chunk) - 1).bit_length()) - len(chunk)))
        sql = _sql(table, columns, by, len(padded), connection.dialect)
        for row in connection.exec_driver_sql(sql, (project_id, *padded)):
            yield tuple(row)


@lru_cache(maxsize=256)
def _sql(table: Table, columns: tuple[str, ...], by: str, count: int, dialect: Dialect) -> str:
    quote = dialect.identifier_preparer.quote
    mark = "?" if dialect.positional else "%s"
    return (
        f"SELECT {', '.join(map(quote, columns))} FROM {quote(table.name)}"
        f" WHERE project_id = {mark} AND {quote(by)} IN ({', '.join([mark] * count)})"
    )
