"""Shards -> rows, checked. Pure pyarrow; memory stays at one row, and of an export that lies elsewhere one
shard is on this machine's disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.shards.batch import from_batch
from tracestore.shards.files import Files, Folder, files_at
from tracestore.shards.log import Entry, Log, is_followed
from tracestore.shards.manifest import Manifest, NotAnExport, OtherSchema, ShardEntry, read_manifest
from tracestore.shards.row import Row
from tracestore.shards.schema import SCHEMA
from tracestore.shards.write import file_sha256


class ShardMissing(TracestoreError):
    """A shard that the manifest lists is not there."""


class ShardCorrupt(TracestoreError):
    """A shard is damaged."""


@dataclass(frozen=True)
class Export:
    """An export: its manifest, and its rows as a stream.

    One that goes on is read as it was when it was opened: `manifest` is that of its live rows. Where what is
    in a shard was deleted since, the shard is missing, and the export is to be opened again.
    """

    files: Files
    manifest: Manifest
    log: Log | None = None
    """Of an export that goes on."""

    @property
    def path(self) -> Path:
        """The folder of an export on this machine."""
        assert isinstance(self.files, Folder), f"{self.files.where} is no folder"
        return self.files.path

    @property
    def hash(self) -> str:
        """What names the export: its manifest's hash, or, of one that goes on, that of its log's header."""
        return self.manifest.manifest_hash if self.log is None else self.log.first_hash

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
        """The record batches of one shard that count, one per row, memory-mapped."""
        for place, batch in enumerate(self.all_batches(shard, check=check)):
            if self.is_live(shard, place):
                yield batch

    def is_live(self, shard: ShardEntry, place: int) -> bool:
        """Whether the row at a place of a shard counts."""
        return self.log is None or self.log.is_live(shard.file, place)

    def follow(
        self,
        *,
        after: int = 0,
        poll_s: float = 1.0,
        idle_s: float | None = None,
        stop: threading.Event | None = None,
    ) -> Iterator[News]:
        """Every entry of an export that goes on, as it comes.

        Args:
            after: number of the last entry that the caller has; 0: none.
            poll_s: how often to look, in seconds.
            idle_s: end when no entry has come for so many seconds; None: never, 0: with what there is.
            stop: end soon after it is set, from whatever thread.

        Raises:
            NotAnExport: it does not go on.
            LogCorrupt: see `tracestore.shards.log.Log.read`.
        """
        log, entries = Log.read(self.files)
        stop = threading.Event() if stop is None else stop
        came = time.monotonic()
        while True:
            for entry in entries:
                if entry.number > after:
                    yield News(entry, Export(self.files, self.manifest, log))
            if entries:
                came = time.monotonic()
            elif (idle_s is not None and time.monotonic() - came >= idle_s) or stop.wait(poll_s):
                return
            entries = log.advance()

    def all_batches(self, shard: ShardEntry, *, check: bool = True) -> Iterator[pa.RecordBatch]:
        """The record batches of one shard, those that count no more included."""
        with self.opened(shard, check=check) as opened:
            for place in range(shard.rows):
                yield opened.batch(place)

    @contextmanager
    def opened(self, shard: ShardEntry, *, check: bool = True) -> Iterator[OpenShard]:
        """A shard to take rows from in any order, memory-mapped.

        Raises:
            ShardMissing, ShardCorrupt, OtherSchema.
        """
        with self.file(shard) as path:
            if check or not self.files.is_local:
                found = file_sha256(path)
                if found != shard.sha256:
                    raise ShardCorrupt(
                        file=self._name(shard), sha256=found, expected=shard.sha256, hint="copy it again"
                    )
            with pa.memory_map(str(path)) as source:
                yield OpenShard(shard, self._name(shard), source)

    @contextmanager
    def opened_now(
        self, shard: ShardEntry, *, check: bool = True
    ) -> Iterator[tuple[Export, OpenShard] | None]:
        """What `opened` gives, or of an export that goes on the shard that took its place, with the export as
        far as its log says so; None: nothing of it counts any more. Raises as `opened`."""
        log = self.log
        with ExitStack() as stack:
            while log is not None and (current := log.current(shard.file)) is not None:
                now = Export(self.files, self.manifest, log)
                try:
                    found = stack.enter_context(now.opened(current, check=check))
                except (ShardMissing, FileNotFoundError):
                    log = log.copy()
                    if not log.advance():
                        raise
                else:
                    yield now, found
                    return
            yield (
                None if self.log is not None else (self, stack.enter_context(self.opened(shard, check=check)))
            )

    @contextmanager
    def file(self, shard: ShardEntry) -> Iterator[Path]:
        """The file of a shard, or a copy of it. Raises ShardMissing."""
        with ExitStack() as stack:
            try:
                path = stack.enter_context(self.files.opened(shard.file))
            except FileNotFoundError as error:
                hint = "copy the whole folder, or export again"
                if self.log is not None:
                    hint = "open the export again, what was in it may be deleted; else copy the whole folder"
                raise ShardMissing(file=self._name(shard), hint=hint) from error
            yield path

    def _name(self, shard: ShardEntry) -> str:
        return f"{self.files.where}/{shard.file}"


class OpenShard:
    """The rows of one shard, in any order."""

    def __init__(self, shard: ShardEntry, name: str, source: pa.NativeFile) -> None:
        """Raises ShardCorrupt and OtherSchema; `name` is what they call it."""
        self.shard = shard
        self._source = source
        self._reader = _reader(source, name, None)
        if not self._reader.schema.equals(SCHEMA, check_metadata=False):
            raise OtherSchema(path=name, hint="export again with this version")
        found = self._reader.num_record_batches
        if found != shard.rows:
            raise ShardCorrupt(file=name, rows=found, expected=shard.rows)

    def batch(self, place: int) -> pa.RecordBatch:
        """The record batch of the row at a place."""
        return self._reader.get_batch(place)

    def row(self, place: int) -> Row:
        """The row at a place."""
        return from_batch(self.batch(place))

    def values(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Some columns of every row, in order; nothing else is read."""
        reader = _reader(self._source, self.shard.file, [SCHEMA.get_field_index(name) for name in columns])
        return [reader.get_batch(place).to_pylist()[0] for place in range(self.shard.rows)]


def _reader(source: pa.NativeFile, name: str, columns: list[int] | None) -> pa.ipc.RecordBatchFileReader:
    source.seek(0)
    # A row has some hundred buffers, most of them of a few bytes: to hand them to a pool costs more than to
    # unpack them.
    options = pa.ipc.IpcReadOptions(included_fields=columns or [], use_threads=False)
    try:
        return pa.ipc.open_file(source, options=options)
    except pa.ArrowInvalid as error:
        raise ShardCorrupt(file=name, problem=str(error), hint="copy it again") from error


@dataclass(frozen=True)
class News:
    """An entry of an export that goes on."""

    entry: Entry
    """What it adds, and which earlier rows count no more (`tombstones`)."""
    export: Export
    """The export as far as its log was read when this entry was given."""

    def rows(self, *, check: bool = True) -> Iterator[Row]:
        """The rows that it adds, without those that a later entry, if already there, has replaced or deleted.

        Raises:
            ShardMissing, ShardCorrupt, OtherSchema.
        """
        for shard in self.entry.shards:
            with self.export.opened_now(shard, check=check) as found:
                if found is not None:
                    now, opened = found
                    places = (place for place in range(opened.shard.rows) if now.is_live(opened.shard, place))
                    yield from map(opened.row, places)


def open_export(place: str | Path, *, key: str | None = None) -> Export:
    """An export to read. The manifest is checked here, each shard when its first row is read.

    One that goes on is read up to its last entry, and its log is checked as a whole.

    Args:
        place: a folder, or a URL as `tracestore.shards.files` says.
        key: API key for a URL; None: that of TRACESTORE_API_KEY, if it is set.

    Raises:
        NotAnExport, ManifestCorrupt, OtherSchema: see `tracestore.shards.manifest.read_manifest`.
        LogCorrupt: see `tracestore.shards.log.Log.read`.
        BadPlace, Unreachable: see `tracestore.shards.files`.
    """
    files = files_at(place, key=key)
    try:
        return Export(files=files, manifest=read_manifest(files))
    except NotAnExport:
        if not is_followed(files):
            raise
    log, _ = Log.read(files)
    return Export(files=files, manifest=log.manifest(), log=log)
