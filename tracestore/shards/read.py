"""Shards -> rows, checked. Pure pyarrow; memory stays at one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.shards.batch import from_batch
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
    """An export on disk: its manifest, and its rows as a stream."""

    path: Path
    manifest: Manifest

    def rows(self, *, check: bool = True) -> Iterator[Row]:
        """Every row, in the manifest's order of shards.

        Args:
            check: compare each file's sha256 with the manifest before the first row of it is given out.

        Raises:
            ShardMissing, ShardCorrupt, OtherSchema.
        """
        for shard in self.manifest.shards:
            yield from self.shard_rows(shard, check=check)

    def shard_rows(self, shard: ShardEntry, *, check: bool = True) -> Iterator[Row]:
        """The rows of one shard."""
        for batch in self.batches(shard, check=check):
            yield from_batch(batch)

    def batches(self, shard: ShardEntry, *, check: bool = True) -> Iterator[pa.RecordBatch]:
        """The record batches of one shard, one per row, memory-mapped."""
        path = self.path / shard.file
        if not path.is_file():
            raise ShardMissing(path=str(path), hint="copy the whole folder, or export again")
        if check:
            found = file_sha256(path)
            if found != shard.sha256:
                raise ShardCorrupt(path=str(path), sha256=found, expected=shard.sha256, hint="copy it again")
        with pa.memory_map(str(path)) as source:
            try:
                reader = pa.ipc.open_file(source)
            except pa.ArrowInvalid as error:
                raise ShardCorrupt(path=str(path), problem=str(error), hint="copy it again") from error
            if not reader.schema.equals(SCHEMA, check_metadata=False):
                raise OtherSchema(path=str(path), hint="export again with this version")
            if reader.num_record_batches != shard.rows:
                raise ShardCorrupt(path=str(path), rows=reader.num_record_batches, expected=shard.rows)
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i)


def open_export(path: str | Path) -> Export:
    """An export to read. The manifest is checked here, each shard when its first row is read.

    Raises:
        NotAnExport, ManifestCorrupt, OtherSchema: see `tracestore.shards.manifest.read_manifest`.
    """
    folder = Path(path)
    return Export(path=folder, manifest=read_manifest(folder))
