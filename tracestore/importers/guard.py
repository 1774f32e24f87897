"""A record -> its events, or a refusal with its place: no record of a wrong shape ends an import."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from pydantic import ValidationError

from tracestore.importers.notes import Notes
from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw

# What code that expects a format's shape raises over another shape. Pydantic's errors are ValueErrors.
WRONG_SHAPE = (ValueError, TypeError, LookupError, AttributeError)
_MAX_FIELDS = 3
_MAX_CHARACTERS = 200
_T = TypeVar("_T")
_CONSTANTS = ("NaN", "Infinity", "-Infinity")


def guarded(items: Iterable[_T], *, at: str, notes: Notes) -> Iterator[_T]:
    """All the items (or whatever is made) of a record, or none of them and a refusal.

    Args:
        items: made while they are iterated over.
        at: place of the record.
    """
    try:
        made = list(items)
    except WRONG_SHAPE as error:
        notes.refuse(at, f"not of the shape that this format has: {problem_of(error)}")
        return
    yield from made


def problem_of(error: Exception) -> str:
    """What one of WRONG_SHAPE says to somebody who has the file and not the importer."""
    if isinstance(error, ValidationError):
        details = error.errors(include_url=False, include_input=False)
        fields = [(".".join(map(str, one["loc"])), one["msg"]) for one in details[:_MAX_FIELDS]]
        return "; ".join(f"{field}: {message.removeprefix('Value error, ')}" for field, message in fields)
    if isinstance(error, KeyError):
        return f"there is no {error}"
    if isinstance(error, ValueError):
        return " ".join(str(error).split())[:_MAX_CHARACTERS]
    return "a list is too short" if isinstance(error, IndexError) else "a value is of another type"


def as_dict(value: Any) -> dict[str, Any]:
    """A copy of an object whose fields can be taken; an empty one where the value is none."""
    return dict(value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The list, or an empty one where the value is none."""
    return value if isinstance(value, list) else []


def text_or_none(value: Any) -> str | None:
    """A text that says something; None where the value is none, or empty."""
    return value if isinstance(value, str) and value else None


def number(value: Any) -> float | None:
    """A JSON number as the nearest double; None where it is none, or where no double is near."""
    double = _double(value)
    return double if double is not None and math.isfinite(double) else None


def _double(value: Any) -> float | None:
    """A number that Python cannot write back has come as its text, and NaN or an infinity as its name."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Raw)):
        return float(value) if isinstance(value, str) and value in _CONSTANTS else None
    try:
        return float(value)
    except (OverflowError, ValueError):
        return None


def token_ids(value: Any) -> TokenIds | None:
    """Token ids of a list; None where there is none or it is empty, which is how servers say that.

    Raises:
        ValueError: they are no token ids.
    """
    return TokenIds.of(value) if isinstance(value, list) and value else None


def logprobs(value: Any) -> Logprobs | None:
    """Logprobs of a list of numbers, null where one is unknown; None where there is no list or it is empty.

    Raises:
        ValueError: they are no numbers.
    """
    if not isinstance(value, list) or not value:
        return None
    if {type(one) for one in value} <= {float, int}:
        return Logprobs.of(value)
    values = [None if one is None else _double(one) for one in value]
    if any(one is not None and mine is None for one, mine in zip(value, values, strict=True)):
        raise ValueError("logprobs are numbers or null")
    return Logprobs.of(values)


def known(model: Callable[..., _T], **fields: Any) -> _T:
    """A part of an event (`Usage`, `CompletionBody`) of the fields that are known: None is not posted."""
    return model(**{name: value for name, value in fields.items() if value is not None})
