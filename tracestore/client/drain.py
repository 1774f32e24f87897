"""Spool files -> the server. A file is removed when the server has every event of it on its disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tracestore.client.errors import Rejected
from tracestore.client.server import Patience, Posted, Server, deliver
from tracestore.client.spool import (
    REJECTED,
    claimed,
    line_of,
    remove,
    spooled,
    write_synced,
)


@dataclass(slots=True)
class Drained:
    """What came of sending some files."""

    taken: int = 0
    """Events that the server has now, those included that it had already."""
    rejected: list[Rejected] = field(default_factory=list)
    """Events that it did not take; they are kept in a `.rejected` file beside the one they were in."""
    in_use: list[Path] = field(default_factory=list)
    """Files that a living process writes or sends."""


def drain(
    server: Server, paths: Iterable[Path], *, patience: Patience, after_batch: Callable[[int], object]
) -> Drained:
    """Send the files that no living process holds.

    Args:
        after_batch: called with the number of bytes of each batch that was sent.

    Raises:
        ServerAway, RequestRefused: the files that were not sent to their end stay as they are.
    """
    done = Drained()
    for path in paths:
        with claimed(path) as is_ours:
            if is_ours:
                one = send_file(server, path, patience=patience, after_batch=after_batch)
                done.taken, done.rejected = done.taken + one.taken, done.rejected + one.rejected
            elif path.exists():
                done.in_use.append(path)
    return done


def send_file(
    server: Server, path: Path, *, patience: Patience, after_batch: Callable[[int], object]
) -> Drained:
    """Send a file that is claimed, and remove it. Raises as `drain`."""
    done = Drained()
    beside = path.with_suffix(REJECTED)
    for batch in spooled(path):
        rejected = deliver(server, batch, patience=patience)
        if rejected:
            refused = {one.index for one in rejected}
            lines = b"".join(line_of(one.text) for one in batch if one.index in refused)
            # A file that is sent again, because it was cut off, tells the same again.
            write_synced(beside, lines, anew=not done.rejected)
        done.taken += len(batch) - len(rejected)
        done.rejected += rejected
        after_batch(size_of(batch))
    remove(path)
    return done


def size_of(batch: Iterable[Posted]) -> int:
    """Bytes of its texts."""
    return sum(len(posted.text) for posted in batch)
