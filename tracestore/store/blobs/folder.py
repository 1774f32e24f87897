"""Blobs as files: FOLDER/<sha256 of the project>/<first two digits>/<hash>."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tracestore.store.blobs.base import STEP, BlobNotFound, BlobStoreUnavailable, folder_of
from tracestore.store.blobs.uploads import Uploads, disk_errors, sync_folder


class FolderBlobs:
    """A folder on a local disk; several server processes of one host may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._uploads = Uploads(folder / "uploads", keep=self.keep)

    @property
    def uploads(self) -> Uploads:
        return self._uploads

    def size(self, project: str, name: str) -> int | None:
        with disk_errors(name):
            return self._size(self._file(project, name))

    def renew(self, project: str, name: str) -> int | None:
        file = self._file(project, name)
        with disk_errors(name), suppress(FileNotFoundError):
            with _locked(file.parent):
                found = file.stat().st_size
                _touch(file)
            # Its name may be too young to be on disk.
            self._sync(file)
            return found
        return None

    def sizes(self, project: str, names: Collection[str]) -> Mapping[str, int]:
        found = ((name, self._size(self._file(project, name))) for name in names)
        return {name: size for name, size in found if size is not None}

    def read(self, project: str, name: str, *, start: int, stop: int) -> Iterator[bytes]:
        try:
            file = self._file(project, name).open("rb")
        except FileNotFoundError:
            raise BlobNotFound(hash=name) from None
        with file, disk_errors(name):
            file.seek(start)
            while start < stop:
                step = file.read(min(STEP, stop - start))
                if not step:
                    raise BlobStoreUnavailable(
                        hash=name, hint="the file is shorter than it was: bring it back"
                    )
                start += len(step)
                yield step

    def keep(self, project: str, name: str, file: Path) -> None:
        target = self._file(project, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent):
            # Its last byte may have come long before: a resumed upload ends when its sender says so.
            _touch(file)
            os.rename(file, target)
        self._sync(target)

    def sent_before(self, project: str, at: int) -> Iterator[str]:
        for file in (self._folder / folder_of(project)).glob("??/*"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime_ns < at:
                    yield file.name

    def remove(self, project: str, name: str, *, sent_before: int) -> bool:
        file = self._file(project, name)
        with disk_errors(name), suppress(FileNotFoundError):
            with _locked(file.parent):
                if file.stat().st_mtime_ns >= sent_before:
                    return False
                file.unlink()
            sync_folder(file.parent)
        return True

    def _file(self, project: str, name: str) -> Path:
        return self._folder / folder_of(project) / name[:2] / name

    @staticmethod
    def _size(file: Path) -> int | None:
        with suppress(FileNotFoundError):
            return file.stat().st_size
        return None

    def _sync(self, file: Path) -> None:
        """Make the name durable, with those of all folders above it that may be new."""
        for folder in (file.parent, file.parent.parent, self._folder):
            sync_folder(folder)
        # Who may not read the folder above has not made this one in it.
        with suppress(PermissionError):
            sync_folder(self._folder.parent)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Nobody else, in whatever process of this host, keeps, renews or removes a blob of this folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _touch(file: Path) -> None:
    """Sent now, by the clock that dates deletions: the stamps of the kernel may lie behind it."""
    now = time.time_ns()
    try:
        os.utime(file, ns=(now, now))
    except OSError as error:
        # Where this process may only read, it is asked by readers alone.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
