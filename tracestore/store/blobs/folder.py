"""Blobs as files: FOLDER/<sha256 of the project>/<first two digits>/<hash>."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
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
            file = self._file(project, name)
            found = self._size(file)
            if found is not None:
                # Its name may be too young to be on disk, and whoever asks will not send it again.
                self._sync(file)
            return found

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
        os.rename(file, target)
        self._sync(target)

    def sent_before(self, project: str, at: int) -> Iterator[str]:
        for file in (self._folder / folder_of(project)).glob("??/*"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime_ns < at:
                    yield file.name

    def remove(self, project: str, name: str) -> None:
        with disk_errors(name), suppress(FileNotFoundError):
            file = self._file(project, name)
            file.unlink()
            sync_folder(file.parent)

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
