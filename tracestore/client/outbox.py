"""Recorded events -> the server, on a thread of its own: queue, batches, and the spool while it is away."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tracestore.client.errors import ClientClosed, ClientError, Rejected, RejectedEvents, ServerAway
from tracestore.client.server import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    MAX_PAUSE_S,
    Posted,
    Server,
    deliver,
)
from tracestore.client.spool import Spool, claimed, line_of, remove, spooled, write_rejected

_log = logging.getLogger("tracestore.client")

MAX_QUEUED_EVENTS = 10_000
MAX_QUEUED_BYTES = 256 * 2**20
"""Events wait here for the sender; recording waits when it is full, so that memory stays bounded."""
LINGER_S = 0.1
"""How long the sender waits for more events before it sends a small batch."""


class Outbox:
    """Events on their way to one server. Thread-safe.

    A batch is in one of four places: queued, being sent, at the server, or in the spool. When the server is
    away and there is no spool (or no room on its disk), the batch goes back to the queue: the outbox is
    stuck, tries again every few seconds, and says so to whoever flushes or finds the queue full.
    """

    def __init__(self, connect: Callable[[], Server], *, spool: Spool | None, retry_s: float) -> None:
        self._connect = connect
        self._server = connect()
        self._spool = spool
        self._retry_s = retry_s
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        # Everything below belongs to the lock of `_changed`.
        self._queue: deque[Posted] = deque()
        self._sending: list[Posted] = []
        self._held_bytes = 0
        self._recorded = 0
        self._flushers = 0
        self._rejected: list[Rejected] = []
        self._away: ClientError | None = None
        """Why the last batch did not reach the server."""
        self._stuck = False
        """Whether that batch is in no spool either."""
        self._spooled: list[Path] = []
        """Files of this process that hold events."""
        self._closing = False
        self._has_ended = False
        """Whether the sender thread is gone: closed, or dead of a fault of its own."""
        self._thread: threading.Thread | None = None
        atexit.register(self.close)

    def put(self, text: bytes) -> None:
        """Queue one event; waits while the queue is full.

        Raises:
            ServerAway, RequestRefused: the queue is full and cannot be sent.
            ClientClosed: after `close`.
        """
        with self._changed:
            while self._is_full() and not self._closing:
                if self._stuck and self._away is not None:
                    raise self._away
                self._raise_ended()
                self._changed.wait()
            if self._closing:
                raise ClientClosed(hint="record inside the with block of the client")
            self._queue.append(Posted(self._recorded, text))
            self._held_bytes += len(text)
            self._recorded += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._send, name="tracestore-client", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Return when the server has everything put so far on its disk; see `Client.flush`."""
        self._send_all()
        if self._spool is not None:
            self._send_own_spool(self._spool)
        self._raise_rejected()

    def close(self) -> None:
        """flush, and stop. Events that are safe in the spool while the server is away are no error here."""
        with self._changed:
            if self._closing:
                return
        try:
            self.flush()
        except ServerAway as error:
            if self._spool is None or self._stuck:
                raise
            _log.warning("%s. The events are in %s: send them with drain()", error, self._spool.folder)
        finally:
            self._stop()
        self._raise_rejected()

    def drain(self, spool: Spool) -> int:
        """Send all files of a spool whose writers are gone, and our own; see `Client.drain`."""
        spool.release()
        taken, rejected = self._send_files(spool.files())
        if rejected:
            raise RejectedEvents(rejected)
        return taken

    def _stop(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self._server.close()
        if self._spool is not None:
            self._spool.release()
        atexit.unregister(self.close)

    def _is_full(self) -> bool:
        return len(self._queue) >= MAX_QUEUED_EVENTS or self._held_bytes >= MAX_QUEUED_BYTES

    def _send_all(self) -> None:
        """Wait until everything put so far is at the server. Raises why it is not."""
        with self._changed:
            if self._closing:
                raise ClientClosed(hint="flush before the client is closed")
            target = self._recorded
            self._away, self._stuck = None, False
            self._flushers += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._stuck or self._settled() >= target or self._has_ended)
            finally:
                self._flushers -= 1
            if self._settled() < target:
                self._raise_ended()
            if self._away is not None:
                raise self._away

    def _raise_ended(self) -> None:
        if self._has_ended:
            raise ClientError(
                hint="the sender thread ended by a fault of its own; its traceback is on stderr"
            )

    def _settled(self) -> int:
        return self._recorded - len(self._queue) - len(self._sending)

    def _raise_rejected(self) -> None:
        with self._changed:
            rejected, self._rejected = self._rejected, []
        if rejected:
            raise RejectedEvents(rejected)

    # the sender thread

    def _send(self) -> None:
        try:
            self._send_batches()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _send_batches(self) -> None:
        next_try = 0.0
        while batch := self._next_batch():
            rejected: list[Rejected] = []
            away = self._away
            # While the server is away, a spool takes the batches at once and the server is only looked at.
            if away is None or self._spool is None or time.monotonic() >= next_try:
                try:
                    patience_s = self._retry_s if away is None else 0.0
                    rejected = deliver(self._server, batch, patience_s=patience_s, stopped=self._stopped)
                    away = None
                except ClientError as error:
                    away = error
                    next_try = time.monotonic() + MAX_PAUSE_S
            stuck = away is not None and not self._put_into_spool(batch)
            self._settle(batch, rejected, away=away, stuck=stuck)

    def _next_batch(self) -> list[Posted]:
        """Wait for events; a small batch waits a moment for more. [] once the client is closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._closing)
            if self._stuck:
                self._changed.wait_for(lambda: not self._stuck or self._closing, MAX_PAUSE_S)
            else:
                self._changed.wait_for(self._is_batch_due, LINGER_S)
            size = 0
            while self._queue and not self._closing:
                if len(self._sending) >= MAX_BATCH_EVENTS or size >= MAX_BATCH_BYTES:
                    break
                size += len(self._queue[0].text)
                self._sending.append(self._queue.popleft())
            return list(self._sending)

    def _is_batch_due(self) -> bool:
        full = len(self._queue) >= MAX_BATCH_EVENTS or self._held_bytes >= MAX_BATCH_BYTES
        return full or self._flushers > 0 or self._closing

    def _settle(
        self, batch: list[Posted], rejected: list[Rejected], *, away: ClientError | None, stuck: bool
    ) -> None:
        with self._changed:
            self._rejected += rejected
            self._away, self._stuck = away, stuck
            self._sending = []
            if stuck:
                self._queue.extendleft(reversed(batch))
            else:
                self._held_bytes -= sum(len(posted.text) for posted in batch)
            self._changed.notify_all()

    # the spool

    def _put_into_spool(self, batch: Sequence[Posted]) -> bool:
        if self._spool is None:
            return False
        try:
            path = self._spool.append(batch)
        except OSError as error:
            _log.error("the server is away and the spool cannot be written: %s", error)
            return False
        with self._changed:
            if path not in self._spooled:
                self._spooled.append(path)
        return True

    def _send_own_spool(self, spool: Spool) -> None:
        spool.release()
        with self._changed:
            paths = list(self._spooled)
        _, rejected = self._send_files(paths)
        with self._changed:
            self._spooled = [path for path in self._spooled if path not in paths]
            self._rejected += rejected

    def _send_files(self, paths: Sequence[Path]) -> tuple[int, list[Rejected]]:
        taken = 0
        rejected: list[Rejected] = []
        server = self._connect()
        try:
            for path in paths:
                with claimed(path) as is_ours:
                    if is_ours:
                        sent, refused = self._send_file(server, path)
                        taken, rejected = taken + sent, rejected + refused
        finally:
            server.close()
        return taken, rejected

    def _send_file(self, server: Server, path: Path) -> tuple[int, list[Rejected]]:
        sent = 0
        rejected: list[Rejected] = []
        kept = b""
        for batch in spooled(path):
            refused = deliver(server, batch, patience_s=self._retry_s, stopped=self._stopped)
            indexes = {one.index for one in refused}
            kept += b"".join(line_of(posted.text) for posted in batch if posted.index in indexes)
            sent += len(batch) - len(refused)
            rejected += refused
        if kept:
            write_rejected(path, kept)
        remove(path)
        return sent, rejected
