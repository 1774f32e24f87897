"""Bytes that come in piece by piece -> a file that is whole and hashes to its name -> `keep`.

An upload is one file, locked by whoever writes to it. One that was broken off (the sender went away, the
server was killed) stays for a day and can be gone on with; nothing reads it as a blob. A second sender of the
same blob gets a file of its own rather than being made to wait, which goes away with its request.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Self

from tracestore.store.blobs.base import (
    STEP,
    BlobStoreFull,
    BlobStoreUnavailable,
    OtherBytes,
    UploadInHand,
    WrongOffset,
    folder_of,
)
from tracestore.wire.errors import BodyTooLarge

EXPIRES_S = 24 * 3600
"""How long an upload that was broken off stays, counted from its last byte."""
_SWEEP_EVERY_S = 3600

Keep = Callable[[str, str, Path], None]
"""Takes over (project, name, synced file)."""


class Uploads:
    """The uploads of one blob store. Any number of threads, and of processes of one host."""

    def __init__(self, folder: Path, *, keep: Keep) -> None:
        self._folder = folder
        self._keep = keep
        self._next_sweep = 0.0

    def offset(self, project: str, name: str) -> int:
        """How many bytes of an unfinished upload have come; 0 where there is none."""
        with suppress(FileNotFoundError):
            return self._shared(project, name).stat().st_size
        return 0

    def begin(self, project: str, name: str) -> Upload:
        """A new upload; what an unfinished one left is gone."""
        with disk_errors(name):
            self._prepare()
            shared = self._shared(project, name)
            try:
                file, is_shared = _claim(shared, create=True), True
            except UploadInHand:
                shared = shared.with_name(f"{shared.name}.{secrets.token_hex(8)}")
                file, is_shared = _claim(shared, create=True), False
            os.ftruncate(file, 0)
            return Upload(shared, file, self._keep, (project, name), size=0, is_shared=is_shared)

    def resume(self, project: str, name: str, *, offset: int) -> Upload:
        """Go on with an unfinished upload; at 0 also one that was never begun.

        Raises:
            WrongOffset: another number of bytes has come.
            UploadInHand: another request writes to it.
        """
        with disk_errors(name):
            self._prepare()
            shared = self._shared(project, name)
            try:
                file = _claim(shared, create=offset == 0)
            except FileNotFoundError:
                raise _wrong_offset(name, offset, 0) from None
            size = os.fstat(file).st_size
            if size != offset:
                os.close(file)
                raise _wrong_offset(name, offset, size)
            os.lseek(file, size, os.SEEK_SET)
            return Upload(shared, file, self._keep, (project, name), size=size, is_shared=True)

    def sweep(self) -> None:
        """Remove what no one will go on with: files a day old, and those of requests that ended."""
        for file in self._folder.glob("*"):
            with suppress(FileNotFoundError, UploadInHand):
                is_shared = file.name.count(".") == 1
                if is_shared and file.stat().st_mtime + EXPIRES_S > time.time():
                    continue
                handle = _claim(file, create=False)
                file.unlink()
                os.close(handle)

    def _prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_EVERY_S
            self.sweep()

    def _shared(self, project: str, name: str) -> Path:
        return self._folder / f"{folder_of(project)}.{name}"


class Upload:
    """One upload in hand. Leaving the `with` block without `finish` keeps what came, for `resume`.

    An error that sending the rest would not mend discards it.
    """

    def __init__(
        self, path: Path, file: int, keep: Keep, key: tuple[str, str], *, size: int, is_shared: bool
    ) -> None:
        self.size = size
        """Bytes that have come."""
        self._path = path
        self._file = file
        self._keep = keep
        self._key = key
        self._is_shared = is_shared
        self._is_finished = False
        # Of a resumed upload the first bytes are hashed when all have come, once.
        self._hash = sha256() if size == 0 else None

    def write(self, step: bytes) -> None:
        """Append.

        Raises:
            BlobStoreFull: there is no room.
        """
        if self._hash is not None:
            self._hash.update(step)
        rest = memoryview(step)
        with disk_errors(self._key[1]):
            while rest:
                written = os.write(self._file, rest)
                self.size += written
                rest = rest[written:]

    def save(self) -> None:
        """What came so far is on disk when this returns."""
        with disk_errors(self._key[1]):
            os.fsync(self._file)
            sync_folder(self._path.parent)

    def finish(self) -> None:
        """All has come: it is a blob, and durable, when this returns.

        Raises:
            OtherBytes: it does not hash to its name.
            BlobStoreFull: there is no room.
        """
        project, name = self._key
        found = self._digest()
        if found != name:
            raise OtherBytes(
                hash=name, found=found, size=self.size, hint="name the sha256 of the bytes you send"
            )
        with disk_errors(name):
            os.fsync(self._file)
            self._keep(project, name, self._path)
        self._is_finished = True

    def _digest(self) -> str:
        if self._hash is not None:
            return self._hash.hexdigest()
        with open(self._file, "rb", buffering=0, closefd=False) as file:
            file.seek(0)
            hashed = sha256()
            while step := file.read(STEP):
                hashed.update(step)
        return hashed.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_lost = isinstance(error, (BlobStoreFull, OtherBytes, BodyTooLarge))
        # Where `keep` copied the file it is still there. It is removed under its lock: unlocked, its name may
        # be another's.
        if (self._is_finished or is_lost or not self._is_shared) and _is_at(self._file, self._path):
            self._path.unlink()
        os.close(self._file)


@contextmanager
def disk_errors(name: str) -> Iterator[None]:
    """Errors of the disk as what the sender of a blob can do about them."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise BlobStoreFull(
                hash=name, reason=error.strerror, hint="free some space, then send it again"
            ) from error
        raise BlobStoreUnavailable(
            hash=name, reason=error.strerror or str(error), hint="the server's log says more"
        ) from error


def sync_folder(folder: Path) -> None:
    """fsync of a folder: the names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _claim(path: Path, *, create: bool) -> int:
    """The file of an upload, open and locked.

    Raises:
        UploadInHand: someone else has it.
        FileNotFoundError: there is none, and it is not to be made.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    while True:
        file = os.open(path, flags, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between the two calls it may have become a blob, or have been swept.
            if _is_at(file, path):
                return file
        except BlockingIOError:
            os.close(file)
            raise UploadInHand(hint="ask for Upload-Offset later, or PUT all of it now") from None
        os.close(file)


def _wrong_offset(name: str, sent: int, offset: int) -> WrongOffset:
    return WrongOffset(hash=name, sent=sent, offset=offset, hint="send the bytes from `offset` on")


def _is_at(file: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False
