"""JSON text -> values, where opaque fields stay the very bytes that were posted.

The C scanner of the standard library checks the grammar and finds where each value ends; Python walks only
the keys of the envelope, down to the spans. What a parse would change (ints beyond 2^53, -0, 1e400, lone
surrogate escapes, NUL) is safe inside a span, because a span is cut from the text and its parsed value is
thrown away.

    scan(b'{"id": "c1", "request": {"seed": 1e400}}', opaque={"request": SPAN})
    -> {"id": "c1", "request": Raw(b'{"seed": 1e400}')}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from math import isfinite
from typing import Any, Final, NoReturn

import numpy as np

from tracestore.wire.base import Raw
from tracestore.wire.errors import (
    DuplicateKey,
    EventError,
    EventTooLarge,
    MalformedJson,
    NotFinite,
    NumberTooLarge,
    TooDeep,
)
from tracestore.wire.limits import LIMITS, Limits


class Span(Enum):
    """The shape of an opaque value."""

    SPAN = "span"


SPAN: Final = Span.SPAN


@dataclass(frozen=True, slots=True)
class Each:
    """An array whose elements have this shape; a value that is no array is kept as one span."""

    shape: Shape


Shape = Span | Each | Mapping[str, "Shape"]
"""A mapping is an object: its named fields have these shapes, the others are parsed."""

MAX_DEPTH = 200
"""The scanner below recurses in C: no limit may be set higher."""


def scan(text: bytes, *, opaque: Shape, limits: Limits = LIMITS, non_finite: bool = False) -> Any:
    """The value of a JSON text, with a `Raw` span wherever `opaque` says so.

    Args:
        text: one JSON value in UTF-8; white space around it is allowed and not part of any span.
        opaque: `SPAN`, `Each(...)`, or a mapping from field name to one of these.
        non_finite: whether NaN, Infinity and -Infinity may stand bare.

    Returns:
        Parsed values outside the spans are exact: ints of any size, -0 as -0.0, floats correctly rounded.

    Raises:
        EventError: a subclass that names the field path and the place.
    """
    if len(text) > limits.max_event_bytes:
        raise EventTooLarge(
            bytes=len(text),
            limit=limits.max_event_bytes,
            hint="post large payloads as blobs, or split the event",
        )
    decoded = decode_utf8(text)
    check_depth(text, limit=min(limits.max_depth, MAX_DEPTH))
    scanner = _Scanner(decoded, non_finite=non_finite)
    value, end = scanner.value(_space(decoded, 0), opaque)
    end = _space(decoded, end)
    if end != len(decoded):
        malformed(decoded, end, "another value follows the first one")
    return value


def decode_utf8(text: bytes) -> str:
    """The text as str; bytes that are not UTF-8, or a byte order mark, are an error."""
    if text.startswith((b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe")):
        raise MalformedJson(byte=0, hint="the text begins with a byte order mark: send UTF-8 without one")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJson(
            byte=error.start,
            found=text[error.start : error.start + 4].hex(" "),
            hint=r"send UTF-8; a lone surrogate is written as an escape (\ud83d)",
        ) from None


_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEP = np.zeros(256, dtype=np.int8)
_STEP[list(b"[{")] = 1
_STEP[list(b"]}")] = -1
_CHUNK = 2**20


def check_depth(text: bytes, *, limit: int) -> None:
    """Raise TooDeep for arrays and objects nested over the limit, before anything recurses into them."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return
    brackets = _STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS)
    depth = 0
    for start in range(0, len(brackets), _CHUNK):
        steps = _STEP[np.frombuffer(brackets[start : start + _CHUNK], dtype=np.uint8)]
        depths = np.cumsum(steps, dtype=np.int64) + depth
        if (deepest := int(depths.max())) > limit:
            raise TooDeep(depth=deepest, limit=limit, hint="send deep structures as a string or a blob")
        depth = int(depths[-1])


class _RepeatedKey(Exception):
    """Carries a key out of the C scanner."""


class _Constant(Exception):
    """The same for NaN and Infinity."""


class _Overflow(Exception):
    """The same for a number that no float64 holds."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        raise _RepeatedKey(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return values


def _refuse(name: str) -> NoReturn:
    raise _Constant(name)


def _float(digits: str) -> float:
    value = float(digits)
    if isfinite(value):
        return value
    raise _Overflow(digits)


def _int_or_negative_zero(digits: str) -> int | float:
    return -0.0 if digits == "-0" else int(digits)


_Scan = Callable[[str, int], tuple[Any, int]]


def _scan_once(decoder: json.JSONDecoder) -> _Scan:
    scan_once: _Scan = decoder.scan_once  # type: ignore[attr-defined]
    return scan_once


def _leaf(*, non_finite: bool, negative_zero: bool) -> _Scan:
    return _scan_once(
        json.JSONDecoder(
            object_pairs_hook=_unique,
            parse_float=_float,
            parse_int=_int_or_negative_zero if negative_zero else None,
            parse_constant=float if non_finite else _refuse,
        )
    )


def _span(*, non_finite: bool) -> _Scan:
    # Values are thrown away, so numbers need no conversion: `len` is a cheap one that takes any digits.
    constant = len if non_finite else _refuse
    return _scan_once(
        json.JSONDecoder(object_pairs_hook=_unique, parse_float=len, parse_int=len, parse_constant=constant)
    )


_LEAF = {(nf, nz): _leaf(non_finite=nf, negative_zero=nz) for nf in (False, True) for nz in (False, True)}
_SPAN = {nf: _span(non_finite=nf) for nf in (False, True)}
_NEGATIVE_ZERO = re.compile(r"-0(?![.0-9eE])")
_CONSTANT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(-?Infinity|NaN)', re.DOTALL)
_WHITE_SPACE = re.compile(r"[ \t\n\r]*")
_BLANKS = frozenset(" \t\n\r")
_PLAIN_KEY = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


def _space(text: str, position: int) -> int:
    # Mostly there is none, or one blank: a look at the next character is cheaper than a match.
    if text[position : position + 1] not in _BLANKS:
        return position
    match = _WHITE_SPACE.match(text, position)
    assert match
    return match.end()


def malformed(text: str, position: int, problem: str) -> NoReturn:
    """Raise MalformedJson with line, column and byte of a place in the text."""
    before = text[:position]
    raise MalformedJson(
        line=before.count("\n") + 1,
        column=position - (before.rfind("\n") + 1) + 1,
        byte=len(before.encode("utf-8")),
        found=text[position : position + 12] or "the end",
        hint=problem,
    )


def _key(text: str, position: int) -> tuple[str, int]:
    """The key at a position, and where its value begins."""
    plain = _PLAIN_KEY.match(text, position)
    if plain is not None:
        return plain[1], plain.end()
    if not text.startswith('"', position):
        malformed(text, position, "expected a key in double quotes")
    try:
        key, position = scanstring(text, position + 1, True)
    except JSONDecodeError as error:
        malformed(text, error.pos, error.msg[0].lower() + error.msg[1:])
    position = _space(text, position)
    if not text.startswith(":", position):
        malformed(text, position, "expected : after a key")
    return key, _space(text, position + 1)


class _Scanner:
    """One pass over one text. Errors gain a step of their path at each level on the way out."""

    __slots__ = ("leaf", "span", "text")

    def __init__(self, text: str, *, non_finite: bool) -> None:
        self.text = text
        self.leaf = _LEAF[non_finite, _NEGATIVE_ZERO.search(text) is not None]
        self.span = _SPAN[non_finite]

    def value(self, position: int, shape: Shape | None) -> tuple[Any, int]:
        if shape is None:
            return self._scan(self.leaf, position)
        first = self.text[position : position + 1]
        if isinstance(shape, Mapping):
            return self._object(position, shape) if first == "{" else self._scan(self.leaf, position)
        if isinstance(shape, Each) and first == "[":
            return self._array(position, shape.shape)
        _, end = self._scan(self.span, position)
        return Raw(self.text[position:end].encode("utf-8")), end

    def _scan(self, scan_once: _Scan, position: int) -> tuple[Any, int]:
        try:
            return scan_once(self.text, position)
        except StopIteration as stop:
            malformed(self.text, stop.value, "a value is missing here")
        except JSONDecodeError as error:
            malformed(self.text, error.pos, error.msg[0].lower() + error.msg[1:])
        except _RepeatedKey as error:
            raise DuplicateKey(
                key=error.args[0], hint="readers disagree on which one counts: send it once"
            ) from None
        except _Constant as error:
            raise self._not_finite(position, error.args[0]) from None
        except _Overflow as error:
            raise NumberTooLarge(number=error.args[0][:40], hint="it is beyond float64") from None
        except ValueError:
            # int() has a limit on digits; only fields of the envelope are converted at all.
            raise NumberTooLarge(
                hint="it has thousands of digits; such numbers survive only in opaque fields"
            ) from None

    def _not_finite(self, position: int, name: str) -> EventError:
        found = next(match for match in _CONSTANT.finditer(self.text, position) if match.group(1))
        return NotFinite(
            found=name,
            byte=len(self.text[: found.start()].encode("utf-8")),
            hint='JSON has no such number: send null, or declare "non_finite": true (calls and completions)',
        )

    def _object(self, position: int, shape: Mapping[str, Shape]) -> tuple[dict[str, Any], int]:
        text = self.text
        values: dict[str, Any] = {}
        position = _space(text, position + 1)
        if text.startswith("}", position):
            return values, position + 1
        while True:
            key, position = _key(text, position)
            if key in values:
                raise DuplicateKey(key=key, hint="readers disagree on which one counts: send it once")
            try:
                values[key], position = self.value(position, shape.get(key))
            except EventError as error:
                raise error.below(key) from None
            comma = _COMMA.match(text, position)
            if comma is not None:
                position = comma.end()
                continue
            position = _space(text, position)
            if text.startswith("}", position):
                return values, position + 1
            malformed(text, position, "expected , or } after a value")

    def _array(self, position: int, shape: Shape) -> tuple[list[Any], int]:
        text = self.text
        values: list[Any] = []
        position = _space(text, position + 1)
        if text.startswith("]", position):
            return values, position + 1
        while True:
            try:
                value, position = self.value(position, shape)
            except EventError as error:
                raise error.below(f"[{len(values)}]") from None
            values.append(value)
            position = _space(text, position)
            if text.startswith("]", position):
                return values, position + 1
            if not text.startswith(",", position):
                malformed(text, position, "expected , or ] after a value")
            position = _space(text, position + 1)


_ANYTHING = _scan_once(
    json.JSONDecoder(object_pairs_hook=len, parse_float=len, parse_int=len, parse_constant=len)
)


def cut_array(text: str) -> Iterator[str]:
    """The elements of a JSON array as text. Only the grammar is checked: duplicate keys and NaN pass.

    Raises:
        MalformedJson: with the place in the array.
    """
    position = _space(text, _space(text, 0) + 1)
    if not text.startswith("]", position):
        while True:
            end = _skip(text, position)
            yield text[position:end]
            position = _space(text, end)
            if not text.startswith(",", position):
                break
            position = _space(text, position + 1)
        if not text.startswith("]", position):
            malformed(text, position, "expected , or ] after an element")
    position = _space(text, position + 1)
    if position != len(text):
        malformed(text, position, "something follows the array")


def _skip(text: str, position: int) -> int:
    try:
        return _ANYTHING(text, position)[1]
    except StopIteration as stop:
        malformed(text, stop.value, "a value is missing here")
    except JSONDecodeError as error:
        malformed(text, error.pos, error.msg[0].lower() + error.msg[1:])


def peek(text: str, names: frozenset[str]) -> dict[str, str]:
    """Top-level string fields of an object that may be broken: those that come before the break."""
    found: dict[str, str] = {}
    position = _space(text, 0)
    try:
        while text.startswith(("{", ","), position):
            key, position = _key(text, _space(text, position + 1))
            if key in names:
                value, end = _LEAF[True, False](text, position)
                if isinstance(value, str):
                    found.setdefault(key, value)
            else:
                end = _skip(text, position)
            position = _space(text, end)
    except (EventError, ValueError, StopIteration, RecursionError, _RepeatedKey, _Overflow):
        pass
    return found
