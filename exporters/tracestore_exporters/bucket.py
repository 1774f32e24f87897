"""An export in a bucket: shards go up as they are finished, the manifest last.

    PREFIX/shard-00000-HASH.arrow     a finished shard, its sha256 beside it as metadata
    PREFIX/.partial/plan.json         what was begun, and whether it may still be given up
    PREFIX/.partial/parts/HASH/       what each shard adds to the manifest, put after it

HASH is the plan's. An object is seen whole or not at all, and without a manifest the shards are no export. No
lock keeps a second exporter out, so `plan.json` says whose turn it is, and changes only by conditional puts:

    (none) -> open -> sealed       then the manifest is put, where none is
              open -> open         another plan takes over, and takes away the shards of this one
              open -> withdrawn    its exporter failed, and takes them away; then there is none

The shards of a sealed plan are taken away by nobody, so what a manifest names is there and stays. Exporters
of one plan put equal objects, and all of them succeed; one of another plan is told so, and leaves nothing.
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
from typing import Literal

from pydantic import ValidationError

from tracestore.errors import TracestoreError
from tracestore.shards.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestCorrupt,
    OtherSchema,
    ShardEntry,
    manifest_text,
    parse_manifest,
)
from tracestore.shards.row import Row
from tracestore.shards.write import Compression, write_rows
from tracestore.store.blobs.bucket import TRANSFER, Bucket, open_bucket, status_of
from tracestore_exporters.parts import Part, is_shard_of, parse_part, part_text, shard_name
from tracestore_exporters.place import InUse, NotEmpty
from tracestore_exporters.plan import PlanRecord

# Behind `bucket`, which says what to install where this is not there.
from boto3.exceptions import Boto3Error  # isort: skip
from botocore.exceptions import BotoCoreError, ClientError  # isort: skip

_STATE = ".partial/"
_PLAN = f"{_STATE}plan.json"
_PARTS = f"{_STATE}parts/"
_SHARDS = "shard-"
_NOT_FIRST = {404, 409, 412}
"""Where the condition of a put does not hold: the object is gone, is being put, is another."""


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


class _Turn(PlanRecord):
    """`plan.json`: a plan, and what may become of it."""

    state: Literal["open", "sealed", "withdrawn"] = "open"

    @classmethod
    def of(cls, record: PlanRecord) -> _Turn:
        return cls.model_validate(record.model_dump())

    @property
    def record(self) -> PlanRecord:
        return PlanRecord.model_validate(self.model_dump(exclude={"state"}))


@dataclass(frozen=True, slots=True)
class _Seen:
    """`plan.json` as it was read."""

    turn: _Turn | None
    """None: there is none, or none that can be read."""
    etag: str | None
    """None: there is no such object."""


class BucketPlace:
    """See `Place`."""

    lock: int | None = None

    def __init__(self, where: str, bucket: Bucket) -> None:
        self._where = where
        self._bucket = bucket
        self._seen = _Seen(None, None)
        """When it was decided what to do."""
        self._record: PlanRecord | None = None
        """What is being made here."""

    @property
    def unfinished(self) -> str:
        return self._where

    def require_free(self) -> None:
        record = self.begun()
        with _bucket_errors(self._where):
            if record is None:
                # A plan that has come meanwhile is met by `begin`.
                is_taken = self._seen.etag is not None or any(key != _PLAN for key in self._keys(""))
            else:
                is_taken = self._bucket.head(MANIFEST_NAME) is not None and self.published(record) is None
        if is_taken:
            raise self._taken()

    def begun(self) -> PlanRecord | None:
        self._seen = self._read()
        turn = self._seen.turn
        if turn is not None and turn.state == "withdrawn":
            hint = "its exporter takes away what it made: wait, or remove it where that one was killed"
            raise InUse(path=self._where, hint=hint)
        self._record = None if turn is None else turn.record
        return self._record

    def begin(self, record: PlanRecord) -> None:
        before = self._seen
        if before.turn is not None and before.turn.state == "sealed":
            hint = "all of it is there and cannot be gone on with: remove it, or name another prefix"
            raise InUse(path=self._where, hint=hint)
        with _bucket_errors(self._where):
            if not self._turns(_Turn.of(record), seen=before.etag):
                raise InUse(path=self._where, hint="wait for it, or name another prefix")
            self._record = record
            if self._bucket.head(MANIFEST_NAME) is not None:
                self._remove([_PLAN])
                raise self._taken()
            if before.turn is not None and before.turn.plan_hash != record.plan_hash:
                self._remove_of(before.turn.record)

    def parts(self, record: PlanRecord) -> BucketParts:
        return BucketParts(self._where, record.plan_hash)

    def publish(self, record: PlanRecord, manifest: Manifest) -> None:
        with _bucket_errors(self._where):
            if not self._seal(record) and self.published(record) is None:
                self.clear()
                hint = "another exporter has begun here anew: wait for it, or name another prefix"
                raise InUse(path=self._where, hint=hint)
            sizes = {found["Key"]: found["Size"] for found in self._bucket.listed(_SHARDS)}
            missing = [shard.file for shard in manifest.shards if sizes.get(shard.file) != shard.size]
            if missing:
                raise InUse(path=self._where, missing=missing[:3], hint="the same command makes them again")
            is_first = self._put_if(MANIFEST_NAME, manifest_text(manifest).encode(), seen=None)
            if not is_first and self.published(record) != manifest:
                raise self._taken()

    def _seal(self, record: PlanRecord) -> bool:
        """From here on the plan is given up by nobody; False: it has been."""
        while True:
            seen = self._read()
            if seen.turn is None or seen.turn.record != record or seen.turn.state == "withdrawn":
                return False
            sealed = seen.turn.model_copy(update={"state": "sealed"})
            if seen.turn == sealed or self._turns(sealed, seen=seen.etag):
                return True

    def published(self, record: PlanRecord) -> Manifest | None:
        with _bucket_errors(self._where):
            text = _get(self._bucket, MANIFEST_NAME)
        try:
            manifest = None if text is None else parse_manifest(text, path=f"{self._where}/{MANIFEST_NAME}")
        except (ManifestCorrupt, OtherSchema):
            return None
        if manifest is None or not record.asked.is_of(manifest):
            return None
        return (
            manifest if all(is_shard_of(shard.file, record.plan_hash) for shard in manifest.shards) else None
        )

    def clear(self) -> None:
        record = self._record
        if record is None:
            return
        with _bucket_errors(self._where):
            if (manifest := self.published(record)) is not None:
                named = {shard.file for shard in manifest.shards}
                self._remove([key for key in self._keys(_SHARDS) if key not in named])
                self._remove(self._keys(_STATE))
                return
            seen = self._read()
            if seen.turn is not None and seen.turn.record != record:
                self._remove_of(record)
            elif seen.turn is None or seen.turn.state == "open":
                withdrawn = _Turn.of(record).model_copy(update={"state": "withdrawn"})
                if self._turns(withdrawn, seen=seen.etag):
                    self._remove_of(record)
                    self._remove([_PLAN])

    def _taken(self) -> NotEmpty:
        return NotEmpty(path=self._where, hint="name a new prefix: an export is never changed or mixed")

    def _read(self) -> _Seen:
        with _bucket_errors(self._where):
            try:
                found = self._bucket.client.get_object(
                    Bucket=self._bucket.name, Key=self._bucket.prefix + _PLAN
                )
            except ClientError as error:
                if status_of(error) == 404:
                    return _Seen(None, None)
                raise
            with found["Body"] as body:
                text = body.read()
        try:
            return _Seen(_Turn.model_validate_json(text), found["ETag"])
        except ValidationError:
            return _Seen(None, found["ETag"])

    def _turns(self, turn: _Turn, *, seen: str | None) -> bool:
        """Put `plan.json` where it still is what was seen; False: it is not."""
        return self._put_if(_PLAN, turn.model_dump_json().encode(), seen=seen)

    def _put_if(self, key: str, data: bytes, *, seen: str | None) -> bool:
        """Put an object where the one with the entity tag `seen` is; None: where there is none."""
        condition = {"IfNoneMatch": "*"} if seen is None else {"IfMatch": seen}
        try:
            self._bucket.client.put_object(
                Bucket=self._bucket.name, Key=self._bucket.prefix + key, Body=data, **condition
            )
        except ClientError as error:
            if status_of(error) in _NOT_FIRST:
                return False
            raise
        return True

    def _remove_of(self, record: PlanRecord) -> None:
        """Take away the shards and parts of a plan."""
        self._remove([key for key in self._keys(_SHARDS) if is_shard_of(key, record.plan_hash)])
        self._remove(self._keys(f"{_PARTS}{record.plan_hash[:16]}/"))

    def _keys(self, prefix: str) -> list[str]:
        return [found["Key"] for found in self._bucket.listed(prefix)]

    def _remove(self, keys: Iterable[str]) -> None:
        # The plan last: without it the rest is nothing that anybody goes on with.
        for key in sorted(keys, key=lambda key: key == _PLAN):
            self._bucket.remove(key)


@dataclass(frozen=True, slots=True)
class BucketParts:
    """See `Parts`."""

    where: str
    plan_hash: str

    def write(self, file: str, rows: Iterable[Row], *, compression: Compression) -> ShardEntry | None:
        # A file without a name: nothing of it is left here, however this process ends.
        with TemporaryFile() as scratch:
            written = write_rows(scratch, rows, compression=compression)
            if written.rows == 0:
                return None
            size, sha256 = scratch.seek(0, os.SEEK_END), _sha256(scratch)
            scratch.seek(0)
            bucket, name = _opened(self.where), shard_name(file, self.plan_hash)
            with _bucket_errors(name):
                bucket.client.upload_fileobj(
                    scratch,
                    bucket.name,
                    bucket.prefix + name,
                    ExtraArgs={"Metadata": {"sha256": sha256}},
                    Config=TRANSFER,
                )
            return written.entry(name, size=size, sha256=sha256)

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
            found = bucket.head(part.shard.file)
        if found is None or found["ContentLength"] != part.shard.size:
            return None
        return part if found["Metadata"].get("sha256") == part.shard.sha256 else None

    def _key(self, file: str) -> str:
        return f"{_PARTS}{self.plan_hash[:16]}/{file}.json"


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
