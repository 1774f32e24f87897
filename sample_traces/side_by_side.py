"""Several agents at work at the same time: each makes one call in turn, until all have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

Work = Iterator[None]
"""What one agent does: a generator that yields behind each of its model calls."""


def side_by_side(workers: Iterable[Work], *, at_once: int | None = None) -> None:
    """Return when every worker has ended; the next one begins when fewer than `at_once` are at work.

    Their calls lie between each other's, as those of threads do, but in the same order each time, so that a
    recording that is made again is the same one.
    """
    waiting = iter(workers)
    active = deque(islice(waiting, at_once))
    while active:
        worker = active.popleft()
        has_ended = next(worker, True)
        active.extend(islice(waiting, 1) if has_ended else (worker,))
