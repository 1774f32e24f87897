"""What a caller of the HTTP API can get wrong, each with its status."""

from __future__ import annotations

from typing import ClassVar

from tracestore.errors import TracestoreError
from tracestore.wire.errors import EventError


class InvalidProject(TracestoreError):
    """The header X-Tracestore-Project holds no usable project name."""


class UnknownParameter(TracestoreError):
    """The query has a parameter that this route does not know."""

    status: ClassVar[int] = 422


class BadEncoding(TracestoreError):
    """The request body is not what its Content-Encoding says."""


class BodyStalled(TracestoreError):
    """The rest of the body did not come; nothing of it was stored."""

    status: ClassVar[int] = 408


class UnsupportedEncoding(TracestoreError):
    """This Content-Encoding is not read here."""

    status: ClassVar[int] = 415


class UnsupportedMediaType(TracestoreError):
    """This Content-Type is not read here."""

    status: ClassVar[int] = 415


class InvalidReplay(TracestoreError):
    """This request cannot be answered from a recording."""


class InvalidExport(TracestoreError):
    """The body is no OTLP request."""


class TooManySpans(TracestoreError):
    """The request has more spans than this server takes at once; none of them was stored."""

    status: ClassVar[int] = 413


class Busy(TracestoreError):
    """The server has as many events in hand as it can hold; none of this request was stored."""

    status: ClassVar[int] = 503


class SqlBusy(TracestoreError):
    """As many SQL queries run and wait as this server allows"""

    status: ClassVar[int] = 503


class InvalidSqlRequest(TracestoreError):
    """The body does not say what to ask"""

    status: ClassVar[int] = 422


class InvalidReward(TracestoreError):
    """The body is no reward."""

    status: ClassVar[int] = 422


class RefusedReward(TracestoreError):
    """The reward was not stored."""

    status: ClassVar[int] = 422


class ConflictingReward(TracestoreError):
    """Another reward with this id is stored; the first one is kept."""

    status: ClassVar[int] = 409


class InvalidCursor(TracestoreError):
    """This cursor was not made by this server for this list."""

    status: ClassVar[int] = 422


class ForeignHost(TracestoreError):
    """The request names a host that this server is not."""

    status: ClassVar[int] = 421


class ForeignOrigin(TracestoreError):
    """The request comes from a page of another origin."""

    status: ClassVar[int] = 403


class NoKey(TracestoreError):
    """This request needs an API key."""

    status: ClassVar[int] = 401


class RefusedKey(TracestoreError):
    """This API key or session is not known here, or has ended."""

    status: ClassVar[int] = 401


class MissingRight(TracestoreError):
    """This API key may not do that."""

    status: ClassVar[int] = 403


class ForeignProject(TracestoreError):
    """This API key opens one project, and the request names another."""

    status: ClassVar[int] = 403


class KeyInUrl(TracestoreError):
    """An API key does not belong into a URL: addresses are logged, kept and passed on."""


class NoSession(TracestoreError):
    """There is no API key here that a session could stand for."""

    status: ClassVar[int] = 409


class TooMuch(TracestoreError):
    """This project sends more than the server takes from it; nothing of this request was stored."""

    status: ClassVar[int] = 429


class NotLoopback(TracestoreError):
    """Without API keys the server listens on loopback only."""

    exit_code: ClassVar[int] = 2


class OneProcessOnly(TracestoreError):
    """A SQLite file is served by one process, the one that commits."""

    exit_code: ClassVar[int] = 2


class AddressUnavailable(TracestoreError):
    """The server cannot listen on this address."""


class NoBlobs(TracestoreError):
    """This server keeps no blobs."""

    status: ClassVar[int] = 404


class InvalidHash(TracestoreError):
    """A blob is named by the sha256 of its bytes: 64 hexadecimal digits, lower case."""

    status: ClassVar[int] = 422


class InvalidUpload(TracestoreError):
    """The request does not say which part of the blob it sends."""


class BlobExists(TracestoreError):
    """The blob is there already."""

    status: ClassVar[int] = 412


class UploadStalled(TracestoreError):
    """The rest of the blob did not come; what came is kept for a day."""

    status: ClassVar[int] = 408


class RangeNotSatisfiable(TracestoreError):
    """The blob has no bytes in this range."""

    status: ClassVar[int] = 416


class InvalidOffloaded(EventError):
    """This does not say where the event lies."""


class MissingBlob(EventError):
    """The blob that holds the event has not come."""


class DamagedBlob(EventError):
    """The blob that holds the event is damaged."""


class OtherEvent(EventError):
    """The blob holds another event than the one it is named for."""


class ExportNotServed(TracestoreError):
    """The server does not serve the files of this export."""

    status: ClassVar[int] = 404


class ExportFileNotFound(TracestoreError):
    """The export has no such file."""

    status: ClassVar[int] = 404


class ExportFileErased(TracestoreError):
    """Something in this shard was deleted, and the shard with it."""

    status: ClassVar[int] = 410


class ExportNotFollowed(TracestoreError):
    """This export does not go on, so nothing is behind."""

    status: ClassVar[int] = 404
