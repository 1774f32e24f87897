from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.shards.rows import same_row, tiny_row
from tracestore.shards.manifest import (
    Conservation,
    Manifest,
    ManifestCorrupt,
    NotAnExport,
    OtherSchema,
    ShardEntry,
    read_manifest,
    write_manifest,
)
from tracestore.shards.read import ShardCorrupt, ShardMissing, open_export
from tracestore.shards.row import Row
from tracestore.shards.schema import SCHEMA_VERSION, schema_hash
from tracestore.shards.write import Compression, write_shard


def written(folder: Path, *, compression: Compression = "zstd", rows: int = 2) -> ShardEntry:
    entry = write_shard(
        folder / "s.arrow", [tiny_row(part=n, num_parts=rows) for n in range(rows)], compression=compression
    )
    assert entry is not None
    return entry


def manifest(*shards: ShardEntry) -> Manifest:
    return Manifest(
        schema_hash=schema_hash(),
        project="p",
        snapshot=7,
        spec={"objective": "rl"},
        spec_hash="0",
        libraries={"pyarrow": pa.__version__},
        shards=shards,
        groups=1,
        rows=sum(shard.rows for shard in shards),
        samples=sum(shard.samples for shard in shards),
        causes={"root": 2},
        conservation=Conservation(
            sampled_tokens=5,
            trained_tokens=4,
            excluded={"purpose": 1},
            completions=3,
            no_token_ids_calls=0,
            no_token_ids_tokens=None,
        ),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_manifest(tmp_path, manifest(written(tmp_path)))
    return tmp_path


@pytest.mark.parametrize("compression", ["zstd", "lz4", "none"])
def test_a_shard_read_back_equals_the_rows_written(tmp_path: Path, compression: Compression) -> None:
    write_manifest(tmp_path, manifest(written(tmp_path, compression=compression)))
    rows = list(open_export(tmp_path).rows())
    assert len(rows) == 2
    assert all(same_row(row, tiny_row(part=n, num_parts=2)) for n, row in enumerate(rows))


def test_one_record_batch_holds_one_row(folder: Path) -> None:
    with pa.memory_map(str(folder / "s.arrow")) as source:
        reader = pa.ipc.open_file(source)
        assert [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)] == [1, 1]


def test_the_content_hash_is_the_same_under_every_compression(tmp_path: Path) -> None:
    entries = [written(tmp_path, compression=one) for one in ("zstd", "lz4", "none")]
    assert len({entry.content_hash for entry in entries}) == 1
    assert len({entry.sha256 for entry in entries}) == 3


def test_a_shard_says_how_many_rows_samples_and_tokens_it_holds(tmp_path: Path) -> None:
    entry = written(tmp_path)
    # Two rows of 2 samples, 8 tokens, 5 of them trained.
    assert (entry.rows, entry.samples, entry.tokens, entry.trained_tokens) == (2, 4, 16, 10)
    assert entry.size == (tmp_path / "s.arrow").stat().st_size


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path)
    (tmp_path / "s.arrow").unlink()
    assert written(tmp_path) == first


def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert write_shard(tmp_path / "s.arrow", []) is None
    assert list(tmp_path.iterdir()) == []


def test_a_shard_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def rows() -> Iterator[Row]:
        yield tiny_row()
        raise KeyError("the store went away")

    with pytest.raises(KeyError):
        write_shard(tmp_path / "s.arrow", rows())
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_synced_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append("replace"), replace(a, b))[1])
    written(tmp_path)
    assert steps == ["fsync", "replace", "fsync"]


def test_a_manifest_read_back_equals_the_one_written(folder: Path) -> None:
    read = read_manifest(folder)
    assert read == manifest(*read.shards)
    assert read.conservation.holds
    assert len(read.manifest_hash) == 64


def test_the_manifest_hash_changes_with_any_content(folder: Path) -> None:
    read = read_manifest(folder)
    assert read.model_copy(update={"snapshot": 8}).manifest_hash != read.manifest_hash


def test_a_folder_without_a_manifest_is_no_export(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(NotAnExport, match="manifest is written last"):
        open_export(tmp_path)


def test_a_changed_manifest_is_found(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"trained_tokens": 4', '"trained_tokens": 5'))
    with pytest.raises(ManifestCorrupt, match="changed after it was written"):
        open_export(folder)


def test_a_cut_manifest_is_found(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ManifestCorrupt):
        open_export(folder)


def test_another_schema_version_is_refused(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(f'"schema_version": {SCHEMA_VERSION}', '"schema_version": 99'))
    with pytest.raises(OtherSchema, match=f"found=99, expected={SCHEMA_VERSION}"):
        open_export(folder)


def test_other_fields_under_the_same_version_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest().model_copy(update={"schema_hash": "0" * 64}))
    with pytest.raises(OtherSchema):
        open_export(tmp_path)


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "s.arrow").unlink()
    with pytest.raises(ShardMissing, match=r"s\.arrow"):
        next(open_export(folder).rows())


def test_one_flipped_bit_of_a_shard_is_found_before_a_row_comes_out(folder: Path) -> None:
    path = folder / "s.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ShardCorrupt, match="sha256"):
        next(open_export(folder).rows())


def test_a_file_that_is_no_arrow_file_is_named_even_unchecked(folder: Path) -> None:
    (folder / "s.arrow").write_bytes(b"not arrow")
    with pytest.raises(ShardCorrupt):
        next(open_export(folder).rows(check=False))


def test_a_shard_with_other_columns_is_refused(folder: Path) -> None:
    path = folder / "s.arrow"
    table = pa.table({"a": [1]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(OtherSchema):
        next(open_export(folder).rows(check=False))
