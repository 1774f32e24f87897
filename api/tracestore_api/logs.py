"""Logs of exports that go on, kept as far as they were read: a request reads the entries that came since.

A log is kept by its folder. It is read anew where the folder holds another one, or the same one put back to
an earlier state: by what the file system says of its header and of the last entry that was read.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracestore.shards.log import Log

KEPT = 64
"""Logs, those asked for last: each holds its groups in memory."""

_Mark = tuple[int, int, int] | None


@dataclass(slots=True)
class _Kept:
    lock: threading.Lock = field(default_factory=threading.Lock)
    log: Log | None = None
    header: _Mark = None
    last: _Mark = None


class Logs:
    """The logs that a server was asked for. Any number of threads may use it."""

    def __init__(self, *, most: int = KEPT) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[Path, _Kept] = OrderedDict()

    @property
    def kept(self) -> tuple[Path, ...]:
        """Their folders, the one asked for last at the end."""
        with self._lock:
            return tuple(self._kept)

    @contextmanager
    def at(self, folder: Path) -> Iterator[Log]:
        """The log in a folder up to its last entry, for the caller alone while the context lasts.

        Raises:
            NotAnExport, LogCorrupt, OtherSchema: see `tracestore.shards.log.Log.read`.
        """
        kept = self._kept_at(folder)
        with kept.lock:
            yield _up_to_date(kept, folder)

    def _kept_at(self, folder: Path) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(folder, _Kept())
            self._kept.move_to_end(folder)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return kept


def _up_to_date(kept: _Kept, folder: Path) -> Log:
    # pyarrow comes with them, which most servers have no use for.
    from tracestore.shards.log import Log, entry_name

    # Before it is read: one that takes its place meanwhile has another.
    header = _mark(folder / entry_name(0))
    log = kept.log
    if log is not None and (header, _mark(folder / entry_name(log.number))) == (kept.header, kept.last):
        log.advance()
    else:
        log = Log.open(folder)
    kept.log, kept.header, kept.last = log, header, _mark(folder / entry_name(log.number))
    return log


def _mark(path: Path) -> _Mark:
    """What tells a file from another that takes its place; entries never change."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
