"""How much one project may send: token buckets, one for requests and one for bytes, one second deep.

A request is let in while something is left. What it then sends is taken off, even below zero, so a body may
be larger than the bucket; what is owed is made up for before the next request is let in. Every process
counts on its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from starlette.types import Message, Receive

from tracestore_api.errors import TooMuch

_REMEMBERED = 4096


class Bucket:
    """Units that flow in at a rate, up to what one second brings."""

    def __init__(self, rate: int, *, now: float) -> None:
        self._rate = rate
        self._level = float(rate)
        self._at = now

    def wait_s(self, *, now: float) -> float:
        """Seconds until a whole unit is left; 0 when one is."""
        self._level = min(float(self._rate), self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1 - self._level) / self._rate)

    def take(self, amount: int) -> None:
        """Take units out, whether they are there or not."""
        self._level -= amount


class Rates:
    """The buckets of every project that sent something lately; off where no rate is set."""

    def __init__(
        self,
        *,
        requests_per_s: int | None,
        bytes_per_s: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests_per_s = requests_per_s
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self.are_set = requests_per_s is not None or bytes_per_s is not None

    def admit(self, project: str, receive: Receive) -> Receive:
        """Count one request of a project; what is returned counts the bytes of its body as they come.

        Raises:
            TooMuch: the project used up what it may send now.
        """
        now = self._clock()
        requests = self._bucket(project, "requests", self._requests_per_s, now)
        sent = self._bucket(project, "bytes", self._bytes_per_s, now)
        for unit, bucket, rate in (
            ("requests", requests, self._requests_per_s),
            ("bytes", sent, self._bytes_per_s),
        ):
            wait = 0.0 if bucket is None else bucket.wait_s(now=now)
            if wait > 0:
                raise TooMuch(
                    limit=f"{rate} {unit} a second",
                    retry_after_s=math.ceil(wait),
                    hint="send it again after Retry-After seconds, with the same ids",
                )
        if requests is not None:
            requests.take(1)
        return receive if sent is None else _counted(receive, sent)

    def _bucket(self, project: str, unit: str, rate: int | None, now: float) -> Bucket | None:
        if rate is None:
            return None
        bucket = self._buckets.pop((project, unit), None) or Bucket(rate, now=now)
        self._buckets[project, unit] = bucket
        if len(self._buckets) > _REMEMBERED:
            # The one that was used longest ago: by now it is full, or soon will be.
            del self._buckets[next(iter(self._buckets))]
        return bucket


def _counted(receive: Receive, bucket: Bucket) -> Receive:
    async def counting() -> Message:
        message = await receive()
        bucket.take(len(message.get("body", b"")))
        return message

    return counting
