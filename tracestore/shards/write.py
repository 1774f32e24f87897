"""Rows -> one shard file, seen whole or not at all.

An Arrow IPC file, one record batch per row, written beside its name, fsynced, then renamed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa

from tracestore.shards.batch import ContentHash, to_batch
from tracestore.shards.durable import fsync_folder, partial_of
from tracestore.shards.manifest import ShardEntry
from tracestore.shards.row import Row
from tracestore.shards.schema import SCHEMA

Compression = Literal["zstd", "lz4", "none"]


def write_shard(
    path: Path, rows: Iterable[Row], *, compression: Compression = "zstd", partial: Path | None = None
) -> ShardEntry | None:
    """Writes rows as one shard and says what is in it; None, and no file, when there are no rows.

    Rows are written as they come: memory stays at one row. On any error no file of that name appears.

    Args:
        partial: the file it is until it is whole, on the same disk; None: one beside it. Writers in several
            processes name one each.
    """
    if partial is None:
        partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            written = write_rows(file, rows, compression=compression)
            file.flush()
            os.fsync(file.fileno())
        if written.rows == 0:
            return None
        entry = written.entry(path.name, size=partial.stat().st_size, sha256=file_sha256(partial))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    fsync_folder(path.parent)
    return entry


def write_rows(file: BinaryIO, rows: Iterable[Row], *, compression: Compression) -> Written:
    """Writes rows as the bytes of one shard and counts them; a file without rows is a shard too."""
    written = Written()
    with pa.ipc.new_file(file, SCHEMA, options=_options(compression)) as writer:
        for row in rows:
            batch = to_batch(row)
            writer.write_batch(batch)
            written.add(row, batch)
    return written


class Written:
    """What has been written so far."""

    def __init__(self) -> None:
        self.rows = self.samples = self.tokens = self.trained_tokens = 0
        self.content = ContentHash()

    def add(self, row: Row, batch: pa.RecordBatch) -> None:
        """One more row, and the batch that it became."""
        self.rows += 1
        self.samples += len(row.samples)
        self.tokens += len(row.token_ids)
        self.trained_tokens += row.num_trained
        self.content.add(batch)

    def entry(self, file: str, *, size: int, sha256: str) -> ShardEntry:
        """What a manifest says of the file."""
        return ShardEntry(
            file=file,
            rows=self.rows,
            samples=self.samples,
            tokens=self.tokens,
            trained_tokens=self.trained_tokens,
            size=size,
            sha256=sha256,
            content_hash=self.content.hexdigest(),
        )


def _options(compression: Compression) -> pa.ipc.IpcWriteOptions:
    # One after the other: a row has some hundred buffers, most of them small, and handing them to threads
    # takes longer than to compress them.
    codec = None if compression == "none" else pa.Codec(compression, 1 if compression == "zstd" else None)
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
