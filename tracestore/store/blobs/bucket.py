"""A prefix of a bucket that speaks S3: where it is, and how it is reached.

By boto3, which aborts a multipart upload that fails. A stream of pyarrow's file system can only be closed,
and that makes an object of whatever it got.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tracestore.store.blobs.base import BadBlobStore, BlobStoreUnavailable

try:
    import boto3
    from boto3.exceptions import Boto3Error
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:
    raise BadBlobStore(where="s3://", hint="install tracestore[s3]") from error

_PARAMETERS = frozenset({"endpoint", "region"})
ASK_AT_ONCE = 16
TRANSFER = TransferConfig(multipart_chunksize=16 * 2**20, multipart_threshold=16 * 2**20, max_concurrency=4)
"""At most 64 MiB in memory for one upload."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A place in a bucket. Raises what boto3 raises: `object_errors` makes it ours."""

    client: Any
    name: str
    prefix: str
    """Empty, or with a slash at its end."""

    def head(self, key: str) -> dict[str, Any] | None:
        """What is known of an object; None: there is none."""
        try:
            found: dict[str, Any] = self.client.head_object(Bucket=self.name, Key=self.prefix + key)
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise
        return found

    def listed(self, prefix: str) -> Iterator[dict[str, Any]]:
        """The objects of which the key, behind the prefix of this place, begins so; `Key` is without that."""
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=self.prefix + prefix
        )
        for found in (one for page in pages for one in page.get("Contents", ())):
            yield found | {"Key": found["Key"].removeprefix(self.prefix)}

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.name, Key=self.prefix + key)


def open_bucket(where: str) -> Bucket:
    """The place `s3://BUCKET/PREFIX?endpoint=URL&region=NAME`.

    Raises:
        BadBlobStore: it is written wrongly, is not there, or is closed to us.
    """
    parts = urlsplit(where)
    named = dict(parse_qsl(parts.query, keep_blank_values=True))
    if not parts.netloc or parts.fragment or not named.keys() <= _PARAMETERS or "@" in parts.netloc:
        hint = "write s3://BUCKET/PREFIX?endpoint=URL&region=NAME; credentials go into the environment"
        raise BadBlobStore(where=parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), hint=hint)
    endpoint = named.get("endpoint")
    config = Config(
        connect_timeout=10,
        read_timeout=60,
        retries={"mode": "standard", "max_attempts": 3},
        max_pool_connections=4 * ASK_AT_ONCE,
        # Of servers other than Amazon's few know buckets as parts of the host name.
        s3={"addressing_style": "path"} if endpoint else None,
    )
    try:
        client = boto3.client("s3", endpoint_url=endpoint, region_name=named.get("region"), config=config)
        client.head_bucket(Bucket=parts.netloc)
    except (BotoCoreError, ClientError, ValueError) as error:
        hint = "check bucket, endpoint, region and the credentials in the environment"
        raise BadBlobStore(where=where, reason=str(error), hint=hint) from error
    prefix = parts.path.strip("/")
    return Bucket(client, parts.netloc, f"{prefix}/" if prefix else "")


@contextmanager
def object_errors(name: str) -> Iterator[None]:
    """Errors of the bucket as ours.

    Raises:
        BlobStoreUnavailable: it cannot be reached now, or says no.
    """
    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error) as error:
        raise BlobStoreUnavailable(hash=name, reason=str(error), hint="try again later") from error


def status_of(error: Any) -> int:
    """The HTTP status of a `ClientError`."""
    status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return status
