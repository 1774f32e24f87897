"""Blobs as objects of a bucket: s3://BUCKET/PREFIX/<sha256 of the project>/<hash>.

When the upload to the bucket began is written on the object, by the clock of the server that kept it: a
bucket's own time is in seconds. A bucket has no removal by that condition, so between the look at an object
and its removal lies one request, in which it may be sent again and be gone.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from tracestore.store.blobs.base import STEP, BadBlobStore, BlobNotFound, folder_of
from tracestore.store.blobs.bucket import ASK_AT_ONCE, TRANSFER, object_errors, open_bucket, status_of
from tracestore.store.blobs.uploads import Uploads

# Behind `bucket`, which says what to install where this is not there.
from botocore.exceptions import ClientError  # isort: skip

_SENT_AT = "sent-at"
"""Metadata of an object: nanoseconds UTC."""


class ObjectBlobs:
    """A prefix of a bucket, shared by any number of servers. Uploads wait in a folder of this host."""

    def __init__(self, client: Any, *, bucket: str, prefix: str, uploads: Path) -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._uploads = Uploads(uploads, keep=self.keep)

    @classmethod
    def open(cls, where: str) -> Self:
        """The store at `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`.

        Raises:
            BadBlobStore: the place is written wrongly, is not there, or is closed to us.
        """
        place = open_bucket(where)
        waiting = _waiting_room() / sha256(where.encode()).hexdigest()
        return cls(place.client, bucket=place.name, prefix=place.prefix, uploads=waiting)

    @property
    def uploads(self) -> Uploads:
        return self._uploads

    def size(self, project: str, name: str) -> int | None:
        with object_errors(name):
            try:
                found = self._client.head_object(Bucket=self._bucket, Key=self._key(project, name))
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise
            return int(found["ContentLength"])

    def renew(self, project: str, name: str) -> int | None:
        """The object is copied onto itself, by the bucket: a time cannot be written on one that is there."""
        key = self._key(project, name)
        with object_errors(name):
            try:
                self._client.copy(
                    {"Bucket": self._bucket, "Key": key},
                    self._bucket,
                    key,
                    ExtraArgs={"MetadataDirective": "REPLACE", **_sent_now()},
                    Config=TRANSFER,
                )
            except ClientError as error:
                if status_of(error) == 404:
                    return None
                raise
        return self.size(project, name)

    def sizes(self, project: str, names: Collection[str]) -> Mapping[str, int]:
        with ThreadPoolExecutor(ASK_AT_ONCE) as pool:
            found = zip(names, pool.map(lambda name: self.size(project, name), names), strict=True)
            return {name: size for name, size in found if size is not None}

    def read(self, project: str, name: str, *, start: int, stop: int) -> Iterator[bytes]:
        if start >= stop:
            return
        with object_errors(name):
            try:
                found = self._client.get_object(
                    Bucket=self._bucket, Key=self._key(project, name), Range=f"bytes={start}-{stop - 1}"
                )
            except ClientError as error:
                if status_of(error) == 404:
                    raise BlobNotFound(hash=name) from None
                raise
            with closing(found["Body"]) as body:
                yield from body.iter_chunks(STEP)

    def keep(self, project: str, name: str, file: Path) -> None:
        with object_errors(name):
            self._client.upload_file(
                str(file), self._bucket, self._key(project, name), ExtraArgs=_sent_now(), Config=TRANSFER
            )

    def sent_before(self, project: str, at: int) -> Iterator[str]:
        prefix = self._key(project, "")
        with object_errors(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
            for found in (one for page in pages for one in page.get("Contents", ())):
                if found["LastModified"].timestamp() * 10**9 < at:
                    yield found["Key"].removeprefix(prefix)

    def remove(self, project: str, name: str, *, sent_before: int) -> bool:
        this = {"Bucket": self._bucket, "Key": self._key(project, name)}
        with object_errors(name):
            try:
                found = self._client.head_object(**this)
            except ClientError as error:
                if status_of(error) == 404:
                    return True
                raise
            if _sent_at(found) >= sent_before:
                return False
            self._client.delete_object(**this)
            return True

    def _key(self, project: str, name: str) -> str:
        return f"{self._prefix}{folder_of(project)}/{name}"


def _sent_now() -> dict[str, dict[str, str]]:
    return {"Metadata": {_SENT_AT: str(time.time_ns())}}


def _sent_at(found: Mapping[str, Any]) -> int:
    """When an object was sent, nanoseconds UTC; the bucket's own time where nothing is written on it."""
    stated: str = found["Metadata"].get(_SENT_AT, "")
    return int(stated) if stated.isdecimal() else int(found["LastModified"].timestamp()) * 10**9


def _waiting_room() -> Path:
    """The folder of unfinished uploads: of this user alone, the same after a restart, under $TMPDIR."""
    folder = Path(tempfile.gettempdir()) / f"tracestore-uploads-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise BadBlobStore(
            where=str(folder), hint="uploads wait here, and others may write to it: set TMPDIR"
        )
    return folder
