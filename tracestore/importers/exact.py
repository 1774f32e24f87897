"""JSON text -> Python values that lose nothing: a number that no Python number writes back stays its text.

`json.loads` reads 1e400 as infinity, 1e-400 and -0 as 0, 0.10000000000000000055 as 0.1. Here such a number
becomes a `Raw` span, which `items.raw` writes verbatim. All other numbers are what they are in Python. NaN
and the infinities, which are no JSON and which Python writes all the same, become text ("NaN"): the events
they go into are strict JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from tracestore.wire.base import Raw

_MAX_INT_DIGITS = 4_000
"""Python converts integers of at most 4,300 digits to text."""
_NEGATIVE_ZERO = re.compile(r"-0(?![.0-9eE])")
_MANY_DIGITS = re.compile(rf"[0-9]{{{_MAX_INT_DIGITS}}}")
_DIGITS = frozenset("0123456789")
_SAFE_DIGITS = 15
"""A decimal of so many digits is the same number again when it is written from a double."""
_PLAIN_ZERO = re.compile(r"-?0(?:\.0+)?(?:[eE].*)?\Z")

Told = Callable[[str], object]


def loads(text: bytes | str, *, on_constant: Told = str, on_repeat: Told = str) -> Any:
    """The value of a JSON text.

    Args:
        on_constant: is told of every NaN, Infinity and -Infinity.
        on_repeat: is told of every key that stands twice in one object; the value of the last one is read.

    Raises:
        ValueError: it is no JSON; a `json.JSONDecodeError` with the place where it stops being it.
        RecursionError: it is nested too deeply.
    """
    # bytes are decoded by hand: json would guess UTF-16 from zero bytes.
    source = text if isinstance(text, str) else text.decode("utf-8")

    has_unusual = _NEGATIVE_ZERO.search(source) is not None or _has_many_digits(source)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            for name, times in Counter(name for name, _ in pairs).items():
                if times > 1:
                    on_repeat(name)
        return found

    return json.loads(
        source,
        parse_float=_float,
        parse_int=_int if has_unusual else None,
        parse_constant=lambda name: (on_constant(name), name)[1],
        object_pairs_hook=unique,
    )


def _has_many_digits(source: str) -> bool:
    """Whether so many digits stand in a row. One of them would be among every so many characters."""
    return not _DIGITS.isdisjoint(source[_MAX_INT_DIGITS - 1 :: _MAX_INT_DIGITS]) and bool(
        _MANY_DIGITS.search(source)
    )


def _float(text: str) -> Any:
    value = float(text)
    if repr(value) == text:
        return value
    if not math.isfinite(value):
        return Raw(text.encode("ascii"))
    if len(text) <= _SAFE_DIGITS and "e" not in text and "E" not in text:
        return value
    # Decimal refuses exponents of 20 digits, which only a zero or something that underflows can have here.
    exact = _PLAIN_ZERO.match(text) if value == 0 else Decimal(repr(value)) == Decimal(text)
    return value if exact else Raw(text.encode("ascii"))


def _int(text: str) -> Any:
    return Raw(text.encode("ascii")) if text == "-0" or len(text) > _MAX_INT_DIGITS else int(text)
