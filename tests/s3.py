"""A server that speaks S3, in this process, and a bucket on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class S3:
    """A bucket of our own."""

    endpoint: str
    bucket: str
    client: Any
    """boto3's."""

    def url(self, prefix: str) -> str:
        """A place in it, as flags and `open_export` take one."""
        return f"s3://{self.bucket}/{prefix}?endpoint={self.endpoint}"

    def objects(self, prefix: str) -> dict[str, bytes]:
        """What lies under a prefix, by the rest of its key."""
        found = self.client.list_objects_v2(Bucket=self.bucket, Prefix=f"{prefix}/").get("Contents", ())
        return {one["Key"].removeprefix(f"{prefix}/"): self._get(one["Key"]) for one in found}

    def _get(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
        return body


@contextmanager
def s3_server(bucket: str) -> Iterator[S3]:
    """A server with one bucket, and credentials for it in the environment; skips where moto is not installed.

    Args:
        bucket: all servers of a process share what they store, so each takes a name of its own.
    """
    moto = pytest.importorskip("moto.server")
    boto3 = pytest.importorskip("boto3")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
        client.create_bucket(Bucket=bucket)
        try:
            yield S3(f"http://{host}:{port}", bucket, client)
        finally:
            server.stop()
