"""Records of many sessions, kept on disk by session, so that one session at a time is in memory.

A session may be spread over several files, which come in any order. What is held in memory of a record is
where it lies: three numbers.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from tracestore.importers import exact
from tracestore.importers.documents import Record

_IN_MEMORY_BYTES = 64 * 2**20


class _Place(NamedTuple):
    source: int
    line: int
    start: int
    length: int


class Spool:
    """`add` records under a key, then read them `of` one key at a time, in the order in which they came."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - lives as long as this
        weakref.finalize(self, self._file.close)
        self._end = 0
        self._sources: dict[str, int] = {}
        self._places: dict[str, list[_Place]] = {}

    def add(self, key: str, record: Record, *, source: str) -> None:
        """Keep a record of the session `key`; `source` is the name of the file it is from."""
        number = self._sources.setdefault(source, len(self._sources))
        self._file.seek(self._end)
        self._file.write(record.text)
        self._places.setdefault(key, []).append(_Place(number, record.line, self._end, len(record.text)))
        self._end += len(record.text)

    def keys(self) -> list[str]:
        """Every session, sorted."""
        return sorted(self._places)

    def of(self, key: str) -> Iterator[tuple[str, Record]]:
        """(name of the file, record) of a session, in the order in which they were added."""
        names = list(self._sources)
        for source, line, start, length in self._places.get(key, ()):
            self._file.seek(start)
            text = self._file.read(length)
            yield names[source], Record(exact.loads(text), f"{names[source]}, line {line}", line, text)
