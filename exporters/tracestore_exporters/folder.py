"""An export in a folder: put together in a hidden folder beside it, `.NAME.partial`, of which the finished
export takes its name in the end.

    .NAME.partial/lock              held by the exporter that is at work
    .NAME.partial/plan.json         what was begun
    .NAME.partial/HASH/export/      finished shards, later the export
    .NAME.partial/HASH/parts/       what each adds to the manifest, written after it
    .NAME.partial/HASH/work/        what is being written

HASH is the plan's, so that a process of an older plan, should one still run, finds no place to write to.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import ValidationError

from tracestore.errors import TracestoreError
from tracestore.shards.durable import fsync_folder
from tracestore.shards.manifest import Manifest, ShardEntry, read_manifest, write_manifest
from tracestore.shards.row import Row
from tracestore.shards.write import Compression, file_sha256, write_shard
from tracestore_exporters.parts import Part, parse_part, part_text, shard_name
from tracestore_exporters.place import BadOut, InUse, NotEmpty
from tracestore_exporters.plan import PlanRecord

_PLAN, _LOCK = "plan.json", "lock"
_PATIENCE_S = 5.0
"""How long the workers of an exporter that was killed may take to notice it."""
_ASK_AGAIN_S = 0.05


@contextmanager
def folder_place(out: Path) -> Iterator[FolderPlace]:
    """The place of an export in a folder, for this process and its workers alone.

    Raises:
        NotEmpty, InUse, BadOut: see `place_at`.
    """
    staged = out.with_name(f".{out.name}.partial")
    if _is_taken(out) and not staged.is_dir():
        raise _taken(out)
    try:
        staged.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOut(out=str(out), reason=error.strerror, hint="name a folder that can be made") from error
    lock = _locked(staged)
    place = FolderPlace(out, staged, lock)
    try:
        record = place.begun()
        if _is_taken(out) and (record is None or place.published(record) is None):
            raise _taken(out)
        if record is not None:
            place.resume(record)
        yield place
    finally:
        if place.begun() is None:
            place.clear()
        os.close(lock)


class FolderPlace:
    """See `Place`."""

    def __init__(self, out: Path, staged: Path, lock: int) -> None:
        self._out = out
        self._staged = staged
        self._lock = lock

    @property
    def unfinished(self) -> str:
        return str(self._staged)

    @property
    def lock(self) -> int | None:
        return self._lock

    def begun(self) -> PlanRecord | None:
        try:
            return PlanRecord.model_validate_json((self._staged / _PLAN).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def begin(self, record: PlanRecord) -> None:
        self._empty()
        self._make(record)
        _put(self._staged / _PLAN, record.model_dump_json().encode(), work=self.parts(record).work)

    def _make(self, record: PlanRecord) -> None:
        parts = self.parts(record)
        for folder in (parts.export, parts.parts, parts.work):
            folder.mkdir(parents=True, exist_ok=True)

    def parts(self, record: PlanRecord) -> FolderParts:
        return FolderParts(self._staged / record.plan_hash[:16])

    def resume(self, record: PlanRecord) -> None:
        """Take away what a run that was killed had in hand."""
        self._make(record)
        for path in self.parts(record).work.iterdir():
            path.unlink()

    def publish(self, record: PlanRecord, manifest: Manifest) -> None:
        folder = self.parts(record).export
        write_manifest(folder, manifest)
        os.replace(folder, self._out)
        fsync_folder(self._out.parent)

    def published(self, record: PlanRecord) -> Manifest | None:
        try:
            manifest = read_manifest(self._out)
        except TracestoreError:
            return None
        return manifest if record.asked.is_of(manifest) else None

    def clear(self) -> None:
        if not _is_at(self._lock, self._staged / _LOCK):
            return
        self._empty()
        (self._staged / _LOCK).unlink()
        with suppress(OSError):  # the next exporter has come in between
            self._staged.rmdir()

    def _empty(self) -> None:
        # The plan last: without it the rest is nothing that anybody goes on with.
        found = [path for path in self._staged.iterdir() if path.name != _LOCK]
        for path in sorted(found, key=lambda path: path.name == _PLAN):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


@dataclass(frozen=True, slots=True)
class FolderParts:
    """See `Parts`."""

    folder: Path

    @property
    def export(self) -> Path:
        return self.folder / "export"

    @property
    def parts(self) -> Path:
        return self.folder / "parts"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def write(self, file: str, rows: Iterable[Row], *, compression: Compression) -> ShardEntry | None:
        partial = self.work / f"{file}.{uuid4().hex}"
        path = self.export / shard_name(file, self.folder.name)
        return write_shard(path, rows, compression=compression, partial=partial)

    def keep(self, part: Part) -> None:
        _put(self._part(part.file), part_text(part), work=self.work)

    def find(self, file: str) -> Part | None:
        try:
            part = parse_part(self._part(file).read_bytes())
            if part is None or part.file != file:
                return None
            if part.shard is None or file_sha256(self.export / part.shard.file) == part.shard.sha256:
                return part
        except FileNotFoundError:
            pass
        return None

    def _part(self, file: str) -> Path:
        return self.parts / f"{file}.json"


def _put(path: Path, data: bytes, *, work: Path) -> None:
    """A small file, whole or not at all. It is not synced: all of these carry hashes, and what a power cut
    takes is made again."""
    partial = work / f"{path.name}.{uuid4().hex}"
    partial.write_bytes(data)
    os.replace(partial, path)


def _is_taken(out: Path) -> bool:
    return out.exists() and (not out.is_dir() or any(out.iterdir()))


def _taken(out: Path) -> NotEmpty:
    return NotEmpty(path=str(out), hint="name a new folder: an export is never changed or mixed")


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
            # Its exporter may have ended and taken it away while this one waited.
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
