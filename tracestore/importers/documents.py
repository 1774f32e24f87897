"""A source -> its JSON records, each with its place: one a line, or the whole file where it is one document.

Lines are read one at a time, so a file larger than memory passes through. A record that cannot be read is
refused in the notes with its file and line, and the others go on:

    two records on one line      both are read, and a warning says so
    a file that ends early       the records before its last line are read, or what one document has complete
    a byte-order mark, CRLF      are no part of a record; UTF-16 is read as what it is
    NUL bytes, bad UTF-8, text   are refused where they stand
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tracestore.importers import exact
from tracestore.importers.items import raw
from tracestore.importers.notes import Notes
from tracestore.importers.sources import DAMAGED, Source, Unreadable, ended
from tracestore.wire.base import Raw
from tracestore.wire.limits import LIMITS

MAX_RECORD_BYTES = 256 * 2**20
"""Bytes of one line, or of a file that is one document."""
MAX_DEPTH = LIMITS.max_depth - 20
"""An event that holds a record must not be nested deeper than the wire allows."""

_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_LEXEME = re.compile(r""""[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{},]""", re.DOTALL)
"""A string (the last one may be cut off), or a sign that makes structure."""


@dataclass(frozen=True, slots=True)
class Record:
    """One JSON value of a source."""

    value: Any
    at: str
    """Its place, for people: `file, line 3`."""
    line: int
    """Line it begins on, from 1."""
    text: bytes
    """As it stands in the file."""


@dataclass(frozen=True, slots=True)
class Line:
    """A text of a source that should be one JSON value."""

    source: str
    number: int
    """Line it begins on, from 1."""
    text: bytes
    is_document: bool = False
    """It is the whole file."""

    @property
    def at(self) -> str:
        return f"{self.source}, line {self.number}"


def records(source: Source, *, notes: Notes) -> Iterator[Record]:
    """The JSON records of a source, in order."""
    for line in lines(source, notes=notes):
        yield from parsed(line, notes=notes)


def lines(source: Source, *, notes: Notes) -> Iterator[Line]:
    """The texts of a source, blank lines left out; a file of one value over many lines is one.

    A file whose first line is no JSON by itself is looked at as a whole, up to MAX_RECORD_BYTES.
    """
    numbered = _physical_lines(source, notes)
    first = next(numbered, None)
    if first is None:
        return
    if _is_json(first.text):
        yield first
        yield from numbered
        return
    rest, size = [first], len(first.text)
    for line in numbered:
        rest.append(line)
        size += len(line.text)
        if size > MAX_RECORD_BYTES:
            break
    whole = Line(source.name, first.number, b"\n".join(line.text for line in rest), is_document=True)
    is_whole = size <= MAX_RECORD_BYTES and (
        _is_json(whole.text) or not any(_is_record(one.text) for one in rest)
    )
    yield from [whole] if is_whole else rest
    yield from numbered


def parsed(line: Line, *, notes: Notes) -> Iterator[Record]:
    """The record of a text; several where several stand on it, none (refused) where it is no JSON."""
    try:
        yield Record(_loads(line, notes), line.at, line.number, line.text)
    except json.JSONDecodeError as error:
        yield from _recovered(line, error, notes)
    except (ValueError, RecursionError) as error:
        notes.refuse(line.at, _reason(line.text, error))


def _loads(line: Line, notes: Notes) -> Any:
    text = line.text
    value = exact.loads(
        text,
        on_constant=lambda name: notes.warn(f"{name}, which is no JSON, kept as text"),
        on_repeat=lambda name: notes.leftover("key that stands twice in one object", name, at=line.at),
    )
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    return value


def _depth(value: Any) -> int:
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        one, depth = waiting.pop()
        if isinstance(one, (dict, list)):
            deepest = max(deepest, depth)
            waiting += [(inner, depth + 1) for inner in (one.values() if isinstance(one, dict) else one)]
    return deepest


def embedded(text: str) -> Raw | None:
    """JSON text that stood in a string, as a span of an event; None where it is none, or nested too deeply.

    It stays as it is, but for what no event may hold: NaN and the infinities become text, lone surrogates
    escapes.
    """
    found = embedded_value(text)
    return None if found is None else found[0]


def embedded_value(text: str) -> tuple[Raw, Any] | None:
    """`embedded`, and the value that it is."""
    constants: list[str] = []
    try:
        value = exact.loads(text, on_constant=constants.append)
    except (ValueError, RecursionError):
        return None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        return None
    try:
        return raw(value) if constants else Raw(text.strip().encode("utf-8")), value
    except UnicodeEncodeError:
        return raw(value), value


def _reason(text: bytes, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"nested more than {MAX_DEPTH} deep"
    if isinstance(error, UnicodeDecodeError):
        return f"no UTF-8 at byte {error.start}: {error.reason}"
    if text.strip(b"\0") == b"":
        return f"{len(text)} NUL bytes: the file was being written when its machine stopped"
    if isinstance(error, json.JSONDecodeError):
        return f"no JSON: {error.msg} at character {error.pos}: {error.doc[error.pos : error.pos + 40]!r}"
    return str(error)


# --- Recovery --------------------------------------------------------------------------------------


def _recovered(line: Line, error: json.JSONDecodeError, notes: Notes) -> Iterator[Record]:
    """What can be read of a text that is not one JSON value."""
    text = error.doc
    if error.msg == "Extra data":
        yield from _several(line, text, notes)
        return
    # A line that was cut is left for when its file has grown: half of a record would contradict the whole.
    kept = _cut_back(text) if line.is_document and text[:1] in ("{", "[") else None
    if kept is None:
        notes.refuse(line.at, _reason(line.text, error))
        return
    notes.refuse(line.at, f"ends in the middle; the {len(kept):,} characters that are complete were read")
    yield from parsed(Line(line.source, line.number, kept.encode("utf-8", "surrogatepass")), notes=notes)


def _several(line: Line, text: str, notes: Notes) -> Iterator[Record]:
    """Values that stand side by side on one line, without the line end between them."""
    decoder, place, found = json.JSONDecoder(), 0, []
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            _, end = decoder.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError) as error:
            notes.refuse(line.at, _reason(text[place:].encode("utf-8", "surrogatepass"), error))
            break
        found.append(text[place:end])
        place = end
    if len(found) > 1:
        notes.warn("several records on one line")
    for one in found:
        yield from parsed(Line(line.source, line.number, one.encode("utf-8", "surrogatepass")), notes=notes)


def _cut_back(text: str) -> str | None:
    """A truncated object or array, cut after its last complete element and closed; None where there is none.

    Example: `{"a": [1, 2, {"b": 3}, {"c": ` -> `{"a": [1, 2, {"b": 3}]}`
    """
    stack: list[str] = []
    best: tuple[int, str] | None = None
    for match in _LEXEME.finditer(text):
        lexeme = match.group()
        if lexeme in "{[":
            stack.append("}" if lexeme == "{" else "]")
        elif lexeme in "}]":
            if not stack or stack.pop() != lexeme:
                return None  # not truncated: broken
            if stack:
                best = match.end(), "".join(reversed(stack))
        elif lexeme == "," and stack:
            best = match.start(), "".join(reversed(stack))
    if best is None or not stack:
        return None
    kept = text[: best[0]] + best[1]
    return kept if _is_json(kept.encode("utf-8", "surrogatepass")) else None


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        return False
    return True


def _is_record(text: bytes) -> bool:
    """Whether a line is an object that says something, as lines of a document that was cut off seldom are."""
    return text[:1] == b"{" and text != b"{}" and _is_json(text)


# --- Lines -----------------------------------------------------------------------------------------


def _physical_lines(source: Source, notes: Notes) -> Iterator[Line]:
    number = 0
    try:
        with source.open() as stream:
            readable = _as_utf8(stream, source, notes)
            while text := readable.readline(MAX_RECORD_BYTES + 1):
                number += 1
                if len(text) > MAX_RECORD_BYTES:
                    notes.refuse(f"{source.name}, line {number}", f"longer than {MAX_RECORD_BYTES:,} bytes")
                    while text and not text.endswith(b"\n"):
                        text = readable.readline(1 << 20)
                    continue
                # Files that were put together have their marks in the middle.
                text = text.removeprefix(_BOM).strip(_SPACE)
                if text:
                    yield Line(source.name, number, text)
                elif isinstance(readable, io.BufferedReader):
                    number += _passed_over(readable)
            ended(stream)
    except Unreadable as error:
        notes.refuse(source.name, error.values.get("problem") or error)
    except UnicodeDecodeError as error:
        notes.refuse(f"{source.name}, after line {number}", f"no UTF-16: {error.reason}")
    except DAMAGED as error:
        notes.refuse(f"{source.name}, after line {number}", f"damaged: {error}")


def _passed_over(stream: io.BufferedReader) -> int:
    """Pass over white space; the lines that ended in it. A packed file may hold gigabytes of blank lines."""
    passed = 0
    while True:
        seen = stream.peek(1)
        size = len(seen) - len(seen.lstrip(_SPACE))
        if not size:
            return passed
        passed += seen.count(b"\n", 0, size)
        stream.read(size)


def _as_utf8(stream: io.BufferedReader, source: Source, notes: Notes) -> Any:
    encoding = _UTF16.get(stream.peek(2)[:2])
    if encoding is None:
        return stream
    notes.warn("a file in UTF-16")
    stream.read(2)
    return _Recoded(io.TextIOWrapper(stream, encoding, errors="surrogatepass", newline="\n"))


class _Recoded:
    """Lines of a text stream as UTF-8."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def readline(self, limit: int) -> bytes:
        return self._text.readline(limit).encode("utf-8", "surrogatepass")
