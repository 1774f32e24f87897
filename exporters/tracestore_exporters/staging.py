"""A folder that is seen whole or not at all: filled in a hidden folder beside it, in which one process at a
time is at work.

    .NAME.partial/lock      held by the process that is at work, gone with it however it ends
    .NAME.partial/...       what is not whole yet

What a process that was killed left there is taken up, or taken away, by the next one that takes the lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracestore.shards.durable import fsync_folder, partial_of, sync_folder
from tracestore_exporters.place import BadOut, InUse, NotEmpty, OtherExport

PLAN_NAME = "plan.json"
"""Beside the lock: an export was begun, and may be gone on with."""
_LOCK, _FILES = "lock", "files"
_PATIENCE_S = 5.0
"""How long the workers of an exporter that was killed may take to notice it."""
_ASK_AGAIN_S = 0.05


@contextmanager
def staged_folder(out: str | Path) -> Iterator[Path]:
    """A folder to write files into, which takes the name `out` once all of them are on disk. After an error
    nothing of it is left, and what a killed process left is taken away.

    Args:
        out: a folder that does not exist or is empty, or a link to one.

    Raises:
        NotEmpty: something is in it.
        InUse: another process is writing there.
        OtherExport: an export was begun there and not finished.
        BadOut: there is no access to it.
    """
    folder = Path(os.path.realpath(out))
    with Staged.beside(folder) as staged:
        if (staged.path / PLAN_NAME).exists():
            hint = "finish it by its command, remove it, or name another folder"
            raise OtherExport(path=str(staged.path), hint=hint)
        files = staged.path / _FILES
        try:
            staged.empty()
            require_free(folder)
            files.mkdir()
            yield files
            sync_folder(files)
            os.replace(files, folder)
            fsync_folder(folder.parent)
        finally:
            staged.remove()


class Staged:
    """The hidden folder beside `out`, held by this process."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """A descriptor that keeps others out for as long as a process has it open."""

    @classmethod
    @contextmanager
    def beside(cls, out: Path) -> Iterator[Staged]:
        """
        Raises:
            NotEmpty: something is in `out`, and nothing beside it.
            InUse: another process is at work there.
            BadOut: there is no access to it.
        """
        path = partial_of(out)
        try:
            if not path.is_dir():
                require_free(out)
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _locked(path)
        except OSError as error:
            hint = "name a folder that can be made and written to"
            raise BadOut(out=str(out), reason=error.strerror, hint=hint) from error
        try:
            yield cls(path, lock)
        finally:
            os.close(lock)

    def empty(self) -> None:
        """Take away what is in it."""
        # The plan last: without it the rest is nothing that anybody goes on with.
        found = [path for path in self.path.iterdir() if path.name != _LOCK]
        for path in sorted(found, key=lambda path: path.name == PLAN_NAME):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def remove(self) -> None:
        """Take it away, if this process still holds it."""
        if not _is_at(self.lock, self.path / _LOCK):
            return
        self.empty()
        (self.path / _LOCK).unlink()
        with suppress(OSError):  # the next one has come in between
            self.path.rmdir()


def require_free(out: Path) -> None:
    """Raises NotEmpty where something is in the folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NotEmpty(path=str(out), hint="name a new folder: an export is never changed or mixed")


def _locked(folder: Path) -> int:
    """The lock of a folder, held, the folder made where it is not there.

    Raises:
        InUse: another process holds it.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        with suppress(FileExistsError):
            folder.mkdir()
        with suppress(FileNotFoundError):
            opened = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            # Its holder may have ended and taken it away while this one waited.
            if _has_lock(opened) and _is_at(opened, folder / _LOCK):
                return opened
            os.close(opened)
        if time.monotonic() > until:
            raise InUse(path=str(folder), hint="wait for it, end it, or name another folder")
        time.sleep(_ASK_AGAIN_S)


def _is_at(opened: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(opened), path.stat())
    return False


def _has_lock(opened: int) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
