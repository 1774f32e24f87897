"""Where the parts of a JSON text begin and end, in bytes.

For text that is known to be JSON (the wire has checked it). The C scanner of the standard library finds
the ends and what it parses is thrown away, so a part is cut exactly as it was posted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]

Place = tuple[int, int]
"""Start and end of a span, in bytes."""

# Values are thrown away: `len` stands in for every conversion, and takes any number of digits.
_DECODER = json.JSONDecoder(object_pairs_hook=len, parse_float=len, parse_int=len, parse_constant=len)
_SCAN: Callable[[str, int], tuple[object, int]] = _DECODER.scan_once  # type: ignore[attr-defined]
_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN_KEY = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\n\r]*:[ \t\n\r]*')
_SEPARATOR = re.compile(r"[ \t\n\r]*[,:][ \t\n\r]*")


def members(text: bytes) -> dict[str, Place]:
    """The values of an object by key; {} for anything that is not an object."""
    decoded = text.decode("utf-8")
    parts = list(_members(decoded))
    places = _in_bytes(decoded, [place for _, place in parts])
    return {key: place for (key, _), place in zip(parts, places, strict=True)}


def elements(text: bytes) -> list[Place]:
    """The elements of an array; [] for anything that is not an array."""
    decoded = text.decode("utf-8")
    return _in_bytes(decoded, list(_elements(decoded)))


def span_end(text: str, start: int) -> int:
    """Where the value that begins at a character ends."""
    return _SCAN(text, start)[1]


def first_byte(text: bytes) -> bytes:
    """The byte that tells what a value is: { [ " or that of a number or a word."""
    return text.lstrip(b" \t\n\r")[:1]


def _members(text: str) -> Iterator[tuple[str, Place]]:
    position = _skip(_SPACE, text, 0)
    if not text.startswith("{", position):
        return
    position = _skip(_SPACE, text, position + 1)
    while not text.startswith("}", position):
        plain = _PLAIN_KEY.match(text, position)
        if plain is not None:
            key, start = plain[1], plain.end()
        else:
            key, position = scanstring(text, position + 1)
            start = _skip(_SEPARATOR, text, position)
        end = _SCAN(text, start)[1]
        yield key, (start, end)
        position = _next(text, end)


def _elements(text: str) -> Iterator[Place]:
    position = _skip(_SPACE, text, 0)
    if not text.startswith("[", position):
        return
    position = _skip(_SPACE, text, position + 1)
    while not text.startswith("]", position):
        end = _SCAN(text, position)[1]
        yield position, end
        position = _next(text, end)


def _next(text: str, end: int) -> int:
    match = _SEPARATOR.match(text, end)
    return match.end() if match else _skip(_SPACE, text, end)


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    assert match, f"not JSON at character {position}"
    return match.end()


def _in_bytes(text: str, places: list[Place]) -> list[Place]:
    """Places counted in characters, counted in bytes."""
    if text.isascii():
        return places
    counted, in_characters, in_bytes = [], 0, 0
    for start, end in places:
        in_bytes += len(text[in_characters:start].encode("utf-8"))
        length = len(text[start:end].encode("utf-8"))
        counted.append((in_bytes, in_bytes + length))
        in_characters, in_bytes = end, in_bytes + length
    return counted
