"""What a caller of the HTTP API can get wrong, each with its status."""

from __future__ import annotations

from typing import ClassVar

from tracestore.errors import TracestoreError


class InvalidProject(TracestoreError):
    """The header X-Tracestore-Project holds no usable project name."""


class UnknownParameter(TracestoreError):
    """The query has a parameter that this route does not know."""

    status: ClassVar[int] = 422


class BadEncoding(TracestoreError):
    """The request body is not what its Content-Encoding says."""


class UnsupportedEncoding(TracestoreError):
    """This Content-Encoding is not read here."""

    status: ClassVar[int] = 415


class UnsupportedMediaType(TracestoreError):
    """This Content-Type is not read here."""

    status: ClassVar[int] = 415


class Busy(TracestoreError):
    """The server has as many events in hand as it can hold; none of this request was stored."""

    status: ClassVar[int] = 503


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


class NotLoopback(TracestoreError):
    """Without API keys the server listens on loopback only."""

    exit_code: ClassVar[int] = 2


class AddressUnavailable(TracestoreError):
    """The server cannot listen on this address."""
