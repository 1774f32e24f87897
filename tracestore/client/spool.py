"""Events on disk while the server is away: append-only NDJSON files, each of one process."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from tracestore.client.server import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, Posted
from tracestore.ids import new_id

_log = logging.getLogger("tracestore.client")


class Spool:
    """The file that this process appends to. What `append` returned from is on disk.

    The writer holds a lock on its file, so that a file without one was left by a process that ended.
    """

    def __init__(self, folder: Path, project: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._prefix = quote(project, safe="") + "."
        self._lock = threading.Lock()
        self._file: int | None = None
        self._path = folder

    def append(self, batch: Sequence[Posted]) -> Path:
        """Write events at the end of the file, and return its path."""
        lines = b"".join(line_of(posted.text) for posted in batch)
        with self._lock:
            if self._file is None:
                self._path = self.folder / f"{self._prefix}{new_id()}.ndjson"
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                _sync_folder(self.folder)
            _write_all(self._file, lines)
            os.fsync(self._file)
            return self._path

    def release(self) -> None:
        """Leave the file to whoever drains it; the next `append` begins another."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def files(self) -> list[Path]:
        """Files of this project, whoever writes them, oldest first."""
        return sorted(path for path in self.folder.glob("*.ndjson") if path.name.startswith(self._prefix))


def line_of(text: bytes) -> bytes:
    """An event as one line; one with line breaks in its spans becomes a JSON string of its text."""
    return (text if b"\n" not in text else json.dumps(text.decode("utf-8")).encode("ascii")) + b"\n"


def spooled(path: Path) -> Iterator[list[Posted]]:
    """The events of a file in batches. A last line that a crash cut short was never said to be recorded."""
    batch: list[Posted] = []
    size = 0
    with path.open("rb") as lines:
        for index, line in enumerate(lines):
            if not line.endswith(b"\n"):
                _log.warning("%s: line %d is cut short and left out", path, index + 1)
                break
            text = json.loads(line).encode("utf-8") if line.startswith(b'"') else line[:-1]
            batch.append(Posted(index, text))
            size += len(text)
            if len(batch) >= MAX_BATCH_EVENTS or size >= MAX_BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether the file is there and no living process writes or sends it; it is ours until the block ends."""
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        # Whoever held it before may have sent and removed it.
        yield _locked(file) and path.exists()
    finally:
        os.close(file)


def remove(path: Path) -> None:
    """Remove a file for good."""
    path.unlink()
    _sync_folder(path.parent)


def write_rejected(path: Path, lines: bytes) -> None:
    """Keep lines that the server did not take beside their file, under `.rejected`."""
    file = os.open(path.with_suffix(".rejected"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _write_all(file, lines)
        os.fsync(file)
    finally:
        os.close(file)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
