"""Where an export is put together until it is whole, and then lies: a folder or a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tracestore.errors import TracestoreError
from tracestore.shards.manifest import Manifest
from tracestore.store.blobs.base import BadBlobStore
from tracestore_exporters.parts import Parts
from tracestore_exporters.plan import PlanRecord


class NotEmpty(TracestoreError):
    """The export folder exists and is not empty."""

    exit_code = 2


class InUse(TracestoreError):
    """Another process is writing this export."""


class OtherExport(TracestoreError):
    """Another export was begun there."""

    exit_code = 2


class BadOut(TracestoreError):
    """An export cannot be written there."""

    exit_code = 2


class Place(Protocol):
    """A place for one export. Nothing of it is an export before `publish` has ended."""

    @property
    def unfinished(self) -> str:
        """Where the unfinished export lies, in words for people: what to remove to be rid of it."""

    @property
    def lock(self) -> int | None:
        """A descriptor that keeps other exporters out for as long as a process has it open; None: there is
        none here."""

    def begun(self) -> PlanRecord | None:
        """The plan of an export that was begun here and not ended."""

    def begin(self, record: PlanRecord) -> None:
        """Take away what an export that was begun here left, and begin this one."""

    def parts(self, record: PlanRecord) -> Parts:
        """The finished shards of the one that was begun."""

    def publish(self, record: PlanRecord, manifest: Manifest) -> None:
        """Make the finished shards an export, its manifest last."""

    def published(self, record: PlanRecord) -> Manifest | None:
        """The export that stands here, where it is what was begun: its exporter was killed right after."""

    def clear(self) -> None:
        """Take away all that is not the export."""


@contextmanager
def place_at(out: str | Path) -> Iterator[Place]:
    """The place of an export: a folder, or `s3://BUCKET/PREFIX`, see `tracestore.store.blobs.open_blobs`.

    Raises:
        NotEmpty: something else is there.
        InUse: another exporter is at work there.
        BadOut: there is no such kind of place, or no access to it.
    """
    scheme = urlsplit(str(out)).scheme if "://" in str(out) else ""
    if scheme == "s3":
        yield _in_bucket(str(out))
    elif scheme:
        raise BadOut(out=str(out), hint="name a folder, or s3://BUCKET/PREFIX")
    else:
        from tracestore_exporters.folder import folder_place

        # A link cannot take the name in the end; the folder that it names can, on the disk that it is on.
        with folder_place(Path(os.path.realpath(out))) as place:
            yield place


def _in_bucket(out: str) -> Place:
    try:
        # It takes a quarter of a second to load, and an extra to install.
        from tracestore_exporters.bucket import bucket_place

        return bucket_place(out)
    except BadBlobStore as error:
        where, reason = error.values["where"], error.values.get("reason")
        raise BadOut(out=where, reason=reason, hint=error.hint) from error
