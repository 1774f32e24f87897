"""A file -> its JSON documents: one a line, or the whole file where it is one pretty-printed document."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, BinaryIO, NamedTuple

from tracestore.wire.base import Raw
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent

_GZIP = b"\x1f\x8b"


class Document(NamedTuple):
    """One JSON text of a file."""

    number: int
    """Line it begins on, from 1."""
    text: bytes


class Item(NamedTuple):
    """One wire event and the JSON text that is posted for it."""

    event: AnyEvent
    text: bytes


@dataclass
class Notes:
    """What an importer met and did not carry over, counted; nothing is left out in silence."""

    not_understood: Counter[str] = field(default_factory=Counter)
    """Fields and records that this importer does not know, or has no place for."""
    warnings: Counter[str] = field(default_factory=Counter)
    """What was carried over and looks wrong in the file."""
    refused: list[str] = field(default_factory=list)
    """Documents that cannot be read, with their line and the reason."""


def opened(stream: BinaryIO) -> BinaryIO:
    """The stream, decompressed if it begins like gzip. It must be able to peek or to seek."""
    head = stream.peek(2)[:2] if hasattr(stream, "peek") else stream.read(2)
    if not hasattr(stream, "peek"):
        stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if head == _GZIP else stream  # type: ignore[return-value]


def documents(stream: BinaryIO) -> Iterator[Document]:
    """The documents of a stream, blank lines left out; a stream of one JSON value over many lines is one.

    Lines are read one at a time, so a file larger than memory passes through, unless its first line is no
    JSON value by itself: then the whole stream is looked at.
    """
    lines = (Document(number, line.strip()) for number, line in enumerate(stream, 1) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    if _is_json(first.text):
        yield from itertools.chain([first], lines)
        return
    rest = [first, *lines]
    whole = b"\n".join(line.text for line in rest)
    yield from [Document(first.number, whole)] if _is_json(whole) else rest


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def parsed(document: Document, notes: Notes) -> Any:
    """The value of a document; None, noted as refused, when it is no JSON."""
    try:
        return json.loads(document.text)
    except ValueError as error:
        notes.refused.append(f"line {document.number}: {error}")
        return None


def made(model: Callable[..., AnyEvent], /, **fields: Any) -> Item:
    """An event of the fields that are known: None is unknown, and what is unknown is not posted."""
    event = model(**{name: value for name, value in fields.items() if value is not None})
    return Item(event, encode(event, arrays="base64"))


class Names:
    """Ids made of content, so that importing a file again names the same things and stores nothing twice.

    Two equal documents of one file are two things (two rollouts that said the same): the second is numbered.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._seen: Counter[str] = Counter()

    def of(self, value: Any) -> str:
        """An id for one more document of this value, e.g. `nemo-gym-5d41402abc4b2a76b9719d91`."""
        name = content_id(self._prefix, value)
        self._seen[name] += 1
        return name if self._seen[name] == 1 else f"{name}-{self._seen[name]}"


def content_id(prefix: str, value: Any) -> str:
    """`prefix` and 24 hex digits of the value, whatever its key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"{prefix}-{sha256(text.encode('ascii')).hexdigest()[:24]}"


def raw(value: Any) -> Raw:
    """JSON text of a value in which `Raw` spans stand verbatim."""
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return Raw(b"{" + b",".join(Raw.of(name) + b":" + raw(one) for name, one in value.items()) + b"}")
    if isinstance(value, (list, tuple)):
        return Raw(b"[" + b",".join(map(raw, value)) + b"]")
    return Raw.of(value)
