"""Events on disk while the server is away: append-only NDJSON files, each of one process.

    FOLDER/<owner>.<uuid7>.ndjson      events that no server has yet, one a line
    FOLDER/<owner>.<uuid7>.rejected    events that the server did not take, the same way

The owner is the project. Where only the key knows that, it is `@` and a hash of the key: events of one
project never go out as those of another.

The process that writes a file holds a lock on it, and so does whoever sends it: a file without one was left
by a process that ended.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

from tracestore.client.server import MAX_BATCH_BYTES, MAX_BATCH_EVENTS, Posted
from tracestore.ids import new_id

_log = logging.getLogger("tracestore.client")

EVENTS = ".ndjson"
REJECTED = ".rejected"
BY_KEY = "@"
"""How an owner begins that is told by its key."""
_MAX_NAME = 180
"""Characters of a file name for its owner: a name has 255, and an id and an ending follow."""


class Spool:
    """The files that this process writes. What `append` and `keep_rejected` returned from is on disk."""

    def __init__(self, folder: Path, owner: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self.owner = owner
        self._prefix = _escaped(owner) + "."
        self.begin()

    def begin(self) -> None:
        """Write to files of one's own: at first, and in the child after a fork."""
        self._lock = threading.Lock()
        self._file: int | None = None
        self._path = self.folder
        self._rejected: Path | None = None

    def append(self, batch: Sequence[Posted]) -> Path:
        """Write events at the end of the file, and return its path.

        Raises:
            OSError: it cannot be written; none of the batch counts as spooled.
        """
        lines = b"".join(line_of(posted.text) for posted in batch)
        with self._lock:
            if self._file is None:
                self._path = self._new_path(EVENTS)
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
                fcntl.flock(self._file, fcntl.LOCK_EX)
                _sync_folder(self.folder)
            size = os.fstat(self._file).st_size
            try:
                _write_all(self._file, lines)
                os.fsync(self._file)
            except OSError:
                self._leave(self._file, size)
                raise
            return self._path

    def keep_rejected(self, texts: Sequence[bytes]) -> Path:
        """Keep events that the server did not take, and return where."""
        with self._lock:
            if self._rejected is None:
                self._rejected = self._new_path(REJECTED)
            write_synced(self._rejected, b"".join(map(line_of, texts)))
            return self._rejected

    def release(self) -> None:
        """Leave the file to whoever drains it; the next `append` begins another."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def fork(self) -> None:
        """In the child of a fork: leave the file to the parent, whose lock the child must not keep alive."""
        if self._file is not None:
            os.close(self._file)
        self.begin()

    def _leave(self, file: int, size: int) -> None:
        """Cut off what was written of a batch that failed, and write to that file no more.

        Where not even that can be done, half a line stands at its end, which readers leave out.
        """
        with suppress(OSError):
            os.ftruncate(file, size)
            if size == 0:
                self._path.unlink()
        os.close(file)
        self._file = None

    def _new_path(self, ending: str) -> Path:
        return self.folder / f"{self._prefix}{new_id()}{ending}"


def spool_files(folder: Path, *, owner: str | None = None, ending: str = EVENTS) -> list[Path]:
    """The files of an owner, or of all, whoever writes them, oldest first."""
    found = [path for path in folder.glob(f"*{ending}") if owner in (None, owner_of(path))]
    return sorted(found, key=lambda path: path.stem.rpartition(".")[2])


def owner_of(path: Path) -> str:
    """Whose a file's events are."""
    name = path.stem.rpartition(".")[0]
    if not name.startswith("="):
        return unquote(name)
    return base64.urlsafe_b64decode(name[1:] + "=" * (-len(name[1:]) % 4)).decode("utf-8")


def _escaped(owner: str) -> str:
    """An owner as part of a file name; one that would be too long as base64, marked by `=`."""
    name = owner if owner.startswith(BY_KEY) else quote(owner, safe="")
    if len(name) <= _MAX_NAME:
        return name
    return "=" + base64.urlsafe_b64encode(owner.encode("utf-8")).decode("ascii").rstrip("=")


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
            batch.append(Posted(index, _text_of(line)))
            size += len(line)
            if len(batch) >= MAX_BATCH_EVENTS or size >= MAX_BATCH_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _text_of(line: bytes) -> bytes:
    """The event of a line; a damaged line as it is, for the server to refuse."""
    if line.startswith(b'"'):
        with suppress(ValueError):
            return str(json.loads(line)).encode("utf-8")
    return line[:-1]


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Whether the file is there and no living process writes or sends it; it is ours until the block ends."""
    try:
        file = os.open(path, os.O_RDWR)
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


def write_synced(path: Path, lines: bytes, *, anew: bool = False) -> None:
    """Write at the end of a file (`anew`: in place of what it held); on disk when it returns."""
    how = os.O_TRUNC if anew else os.O_APPEND
    file = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600)
    try:
        _write_all(file, lines)
        os.fsync(file)
    finally:
        os.close(file)
    _sync_folder(path.parent)


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
