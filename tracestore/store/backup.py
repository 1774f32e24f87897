"""A store -> one SQLite file that is all of it at one moment, while the server writes; and back.

A SQLite store is copied by SQLite itself, some pages at a time, a PostgreSQL database row by row into the
same tables; each inside one read transaction: what commits meanwhile neither waits for the copy nor is in it.
The copy gets its name when it has been checked and is on disk, its payloads before it, so what has the name
is whole. Payloads lie beside it in `FILE.blobs`. It is a store that every verb opens, and becomes one on
either database again. An attempt that was killed is made again by the same command.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from tracestore.errors import TracestoreError
from tracestore.store import schema
from tracestore.store.blobs.base import STEP
from tracestore.store.blobs.uploads import sync_folder
from tracestore.store.copying import Heard, copy_rows
from tracestore.store.engine import (
    BUSY_TIMEOUT_MS,
    NoStore,
    StoreFull,
    StoreUnavailable,
    connect,
    parse_url,
    read,
    url_to_show,
)

_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""Result codes of a copy that does not get on, the second also where a file may not grow so large."""
_PAGES = 2048
"""Pages that are copied at once; between two steps the caller hears how far it is."""


class FileThere(TracestoreError):
    """There is something already"""

    exit_code: ClassVar[int] = 2


class NoFolder(TracestoreError):
    """There is no such folder"""

    exit_code: ClassVar[int] = 2


class BlobsWithoutPlace(TracestoreError):
    """The backup has payloads, and nothing says where they are to lie"""

    exit_code: ClassVar[int] = 2


class BadBackup(TracestoreError):
    """This file is not a whole copy of a store"""


@dataclass(frozen=True, slots=True)
class Copied:
    """A store as it was copied."""

    file: str
    bytes: int
    revision: str
    """Of the schema."""
    positions: dict[str, int]
    """Project -> position of its last event in the copy: everything up to it is there."""
    blobs: int
    """Payloads copied beside it."""
    blob_bytes: int


def backup(url: str, file: Path, *, blobs: Path | None, heard: Heard) -> Copied:
    """Copy a store that may be in use; all that was acknowledged before the call is in the copy.

    Args:
        blobs: the folder in which the server keeps payloads; None: there is none, or they lie elsewhere.

    Raises:
        NoStore, NoFolder: there is none, or no folder for the copy.
        FileThere: nothing is written over.
        WrongRevision: a PostgreSQL database of another version, whose tables this one does not know.
        BadBackup: the store is damaged, and so is what was copied of it.
    """
    source = _sqlite_file(url)
    if source is None:
        return _made(file, lambda partial: _copy_from_server(url, partial, heard=heard), blobs=blobs)
    if not source.exists():
        raise NoStore(file=str(source), hint="name another one with --db")
    return _made(file, lambda partial: _copy_pages(source, partial, heard=heard), blobs=blobs)


def restore(file: Path, url: str, *, blobs: Path | None, heard: Heard) -> Copied:
    """Make a store of a backup, with the payloads that lie beside it.

    Args:
        blobs: the folder for the payloads; None: beside a SQLite store, none for PostgreSQL.

    Raises:
        FileThere: there is a store already; one that may be in use is never written over.
        BadBackup: the file is no backup, or damaged.
        BlobsWithoutPlace: the backup holds payloads, and PostgreSQL keeps none.
        WrongRevision: for PostgreSQL, a backup of another version.
    """
    if not file.exists():
        raise BadBackup(file=str(file), hint="there is no such file")
    target = _sqlite_file(url)
    if target is not None:
        return _made(
            target,
            lambda partial: _copy_pages(file, partial, heard=heard),
            blobs=blobs_of(file),
            blobs_to=blobs,
        )
    if blobs is None and blobs_of(file).is_dir():
        raise BlobsWithoutPlace(folder=str(blobs_of(file)), hint="name a new folder with --blobs")
    return _copy_to_server(file, url, blobs=blobs, heard=heard)


def blobs_of(file: Path) -> Path:
    """The folder of payloads beside a store or a backup."""
    return file.with_name(f"{file.name}.blobs")


def _sqlite_file(url: str) -> Path | None:
    """The file that a URL names; None: it names a server."""
    parsed = parse_url(url)
    return Path(parsed.database or "") if parsed.get_backend_name() == "sqlite" else None


def _made(
    target: Path, fill: Callable[[Path], None], *, blobs: Path | None, blobs_to: Path | None = None
) -> Copied:
    """A file, filled under another name and checked, with the payloads of a folder beside it."""
    place = blobs_of(target) if blobs_to is None else blobs_to
    if target.exists():
        raise FileThere(path=str(target), hint="name another one, or move it away")
    if not target.absolute().parent.is_dir():
        raise NoFolder(folder=str(target.absolute().parent), hint="make it first, or name another one")
    partial = target.with_name(f"{target.name}.partial")
    with _payloads(place) as payloads, _unfinished(partial), _disk_errors(target):
        fill(partial)
        revision, positions = _checked(partial)
        size = partial.stat().st_size
        # After the rows: a payload that a row of the copy needs has either come by now, or had not then.
        num_blobs, blob_bytes = payloads.copy(blobs) if blobs is not None else (0, 0)
        _sync(partial)
        os.rename(partial, target)
    sync_folder(target.absolute().parent)
    payloads.end()
    return Copied(str(target), size, revision, positions, num_blobs, blob_bytes)


def _copy_from_server(url: str, partial: Path, *, heard: Heard) -> None:
    """The rows of a PostgreSQL database at one moment, as a SQLite store."""
    engine, copy = connect(url), connect(f"sqlite:///{partial}")
    try:
        with read(engine) as source:
            schema.require(source)
            with copy.connect() as target:
                driver = target.connection.driver_connection
                assert driver is not None
                # The copy is checked as a whole when it is whole.
                driver.execute("PRAGMA foreign_keys = OFF")
                with target.begin():
                    schema.create(target)
                    schema.set_plan_statistics(target)
                    copy_rows(source, target, heard=heard)
                driver.execute("PRAGMA journal_mode = DELETE")
    finally:
        engine.dispose()
        copy.dispose()


def _copy_to_server(file: Path, url: str, *, blobs: Path | None, heard: Heard) -> Copied:
    revision, positions = _checked(file)
    engine, backed_up = connect(url), connect(f"sqlite:///{file}", create=False)
    try:
        with (
            nullcontext(None) if blobs is None else _payloads(blobs) as payloads,
            backed_up.connect() as source,
            engine.begin() as target,
        ):
            schema.require(source)
            schema.lock(target)
            if not schema.is_empty(target):
                raise FileThere(url=url_to_show(url), hint="name a database that is empty")
            schema.create(target)
            copy_rows(source, target, heard=heard)
            num_blobs, blob_bytes = (0, 0) if payloads is None else payloads.copy(blobs_of(file))
        if payloads is not None:
            payloads.end()
    finally:
        engine.dispose()
        backed_up.dispose()
    return Copied(url_to_show(url), file.stat().st_size, revision, positions, num_blobs, blob_bytes)


@contextmanager
def _unfinished(partial: Path) -> Iterator[None]:
    """What an attempt before has left, and what this one leaves if it fails, goes away."""
    _remove(partial)
    try:
        yield
    finally:
        _remove(partial)


@contextmanager
def _disk_errors(target: Path) -> Iterator[None]:
    """What the disk says, as what can be done about it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFull(file=str(target), hint="free some space there, or name another place") from error
        raise StoreUnavailable(
            file=str(target), reason=error.strerror or str(error), hint="check the disk"
        ) from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in _NO_ROOM:
            raise
        raise StoreFull(
            file=str(target), reason=str(error), hint="free some space there, or name another place"
        ) from error


def _remove(partial: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)


def _copy_pages(source: Path, partial: Path, *, heard: Heard) -> None:
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reader,
        closing(sqlite3.connect(partial)) as copy,
    ):
        reader.isolation_level = None
        reader.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        try:
            # The transaction begins with its first read, and the copy is of that moment. Without one, every
            # commit of another process would make the copy begin anew.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            reader.backup(copy, pages=_PAGES, progress=lambda _, left, pages: heard(pages - left, pages))
            reader.execute("ROLLBACK")
            # Read from a write-protected place too, and without files of its own beside it.
            copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _NO_ROOM:
                raise
            raise BadBackup(file=str(source), error=str(error), hint="is this a store?") from error


def _checked(file: Path) -> tuple[str, dict[str, int]]:
    """Revision and positions of a copy that SQLite finds whole."""
    with closing(sqlite3.connect(file)) as copy:
        try:
            problems = [row[0] for row in copy.execute("PRAGMA integrity_check(5)")]
            dangling = copy.execute("PRAGMA foreign_key_check").fetchone()
            (revision,) = copy.execute("SELECT version_num FROM alembic_version").fetchone()
            positions = dict(copy.execute("SELECT name, commit_seq FROM project ORDER BY name"))
        except (sqlite3.DatabaseError, TypeError) as error:
            raise BadBackup(file=str(file), error=str(error), hint="is this a store?") from error
    if problems != ["ok"] or dangling is not None:
        found = problems if problems != ["ok"] else [f"a row of {dangling[0]} refers to nothing"]
        raise BadBackup(
            file=str(file), found="; ".join(found), hint="`tracestore verify` names what is damaged"
        )
    return revision, positions


@contextmanager
def _payloads(place: Path) -> Iterator[_Payloads]:
    """The payloads of a copy that is being made; where that fails, what it has made of them goes.

    Raises:
        FileThere: there is such a folder, and not of an attempt that was killed.
    """
    payloads = _Payloads(place)
    if place.exists() and not payloads.are_unfinished:
        raise FileThere(path=str(place), hint="name another one, or move it away")
    try:
        yield payloads
    except BaseException:
        payloads.undo()
        raise


class _Payloads:
    """A folder of payloads, marked from its first moment until the store that they belong to has its name.

    Killed between, the next attempt knows by the mark that it may go on. It adds what is missing, and takes
    nothing away: payloads have their hashes for names, so whatever else lies there does no harm.
    """

    def __init__(self, place: Path) -> None:
        self._place = place
        self._mark = place / "unfinished"
        self._partial = place / "partial"
        self._is_ours = False

    @property
    def are_unfinished(self) -> bool:
        return self._mark.exists()

    def copy(self, source: Path) -> tuple[int, int]:
        """Copy every whole payload (a file whose name is its hash), each hashed on the way; how many, bytes.

        On disk when it returns, with their names.
        """
        files = sorted(source.glob("*/??/*"))
        if not files:
            return 0, 0
        self._begin()
        size = 0
        for file in files:
            target = self._place / file.relative_to(source)
            size += _copy_blob(file, self._partial)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._partial, target)
        for folder in (self._place.absolute().parent, self._place, *self._place.rglob("*")):
            if folder.is_dir():
                sync_folder(folder)
        return len(files), size

    def end(self) -> None:
        """The store has its name, durably."""
        if self.are_unfinished:
            self._partial.unlink(missing_ok=True)
            self._mark.unlink()
            sync_folder(self._place)

    def undo(self) -> None:
        """Remove the folder, if it was made here."""
        if self._is_ours:
            shutil.rmtree(self._place, ignore_errors=True)

    def _begin(self) -> None:
        # The folder gets its name with the mark in it.
        making = self._place.with_name(f"{self._place.name}.partial")
        if not self._place.exists():
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(parents=True)
            (making / self._mark.name).touch()
            sync_folder(making)
            os.rename(making, self._place)
            self._is_ours = True


def _copy_blob(file: Path, place: Path) -> int:
    hashed, size = sha256(), 0
    with file.open("rb") as source, place.open("wb") as copy:
        while step := source.read(STEP):
            hashed.update(step)
            size += copy.write(step)
        copy.flush()
        os.fsync(copy.fileno())
    if hashed.hexdigest() != file.name:
        raise BadBackup(blob=str(file), hint="its bytes do not have its hash: send it again, or remove it")
    return size


def _sync(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
