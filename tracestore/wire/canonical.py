"""JSON text -> the one text of its value: equal values give equal bytes, different values different ones.

Keys are sorted, white space and escape spelling go, numbers are compared by exact decimal value (1, 1.0 and
10e-1 are one number; 0 and -0 are two; 2^53 and 2^53 + 1 are two), strings by code points, so that lone
surrogates survive.
"""

from __future__ import annotations

import json
import re
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from json.encoder import encode_basestring_ascii
from typing import Any

_MAX_INT_DIGITS = 40
"""Integers up to here are written out; longer ones keep an exponent: nobody has room for 1e999999."""

# What the C parser would change: a negative zero, or an int too long to write out. One inside a string only
# makes the parse slower. Digits are made one letter: to search for forty of them costs more than the parse.
_NEGATIVE_ZERO = re.compile(rb"-0(?![.0-9eE])")
_AS_LETTERS = bytes(ord("d") if chr(byte).isascii() and chr(byte).isdigit() else 0 for byte in range(256))
_LONG = b"d" * (_MAX_INT_DIGITS + 1)


class _Exact(str):
    """A number that is neither a short integer nor what a float64 prints as, in its canonical text."""

    __slots__ = ()


def canonical(text: bytes) -> bytes:
    """Canonical text (ASCII) of a JSON value that `scan` accepts; NaN and Infinity stand for themselves."""
    source = text.decode("utf-8")
    exact = False

    def number(digits: str) -> float | int | _Exact:
        nonlocal exact
        value = float(digits)
        if repr(value) == digits and not value.is_integer():
            return value  # the common case: written by Python, JavaScript or Rust
        result = _number(digits)
        exact = exact or type(result) is _Exact
        return result

    unusual = _NEGATIVE_ZERO.search(text) is not None or _LONG in text.translate(_AS_LETTERS)
    value = json.loads(source, parse_float=number, parse_int=number if unusual else None)
    if exact:
        return _write(value).encode("ascii")
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def _number(digits: str) -> float | int | _Exact:
    """Exactly one Python value per decimal value, chosen by the value alone and never by its spelling."""
    mantissa, _, power = digits.lower().partition("e")
    whole, _, fraction = mantissa.partition(".")
    sign = "-" if whole.startswith("-") else ""
    significant = (whole.lstrip("-") + fraction).lstrip("0")
    if not significant:
        return -0.0 if sign else 0
    stripped = significant.rstrip("0")
    exponent = _exponent(power, len(significant) - len(stripped) - len(fraction))
    if isinstance(exponent, int):
        if exponent >= 0 and len(stripped) + exponent <= _MAX_INT_DIGITS:
            return int(sign + stripped + "0" * exponent)
        if exponent < 0 and len(stripped) <= 17:  # more digits than any shortest float64 has are never one
            value = float(f"{sign}{stripped}e{exponent}")
            if value and Decimal(repr(value)) == Decimal(f"{sign}{stripped}e{exponent}"):
                return value
    return _Exact(f"{sign}{stripped}e{exponent}")


def _exponent(power: str, shift: int) -> int | str:
    """power + shift; as text where it has more digits than Python converts."""
    digits = power.lstrip("+-0") or "0"
    sign = "-" if power.startswith("-") else ""
    if len(digits) < 4000:
        return int(sign + digits) + shift
    context = Context(prec=len(digits) + 20, Emax=MAX_EMAX, Emin=MIN_EMIN)
    return format(context.add(Decimal(sign + digits), Decimal(shift)), "f")


def _write(value: Any) -> str:
    """What json.dumps writes with sorted keys, and `_Exact` numbers as they are."""
    if type(value) is _Exact:
        return str(value)
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, dict):
        members = (f"{encode_basestring_ascii(key)}:{_write(value[key])}" for key in sorted(value))
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value)
