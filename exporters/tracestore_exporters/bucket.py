"""An export in a bucket: shards go up as they are finished, the manifest last.

    PREFIX/shard-00000.arrow          a finished shard, its sha256 beside it as metadata
    PREFIX/.partial/plan.json         what was begun
    PREFIX/.partial/parts/            what each shard adds to the manifest, put after it

An object is seen whole or not at all, and without a manifest the shards are no export. Two exporters of one
plan put equal objects; the plan is put only where none is.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import BufferedRandom
from tempfile import TemporaryFile

from pydantic import ValidationError

from tracestore.errors import TracestoreError
from tracestore.shards.files import files_at
from tracestore.shards.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestCorrupt,
    NotAnExport,
    OtherSchema,
    ShardEntry,
    manifest_text,
    read_manifest,
)
from tracestore.shards.row import Row
from tracestore.shards.write import Compression, write_rows
from tracestore.store.blobs.bucket import TRANSFER, Bucket, open_bucket, status_of
from tracestore_exporters.parts import Part, parse_part, part_text
from tracestore_exporters.place import InUse, NotEmpty
from tracestore_exporters.plan import PlanRecord

# Behind `bucket`, which says what to install where this is not there.
from boto3.exceptions import Boto3Error  # isort: skip
from botocore.exceptions import BotoCoreError, ClientError  # isort: skip

_STATE = ".partial/"
_PLAN = f"{_STATE}plan.json"


class BucketUnavailable(TracestoreError):
    """The bucket cannot be reached now."""


def bucket_place(where: str) -> BucketPlace:
    """The place of an export at `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`.

    Raises:
        BadBlobStore: it is written wrongly, is not there, or is closed to us.
        NotEmpty: something else is there.
        BucketUnavailable: it does not answer.
    """
    place = BucketPlace(where, open_bucket(where))
    place.require_free()
    return place


class BucketPlace:
    """See `Place`."""

    lock: int | None = None

    def __init__(self, where: str, bucket: Bucket) -> None:
        self._where = where
        self._bucket = bucket

    @property
    def unfinished(self) -> str:
        return self._where

    def require_free(self) -> None:
        record = self.begun()
        with _bucket_errors(self._where):
            if record is None:
                is_taken = any(True for _ in self._bucket.listed(""))
            else:
                is_taken = self._bucket.head(MANIFEST_NAME) is not None and self.published(record) is None
        if is_taken:
            raise NotEmpty(path=self._where, hint="name a new prefix: an export is never changed or mixed")

    def begun(self) -> PlanRecord | None:
        with _bucket_errors(self._where):
            text = _get(self._bucket, _PLAN)
        try:
            return None if text is None else PlanRecord.model_validate_json(text)
        except ValidationError:
            return None

    def begin(self, record: PlanRecord) -> None:
        self._empty()
        with _bucket_errors(self._where):
            try:
                self._bucket.client.put_object(
                    Bucket=self._bucket.name,
                    Key=self._bucket.prefix + _PLAN,
                    Body=record.model_dump_json().encode(),
                    IfNoneMatch="*",
                )
            except ClientError as error:
                if status_of(error) == 412:
                    raise InUse(path=self._where, hint="wait for it, or name another prefix") from None
                raise

    def parts(self, record: PlanRecord) -> BucketParts:
        return BucketParts(self._where, record.plan_hash[:16])

    def publish(self, record: PlanRecord, manifest: Manifest) -> None:
        with _bucket_errors(self._where):
            sizes = {found["Key"]: found["Size"] for found in self._bucket.listed("shard-")}
            expected = {shard.file: shard.size for shard in manifest.shards}
            if sizes != expected:
                raise InUse(path=self._where, hint="another exporter has put or taken shards: export again")
            _put(self._bucket, MANIFEST_NAME, manifest_text(manifest).encode())

    def published(self, record: PlanRecord) -> Manifest | None:
        try:
            manifest = read_manifest(files_at(self._where))
        except (NotAnExport, ManifestCorrupt, OtherSchema):
            return None
        return manifest if record.asked.is_of(manifest) else None

    def clear(self) -> None:
        with _bucket_errors(self._where):
            if self._bucket.head(MANIFEST_NAME) is None:
                self._empty()
            else:
                self._remove(_STATE)

    def _empty(self) -> None:
        with _bucket_errors(self._where):
            self._remove("shard-")
            self._remove(_STATE)

    def _remove(self, prefix: str) -> None:
        # The plan last: without it the rest is nothing that anybody goes on with.
        keys = [found["Key"] for found in self._bucket.listed(prefix)]
        for key in sorted(keys, key=lambda key: key == _PLAN):
            self._bucket.remove(key)


@dataclass(frozen=True, slots=True)
class BucketParts:
    """See `Parts`."""

    where: str
    plan: str

    def write(self, file: str, rows: Iterable[Row], *, compression: Compression) -> ShardEntry | None:
        # A file without a name: nothing of it is left here, however this process ends.
        with TemporaryFile() as scratch:
            written = write_rows(scratch, rows, compression=compression)
            if written.rows == 0:
                return None
            size, sha256 = scratch.seek(0, os.SEEK_END), _sha256(scratch)
            scratch.seek(0)
            bucket = _opened(self.where)
            with _bucket_errors(file):
                bucket.client.upload_fileobj(
                    scratch,
                    bucket.name,
                    bucket.prefix + file,
                    ExtraArgs={"Metadata": {"sha256": sha256}},
                    Config=TRANSFER,
                )
            return written.entry(file, size=size, sha256=sha256)

    def keep(self, part: Part) -> None:
        with _bucket_errors(part.file):
            _put(_opened(self.where), self._key(part.file), part_text(part))

    def find(self, file: str) -> Part | None:
        bucket = _opened(self.where)
        with _bucket_errors(file):
            text = _get(bucket, self._key(file))
            part = None if text is None else parse_part(text)
            if part is None or part.file != file:
                return None
            if part.shard is None:
                return part
            found = bucket.head(file)
        if found is None or found["ContentLength"] != part.shard.size:
            return None
        return part if found["Metadata"].get("sha256") == part.shard.sha256 else None

    def _key(self, file: str) -> str:
        return f"{_STATE}parts/{self.plan}/{file}.json"


@cache
def _opened(where: str) -> Bucket:
    return open_bucket(where)


def _get(bucket: Bucket, key: str) -> bytes | None:
    try:
        found = bucket.client.get_object(Bucket=bucket.name, Key=bucket.prefix + key)
    except ClientError as error:
        if status_of(error) == 404:
            return None
        raise
    with found["Body"] as body:
        data: bytes = body.read()
    return data


def _put(bucket: Bucket, key: str, data: bytes) -> None:
    bucket.client.put_object(Bucket=bucket.name, Key=bucket.prefix + key, Body=data)


def _sha256(file: BufferedRandom) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _bucket_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error) as error:
        raise BucketUnavailable(
            what=what, reason=str(error), hint="the same command goes on where this one ended"
        ) from error
