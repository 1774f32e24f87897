"""Long lists of values, a statement's worth at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Value = TypeVar("Value")

SIZE = 400
"""Values in one IN (...): SQLite takes 32,766 variables, and one length of statement stays in the cache."""


def chunks(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """The values in order, at most SIZE at a time."""
    for start in range(0, len(values), SIZE):
        yield values[start : start + SIZE]
