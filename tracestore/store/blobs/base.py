"""What every blob store can do, and what can go wrong with one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from tracestore.errors import TracestoreError

if TYPE_CHECKING:
    from tracestore.store.blobs.uploads import Uploads

STEP = 2**20
"""Bytes that are read, hashed and written at once."""


class BadBlobStore(TracestoreError):
    """Blobs cannot be kept at this place"""

    exit_code: ClassVar[int] = 2


class BlobStoreUnavailable(TracestoreError):
    """The blobs cannot be reached now"""

    status: ClassVar[int] = 503


class BlobStoreFull(TracestoreError):
    """There is no room for this blob; nothing of it was kept"""

    status: ClassVar[int] = 507


class BlobNotFound(TracestoreError):
    """This project holds no blob of that hash"""

    status: ClassVar[int] = 404


class OtherBytes(TracestoreError):
    """The bytes do not hash to the name they were sent under; nothing of them was kept"""

    status: ClassVar[int] = 422


class WrongOffset(TracestoreError):
    """The upload does not go on at this offset"""

    status: ClassVar[int] = 409


class UploadInHand(TracestoreError):
    """Another request is uploading this blob now"""

    status: ClassVar[int] = 409


class Blobs(Protocol):
    """Payloads by project and hash. Names are sha256, hex, lower case: callers check that.

    All methods block, and may be called from any number of threads. Each raises BlobStoreUnavailable where
    the place itself fails.
    """

    @property
    def uploads(self) -> Uploads:
        """The way in."""

    def size(self, project: str, name: str) -> int | None:
        """Bytes of a blob that is there; None where there is none."""

    def renew(self, project: str, name: str) -> int | None:
        """`size` for whoever will not send a blob that is there: it will be there after a power cut, and
        counts as sent now."""

    def sizes(self, project: str, names: Collection[str]) -> Mapping[str, int]:
        """Bytes of those blobs that are there."""

    def read(self, project: str, name: str, *, start: int, stop: int) -> Iterator[bytes]:
        """The bytes from `start` up to `stop`, in steps; a caller that ends early closes the iterator.

        Raises:
            BlobNotFound: it went away.
        """

    def keep(self, project: str, name: str, file: Path) -> None:
        """Take over a synced file as a blob, whole or not at all; returns when that is durable.

        What was there under the name is replaced: a damaged blob is put right by sending it again.
        """

    def sent_before(self, project: str, at: int) -> Iterator[str]:
        """The blobs of a project that were last sent before a time, nanoseconds UTC."""

    def remove(self, project: str, name: str, *, sent_before: int) -> bool:
        """Take a blob away for good, unless it was sent or renewed at a time (nanoseconds UTC) or later.

        Returns:
            Whether there is none now; when it returns, that is durable.
        """


def folder_of(project: str) -> str:
    """What a project's blobs lie under. A name may hold a slash, and two may differ in case alone."""
    return sha256(project.encode("utf-8")).hexdigest()
