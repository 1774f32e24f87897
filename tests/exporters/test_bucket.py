"""Exports in a bucket, as a server that speaks S3 sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.exporters.memory import MemorySource
from tests.exporters.test_export import ONE_EACH, THREE, Failing, episode
from tests.s3 import S3
from tracestore.shards.manifest import Manifest, NotAnExport
from tracestore.shards.read import open_export
from tracestore_exporters.export import OtherExport, export
from tracestore_exporters.place import BadOut, InUse, NotEmpty
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

UNPACKED = Spec(shard_rows=1, compression="none")


@pytest.fixture
def out(s3: S3, tmp_path: Path) -> str:
    return s3.url(tmp_path.name)


def objects(s3: S3, out: str) -> dict[str, bytes]:
    """What lies under the prefix."""
    return s3.objects(out.partition("?")[0].rpartition("/")[2])


def test_a_bucket_holds_what_a_folder_would(s3: S3, out: str, tmp_path: Path) -> None:
    whole = export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH)
    assert export(MemorySource(THREE), "p", out, ONE_EACH) == whole
    assert objects(s3, out) == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert verify_export(MemorySource(THREE), "p", out).findings == []
    with pytest.raises(NotEmpty, match="name a new prefix"):
        export(MemorySource(THREE), "p", out, ONE_EACH)


def test_what_was_begun_in_a_bucket_is_no_export_and_goes_on_with_what_is_missing(
    s3: S3, out: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=3), "p", out, ONE_EACH)
    begun = objects(s3, out)
    assert "manifest.json" not in begun
    assert [name[:11] for name in begun if name.startswith("shard-")] == ["shard-00000", "shard-00001"]
    with pytest.raises(OtherExport, match="objective"):
        export(MemorySource(THREE), "p", out, Spec(shard_rows=1, objective="sft"))
    assert objects(s3, out) == begun
    with pytest.raises(NotAnExport, match="the command that began it goes on with it"):
        open_export(out)
    only_one_more = Failing(THREE, at=2)
    manifest = export(only_one_more, "p", out, ONE_EACH, note=notes.append)
    assert "2 of 3 shards are there" in notes[0]
    assert manifest == export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH)
    assert sorted(objects(s3, out)) == sorted(path.name for path in (tmp_path / "out").iterdir())


def test_a_finished_shard_that_something_took_the_place_of_is_made_again(
    s3: S3, out: str, tmp_path: Path
) -> None:
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=3), "p", out, ONE_EACH)
    (name,) = [name for name in objects(s3, out) if name.startswith("shard-00001")]
    before = objects(s3, out)[name]
    s3.client.put_object(Bucket=s3.bucket, Key=f"{tmp_path.name}/{name}", Body=bytes(len(before)))
    export(MemorySource(THREE), "p", out, ONE_EACH)
    assert objects(s3, out)[name] == before


def test_an_exporter_that_another_one_has_overtaken_is_told_and_leaves_nothing(
    s3: S3, out: str, tmp_path: Path
) -> None:
    # Asked for the same, and of another plan; the shards are of one size, and of other tokens.
    def slow(done: int, _total: int) -> None:
        if done == 1:
            made.append(export(MemorySource(others), "p", out, UNPACKED))

    others = [one for name in ("f1", "f2", "f3") for one in episode(name, group_id=None)]
    made: list[Manifest] = []
    with pytest.raises(InUse, match="another exporter has begun here anew"):
        export(MemorySource(THREE), "p", out, UNPACKED, progress=slow)
    assert made == [export(MemorySource(others), "p", tmp_path / "out", UNPACKED)]
    assert objects(s3, out) == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_an_export_that_fails_in_its_first_shard_leaves_nothing_in_a_bucket(s3: S3, out: str) -> None:
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=1), "p", out, ONE_EACH)
    assert objects(s3, out) == {}


def test_one_that_was_killed_after_its_manifest_is_registered_by_the_same_command(s3: S3, out: str) -> None:
    registered: list[Manifest] = []

    def killed(_manifest: Manifest) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(MemorySource(THREE), "p", out, ONE_EACH, register=killed)
    made = json.loads(objects(s3, out)["manifest.json"])["manifest_hash"]
    export(MemorySource(THREE), "p", out, ONE_EACH, register=registered.append)
    assert [manifest.manifest_hash for manifest in registered] == [made]
    assert not [name for name in objects(s3, out) if name.startswith(".partial")]


@pytest.mark.parametrize("wrong", ["s3://", "s3://nowhere/x", "s3://user:secret@b/x", "s3://b/x?acl=public"])
def test_a_bucket_that_cannot_be_written_to_is_refused(wrong: str, s3: S3) -> None:
    where = wrong if "?" in wrong else f"{wrong}?endpoint={s3.endpoint}"
    with pytest.raises(BadOut) as error:
        export(MemorySource(THREE), "p", where, ONE_EACH)
    assert "secret" not in str(error.value)
