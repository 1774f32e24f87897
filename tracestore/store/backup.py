"""A SQLite store -> one file that is all of it at one moment, while the server writes; and back.

The copy is made by SQLite itself, some pages at a time, inside one read transaction: what commits meanwhile
goes to the log and neither waits for the copy nor makes it begin anew. It gets its name when it has been
checked and is on disk, so what has the name is whole. Payloads lie beside it in `FILE.blobs`.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

from sqlalchemy import make_url

from tracestore.errors import TracestoreError
from tracestore.store.blobs.base import STEP
from tracestore.store.blobs.uploads import sync_folder
from tracestore.store.engine import BUSY_TIMEOUT_MS, BadUrl, NoStore

_PAGES = 2048
"""Pages that are copied at once; between two steps the caller hears how far it is."""

Heard = Callable[[int, int], None]
"""Told (pages copied, pages there are)."""


class FileThere(TracestoreError):
    """There is something of this name already"""

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
    """Copy a SQLite store that may be in use; all that was acknowledged before the call is in the copy.

    Args:
        blobs: the folder in which the server keeps payloads; None: there is none, or they lie elsewhere.

    Raises:
        BadUrl: not a SQLite store.
        FileThere: nothing is written over.
        BadBackup: the store is damaged, and so is what was copied of it.
    """
    source = _file_of(url)
    if not source.exists():
        raise NoStore(file=str(source), hint="name another one with --db")
    return _copy(source, file, blobs=blobs, heard=heard)


def restore(file: Path, url: str, *, heard: Heard) -> Copied:
    """Make a store of a backup, with the payloads that lie beside it.

    Raises:
        BadUrl: not the URL of a SQLite store.
        FileThere: there is a store already; one that may be in use is never written over.
        BadBackup: the file is no backup, or damaged.
    """
    target = _file_of(url)
    if not file.exists():
        raise BadBackup(file=str(file), hint="there is no such file")
    return _copy(file, target, blobs=blobs_of(file), heard=heard)


def blobs_of(file: Path) -> Path:
    """The folder of payloads beside a store or a backup."""
    return file.with_name(f"{file.name}.blobs")


def _file_of(url: str) -> Path:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise BadUrl(
            url=parsed.render_as_string(hide_password=True),
            hint="for PostgreSQL use its own tools, which copy a running server at one moment: "
            "`pg_dump --format=custom --file=FILE URL` and `pg_restore --dbname=URL FILE`",
        )
    return Path(parsed.database)


def _copy(source: Path, target: Path, *, blobs: Path | None, heard: Heard) -> Copied:
    for there in (target, blobs_of(target)):
        if there.exists():
            raise FileThere(path=str(there), hint="name another one, or move it away")
    if not target.absolute().parent.is_dir():
        raise NoStore(folder=str(target.absolute().parent), hint="make the folder first")
    partial = target.with_name(f"{target.name}.partial")
    with _unfinished(partial):
        _copy_pages(source, partial, heard=heard)
        revision, positions = _checked(partial)
        size = partial.stat().st_size
        # After the rows: a payload that a row of the copy needs has either come by now, or had not then.
        num_blobs, blob_bytes = _copy_blobs(blobs, blobs_of(partial)) if blobs is not None else (0, 0)
        _sync(partial)
        if num_blobs:
            os.rename(blobs_of(partial), blobs_of(target))
        os.rename(partial, target)
    sync_folder(target.absolute().parent)
    return Copied(str(target), size, revision, positions, num_blobs, blob_bytes)


@contextmanager
def _unfinished(partial: Path) -> Iterator[None]:
    """What an attempt before has left, and what this one leaves if it fails, goes away."""
    _remove(partial)
    try:
        yield
    finally:
        _remove(partial)


def _remove(partial: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        partial.with_name(partial.name + suffix).unlink(missing_ok=True)
    shutil.rmtree(blobs_of(partial), ignore_errors=True)


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
        except sqlite3.DatabaseError as error:
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


def _copy_blobs(source: Path, target: Path) -> tuple[int, int]:
    """Copy every whole payload (a file whose name is its hash), each hashed on the way; how many, bytes."""
    number = size = 0
    if not source.is_dir():
        return number, size
    for file in sorted(source.glob("*/??/*")):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        size += _copy_blob(file, place)
        number += 1
    for folder in [target, *target.rglob("*")] if number else []:
        if folder.is_dir():
            sync_folder(folder)
    return number, size


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
