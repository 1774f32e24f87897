"""An export in a folder: put together in the hidden folder beside it (see `staging`), and moved from there
in the end.

    .NAME.partial/plan.json         what was begun
    .NAME.partial/HASH/export/      finished shards, later the export
    .NAME.partial/HASH/parts/       what each adds to the manifest, written after it
    .NAME.partial/HASH/work/        what is being written

HASH is the plan's, so that a process of an older plan, should one still run, finds no place to write to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
from tracestore_exporters.plan import PlanRecord
from tracestore_exporters.staging import PLAN_NAME, Staged, require_free


@contextmanager
def folder_place(out: Path) -> Iterator[FolderPlace]:
    """The place of an export in a folder, for this process and its workers alone.

    Raises:
        NotEmpty, InUse, BadOut: see `place_at`.
    """
    with Staged.beside(out) as staged:
        place = FolderPlace(out, staged)
        try:
            record = place.begun()
            if record is None or place.published(record) is None:
                require_free(out)
            if record is not None:
                place.resume(record)
            yield place
        finally:
            if place.begun() is None:
                place.clear()


class FolderPlace:
    """See `Place`."""

    def __init__(self, out: Path, staged: Staged) -> None:
        self._out = out
        self._staged = staged

    @property
    def unfinished(self) -> str:
        return str(self._staged.path)

    @property
    def lock(self) -> int | None:
        return self._staged.lock

    def begun(self) -> PlanRecord | None:
        try:
            return PlanRecord.model_validate_json((self._staged.path / PLAN_NAME).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def begin(self, record: PlanRecord) -> None:
        self._staged.empty()
        self._make(record)
        _put(self._staged.path / PLAN_NAME, record.model_dump_json().encode(), work=self.parts(record).work)

    def _make(self, record: PlanRecord) -> None:
        parts = self.parts(record)
        for folder in (parts.export, parts.parts, parts.work):
            folder.mkdir(parents=True, exist_ok=True)

    def parts(self, record: PlanRecord) -> FolderParts:
        return FolderParts(self._staged.path / record.plan_hash[:16])

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
        self._staged.remove()


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
