"""A bucket in memory, and exporters that reach it one request at a time, in an order that a test chooses."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from botocore.exceptions import ClientError

from tracestore.store.blobs.bucket import Bucket

PREFIX = "exports/"


class Killed(BaseException):
    """An exporter that was ended: none of its requests comes any more."""


class Turns:
    """Lets one request of one exporter through after the other."""

    def __init__(self, schedule: Sequence[int], *, killed: tuple[int, int] | None = None) -> None:
        """
        Args:
            schedule: which exporter is next, as long as it has something to do; behind its end the first is.
            killed: an exporter, and how many of its requests come through.
        """
        self._schedule = list(schedule)
        self._left = {} if killed is None else {killed[0]: killed[1]}
        self._changed = threading.Condition()
        self._asking: set[int] = set()
        self._running: set[int] = set()
        self._granted: int | None = None

    def ask(self, exporter: int) -> None:
        """Waits until the request of an exporter is the next."""
        with self._changed:
            if self._left.get(exporter, 1) == 0:
                raise Killed
            if exporter in self._left:
                self._left[exporter] -= 1
            self._asking.add(exporter)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._granted == exporter)
            self._granted = None
            self._asking.discard(exporter)

    def run(self, exporters: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each of them returns, or the error that it ends with."""
        outcomes: list[Any] = [None] * len(exporters)

        def one(number: int) -> None:
            try:
                outcomes[number] = exporters[number]()
            except BaseException as error:  # noqa: BLE001 - handed on
                outcomes[number] = error
            with self._changed:
                self._running.discard(number)
                self._changed.notify_all()

        self._running = set(range(len(exporters)))
        threads = [threading.Thread(target=one, args=(number,)) for number in range(len(exporters))]
        for thread in threads:
            thread.start()
        while self._let_one():
            pass
        for thread in threads:
            thread.join()
        return outcomes

    def _let_one(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._granted is None and self._asking >= self._running)
            if not self._running:
                return False
            wanted = self._schedule.pop(0) if self._schedule else 0
            self._granted = wanted if wanted in self._asking else min(self._asking)
            self._changed.notify_all()
            return True


class MemoryBucket:
    """As much of boto3's client as an export needs, for one exporter."""

    def __init__(self, objects: dict[str, tuple[bytes, dict[str, str]]], ask: Callable[[], None]) -> None:
        self._objects = objects
        self._ask = ask

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes,
        IfNoneMatch: str | None = None,
        IfMatch: str | None = None,
    ) -> None:
        self._ask()
        found = self._objects.get(Key)
        if IfMatch is not None and found is None:
            raise _said(404, "PutObject")
        if (IfNoneMatch == "*" and found is not None) or IfMatch not in (None, found and _etag(found[0])):
            raise _said(412, "PutObject")
        self._objects[Key] = (Body, {})

    def upload_fileobj(
        self, file: BinaryIO, bucket: str, key: str, *, ExtraArgs: dict[str, Any], Config: Any
    ) -> None:
        self._ask()
        self._objects[key] = (file.read(), ExtraArgs["Metadata"])

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        data, _ = self._found(Key, "GetObject")
        return {"Body": io.BytesIO(data), "ETag": _etag(data)}

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:
        data, metadata = self._found(Key, "HeadObject")
        return {"ContentLength": len(data), "Metadata": metadata}

    def delete_object(self, *, Bucket: str, Key: str) -> None:
        self._ask()
        self._objects.pop(Key, None)

    def get_paginator(self, _name: str) -> MemoryBucket:
        return self

    def paginate(self, *, Bucket: str, Prefix: str) -> Iterator[dict[str, Any]]:
        self._ask()
        found = {key: data for key, (data, _) in sorted(self._objects.items()) if key.startswith(Prefix)}
        yield {"Contents": [{"Key": key, "Size": len(data)} for key, data in found.items()]}

    def _found(self, key: str, operation: str) -> tuple[bytes, dict[str, str]]:
        self._ask()
        if key not in self._objects:
            raise _said(404, operation)
        return self._objects[key]


def memory_bucket(objects: dict[str, tuple[bytes, dict[str, str]]], ask: Callable[[], None]) -> Bucket:
    return Bucket(MemoryBucket(objects, ask), "b", PREFIX)


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _said(status: int, operation: str) -> ClientError:
    about = {"Error": {"Code": str(status)}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(about, operation)
