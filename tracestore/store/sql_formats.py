"""A table of rows -> JSON, CSV, Arrow or Parquet, by the process that found the rows."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tracestore.errors import TracestoreError

FORMATS = ("json", "csv", "arrow", "parquet")
_CSV_SPECIAL = re.compile(r'[",\r\n]')


class NotWritten(TracestoreError):
    """These rows cannot be written"""


def write(table: pa.Table, *, as_: str, truncated: bool) -> bytes:
    """The table in one of `FORMATS`.

    Raises:
        pa.ArrowException: Parquet has no type for one of the columns.
        NotWritten: JSON and CSV, see `rows`.
    """
    if as_ == "json":
        return _json(table, truncated=truncated)
    if as_ == "csv":
        lines = [table.column_names, *rows(table)]
        return "".join(f"{','.join(map(_csv, line))}\n" for line in lines).encode("utf-8")
    out = io.BytesIO()
    if as_ == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, out)
    else:
        with pa.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table)
    return out.getvalue()


def rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows as Python's own values; whole numbers are ints, times of nanoseconds texts.

    Raises:
        NotWritten: a time is none that Python has.
    """
    for batch in table.to_batches():
        columns = [[_plain(value) for value in _values(column)] for column in batch.columns]
        yield from zip(*columns, strict=True)


def _values(column: pa.Array) -> list[Any]:
    """Python's own values; nanoseconds as text."""
    # Arrow makes them a type of pandas where that is installed, and refuses them elsewhere.
    if pa.types.is_temporal(column.type) and getattr(column.type, "unit", None) == "ns":
        column = column.cast(pa.string())
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError) as error:
        hint = "a time is outside of the years 1 to 9999, or of nanoseconds in a list: cast it to VARCHAR"
        raise NotWritten(error=str(error), hint=hint) from None
    return values


def _plain(value: Any) -> Any:
    # A sum of integers is a HUGEINT, which Arrow knows as a decimal without digits after the point.
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int(value)
    return value


def _json(table: pa.Table, *, truncated: bool) -> bytes:
    """One object. Rows are arrays, since two columns may have one name."""
    found = [[_jsonable(value) for value in row] for row in rows(table)]
    answer = {"columns": table.column_names, "rows": found, "truncated": truncated}
    return json.dumps(answer, allow_nan=False).encode("ascii")


def _jsonable(value: Any) -> Any:
    """Numbers that are not finite, decimals, times and bytes as text."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(name): _jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value.hex() if isinstance(value, bytes) else str(value)


def _csv(value: Any) -> str:
    """A field as PostgreSQL writes it: NULL and the empty text differ."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else str(_jsonable(value))
    return '"' + text.replace('"', '""') + '"' if not text or _CSV_SPECIAL.search(text) else text
