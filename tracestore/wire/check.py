"""JSON text -> its value, in one C pass, where it is certain that the exact scanner takes the text as well.

`scan` walks the envelope in Python to say what is wrong and where. Most texts have nothing wrong: for those
jiter decides the same questions (the grammar of RFC 8259 and nothing beside it, UTF-8, no key twice, no NaN
or Infinity, no deep nesting). It takes less than `scan`, never more: no lone surrogate, no integer of over
4,300 digits. Its values are not the exact ones (`-0` is 0, `1e400` is infinity): only the shape is read from
them.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from jiter import from_json


class Doubt(ValueError):
    """Not certain: the exact scanner and the models decide."""


DOUBTS: Final = (ValueError, msgspec.MsgspecError, RecursionError)
"""What any of the fast readers raises where it is not certain."""


def _parsed(text: bytes) -> Any:
    return from_json(text, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)


def _is_taken(levels: int) -> bool:
    try:
        _parsed(b"[" * levels + b"]" * levels)
    except ValueError:
        return False
    return True


_MAX_LEVELS = 1000
_LEVELS: Final = next(levels for levels in range(_MAX_LEVELS) if not _is_taken(levels + 1))
"""How many arrays inside each other jiter takes at most; asked, because its documentation does not say."""


def certain(text: bytes, *, levels: int) -> Any:
    """The value of a JSON text that `scan` is certain to take.

    Args:
        levels: how many arrays and objects may stand inside each other.

    Raises:
        ValueError: the text is malformed, or it is not certain that it is not.
    """
    # So many arrays around the text that jiter's own limit is the limit asked for; counting brackets is slow.
    around = max(_LEVELS - levels, 0)
    value = _parsed(b"[" * around + text + b"]" * around) if around else _parsed(text)
    for _ in range(around):
        # Text such as `1], [2` would close an array of ours; then there are several elements, or no JSON.
        [value] = value
    return value


_NEGATIVE_ZERO = re.compile(rb"-0(?![.0-9eE])(?<=[:,\[ \t\r\n]-0)")


def holds_negative_zero(text: bytes) -> bool:
    """Whether a number `-0` may stand in a JSON text: the fast readers take it for the integer 0."""
    return _NEGATIVE_ZERO.search(text) is not None
