"""Exports in a bucket, as a server that speaks S3 sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.memory import MemorySource
from tests.exporters.test_export import ONE_EACH, THREE, Failing
from tracestore.shards.manifest import Manifest
from tracestore_exporters.export import OtherExport, export
from tracestore_exporters.place import BadOut, NotEmpty
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

BUCKET = "exports-of-tests"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        made = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        made.create_bucket(Bucket=BUCKET)
        yield made
        server.stop()


@pytest.fixture
def out(client: Any, tmp_path: Path) -> str:
    return f"s3://{BUCKET}/{tmp_path.name}?endpoint={client.meta.endpoint_url}"


def objects(client: Any, out: str) -> dict[str, bytes]:
    """What lies under the prefix."""
    prefix = out.removeprefix(f"s3://{BUCKET}/").partition("?")[0] + "/"
    found = client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", ())
    return {
        one["Key"].removeprefix(prefix): client.get_object(Bucket=BUCKET, Key=one["Key"])["Body"].read()
        for one in found
    }


def test_a_bucket_holds_what_a_folder_would(client: Any, out: str, tmp_path: Path) -> None:
    whole = export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH)
    assert export(MemorySource(THREE), "p", out, ONE_EACH) == whole
    assert objects(client, out) == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert verify_export(MemorySource(THREE), "p", out).findings == []
    with pytest.raises(NotEmpty, match="name a new prefix"):
        export(MemorySource(THREE), "p", out, ONE_EACH)


def test_what_was_begun_in_a_bucket_is_no_export_and_goes_on_with_what_is_missing(
    client: Any, out: str, tmp_path: Path
) -> None:
    notes: list[str] = []
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=3), "p", out, ONE_EACH)
    begun = objects(client, out)
    assert "manifest.json" not in begun
    assert [name for name in begun if name.startswith("shard-")] == ["shard-00000.arrow", "shard-00001.arrow"]
    with pytest.raises(OtherExport, match="objective"):
        export(MemorySource(THREE), "p", out, Spec(shard_rows=1, objective="sft"))
    assert objects(client, out) == begun
    only_one_more = Failing(THREE, at=2)
    manifest = export(only_one_more, "p", out, ONE_EACH, note=notes.append)
    assert "2 of 3 shards are there" in notes[0]
    assert manifest == export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH)
    assert sorted(objects(client, out)) == sorted(path.name for path in (tmp_path / "out").iterdir())


def test_a_finished_shard_that_another_one_took_the_place_of_is_made_again(client: Any, out: str) -> None:
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=3), "p", out, ONE_EACH)
    before = objects(client, out)["shard-00001.arrow"]
    key = f"{out.removeprefix(f's3://{BUCKET}/').partition('?')[0]}/shard-00001.arrow"
    client.put_object(Bucket=BUCKET, Key=key, Body=bytes(len(before)))
    export(MemorySource(THREE), "p", out, ONE_EACH)
    assert objects(client, out)["shard-00001.arrow"] == before


def test_an_export_that_fails_in_its_first_shard_leaves_nothing_in_a_bucket(client: Any, out: str) -> None:
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=1), "p", out, ONE_EACH)
    assert objects(client, out) == {}


def test_one_that_was_killed_after_its_manifest_is_registered_by_the_same_command(
    client: Any, out: str
) -> None:
    registered: list[Manifest] = []

    def killed(_manifest: Manifest) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(MemorySource(THREE), "p", out, ONE_EACH, register=killed)
    made = json.loads(objects(client, out)["manifest.json"])["manifest_hash"]
    export(MemorySource(THREE), "p", out, ONE_EACH, register=registered.append)
    assert [manifest.manifest_hash for manifest in registered] == [made]
    assert not [name for name in objects(client, out) if name.startswith(".partial")]


@pytest.mark.parametrize("wrong", ["s3://", "s3://nowhere/x", "s3://user:secret@b/x", "s3://b/x?acl=public"])
def test_a_bucket_that_cannot_be_written_to_is_refused(wrong: str, client: Any) -> None:
    where = wrong if "?" in wrong else f"{wrong}?endpoint={client.meta.endpoint_url}"
    with pytest.raises(BadOut) as error:
        export(MemorySource(THREE), "p", where, ONE_EACH)
    assert "secret" not in str(error.value)
