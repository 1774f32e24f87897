"""Shards -> rows, checked. Pure pyarrow; memory stays at one row, and of an export that lies elsewhere one
shard is on this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.shards.batch import from_batch
from tracestore.shards.files import Files, Folder, files_at
from tracestore.shards.manifest import Manifest, OtherSchema, ShardEntry, read_manifest
from tracestore.shards.row import Row
from tracestore.shards.schema import SCHEMA
from tracestore.shards.write import file_sha256


class ShardMissing(TracestoreError):
    """A shard that the manifest lists is not there."""


class ShardCorrupt(TracestoreError):
    """A shard is damaged."""


@dataclass(frozen=True)
class Export:
    """An export: its manifest, and its rows as a stream."""

    files: Files
    manifest: Manifest

    @property
    def path(self) -> Path:
        """The folder of an export on this machine."""
        assert isinstance(self.files, Folder), f"{self.files.where} is no folder"
        return self.files.path

    def rows(self, *, check: bool = True) -> Iterator[Row]:
        """Every row, in the manifest's order of shards.

        Args:
            check: compare each file's sha256 with the manifest before the first row of it is given out. What
                was copied from elsewhere is always compared.

        Raises:
            ShardMissing, ShardCorrupt, OtherSchema.
            Unreachable: see `tracestore.shards.files`.
        """
        for shard in self.manifest.shards:
            yield from self.shard_rows(shard, check=check)

    def shard_rows(self, shard: ShardEntry, *, check: bool = True) -> Iterator[Row]:
        """The rows of one shard."""
        for batch in self.batches(shard, check=check):
            yield from_batch(batch)

    def batches(self, shard: ShardEntry, *, check: bool = True) -> Iterator[pa.RecordBatch]:
        """The record batches of one shard, one per row, memory-mapped."""
        with self.file(shard) as path:
            if check or not self.files.is_local:
                found = file_sha256(path)
                if found != shard.sha256:
                    raise ShardCorrupt(
                        file=self._name(shard), sha256=found, expected=shard.sha256, hint="copy it again"
                    )
            yield from self._mapped(shard, path)

    @contextmanager
    def file(self, shard: ShardEntry) -> Iterator[Path]:
        """The file of a shard, or a copy of it. Raises ShardMissing."""
        with ExitStack() as stack:
            try:
                path = stack.enter_context(self.files.opened(shard.file))
            except FileNotFoundError as error:
                hint = "copy the whole folder, or export again"
                raise ShardMissing(file=self._name(shard), hint=hint) from error
            yield path

    def _name(self, shard: ShardEntry) -> str:
        return f"{self.files.where}/{shard.file}"

    def _mapped(self, shard: ShardEntry, path: Path) -> Iterator[pa.RecordBatch]:
        name = self._name(shard)
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_file(source)
            except pa.ArrowInvalid as error:
                raise ShardCorrupt(file=name, problem=str(error), hint="copy it again") from error
            if not reader.schema.equals(SCHEMA, check_metadata=False):
                raise OtherSchema(path=name, hint="export again with this version")
            if reader.num_record_batches != shard.rows:
                raise ShardCorrupt(file=name, rows=reader.num_record_batches, expected=shard.rows)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)


def open_export(place: str | Path, *, key: str | None = None) -> Export:
    """An export to read. The manifest is checked here, each shard when its first row is read.

    Args:
        place: a folder, or a URL as `tracestore.shards.files` says.
        key: API key for a URL; None: that of TRACESTORE_API_KEY, if it is set.

    Raises:
        NotAnExport, ManifestCorrupt, OtherSchema: see `tracestore.shards.manifest.read_manifest`.
        BadPlace, Unreachable: see `tracestore.shards.files`.
    """
    files = files_at(place, key=key)
    return Export(files=files, manifest=read_manifest(files))
