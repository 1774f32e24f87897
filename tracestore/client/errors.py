"""What can go wrong while recording; nothing that was recorded is lost by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tracestore.errors import TracestoreError


class ClientError(TracestoreError):
    """The client cannot do this"""


class NotRecordable(ClientError):
    """The value cannot be written as JSON"""


class ClientClosed(ClientError):
    """The client is closed"""


class ServerAway(ClientError):
    """The server does not answer"""

    status: ClassVar[int] = 503


class RequestRefused(ClientError):
    """The server refuses the request as a whole"""


class PayloadTooLarge(ClientError):
    """The server takes no payload of that size"""


class SpoolUnusable(ClientError):
    """The spool cannot be read or written"""


class NotReplayed(ClientError):
    """The recording has no result for this run of a tool"""

    status: ClassVar[int] = 409


class RecordedToolError(Exception):
    """What a tool raised when it was recorded. Its class is named as the one that was raised."""

    def __init__(self, message: str) -> None:
        # Not the __init__ of the class after this one: some of the built-in ones want other arguments.
        Exception.__init__(self, message)
        self.message = message

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Rejected:
    """One event that the server did not take."""

    index: int
    """Place among the events of this client, from 0; of a drained file: its line."""
    kind: str | None
    id: str | None
    status: str
    """As the server says: invalid, conflict, ..."""
    problem: str


class RejectedEvents(ClientError):
    """The server did not take some events"""

    status: ClassVar[int] = 422

    def __init__(self, items: Sequence[Rejected], *, more: int = 0) -> None:
        """
        Args:
            more: how many there are beyond those listed.
        """
        self.items = tuple(items)
        shown = "; ".join(f"#{one.index} {one.kind} {one.id}: {one.problem}" for one in self.items[:5])
        more += max(0, len(self.items) - 5)
        rest = f"; and {more} more (see .items)" if more else ""
        super().__init__(events=min(len(self.items), 5) + more, hint=shown + rest)
