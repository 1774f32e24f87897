"""Rows of a query as Arrow, pandas or polars, and as a table in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tracestore.analysis.extras import optional
from tracestore.store.sql_formats import rows

if TYPE_CHECKING:
    import pandas
    import polars

SHOWN_ROWS = 20
"""Rows that a notebook shows."""


@dataclass(frozen=True)
class Frame:
    """What a query gave. Unknown is null, whatever the library."""

    table: pa.Table
    truncated: bool
    """There were more rows than were asked for."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    def rows(self) -> list[tuple[Any, ...]]:
        """Python values, row by row; a time of nanoseconds as text."""
        return list(rows(self.table))

    def arrow(self) -> pa.Table:
        return self.table

    def pandas(self) -> pandas.DataFrame:
        """Columns of Arrow types: whole numbers stay whole numbers beside nulls.

        Raises:
            MissingPackage: pandas is not installed.
        """
        dtype = optional("pandas").ArrowDtype
        frame: pandas.DataFrame = self.table.to_pandas(types_mapper=dtype)
        return frame

    def polars(self) -> polars.DataFrame:
        """
        Raises:
            MissingPackage: polars is not installed.
        """
        frame: polars.DataFrame = optional("polars").from_arrow(self.table)
        return frame

    def __repr__(self) -> str:
        more = ", truncated" if self.truncated else ""
        return f"<Frame: {len(self):,} rows{more}; {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """The first rows, for a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        shown = Frame(self.table.slice(0, SHOWN_ROWS), truncated=False).rows()
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in shown)
        left = len(self) - len(shown)
        note = f"{len(self):,} rows{', truncated' if self.truncated else ''}"
        note += f", the first {len(shown)} shown" if left else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{note}</p>"


def frame_of(table: pa.Table, *, truncated: bool) -> Frame:
    """A frame whose sums of integers are integers again: DuckDB gives them as 128 bits, Arrow as decimals."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            try:
                whole = table.column(index).cast(pa.int64())
            except pa.ArrowInvalid:  # a sum beyond 64 bits stays a decimal
                continue
            table = table.set_column(index, field.name, whole)
    return Frame(table, truncated)


def _cell(value: Any) -> str:
    return "<td><i>NULL</i></td>" if value is None else f"<td>{escape(str(value))}</td>"
