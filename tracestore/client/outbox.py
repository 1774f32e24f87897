"""Recorded events -> the server, on a thread of its own: queue, batches, and the spool while it is away."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracestore.client.drain import drain, send_file, size_of
from tracestore.client.errors import (
    ClientClosed,
    ClientError,
    Rejected,
    RejectedEvents,
    ServerAway,
    SpoolUnusable,
)
from tracestore.client.server import (
    MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS,
    MAX_PAUSE_S,
    Patience,
    Posted,
    Server,
    deliver,
)
from tracestore.client.spool import Spool, claimed, spool_files

_log = logging.getLogger("tracestore.client")

MAX_QUEUED_EVENTS = 10_000
MAX_QUEUED_BYTES = 256 * 2**20
"""Events wait here for the sender; recording waits when it is full, so that memory stays bounded."""
MAX_KEPT_REJECTIONS = 1_000
"""Refused events are told by name up to here, and counted beyond."""
MAX_RETRY_AFTER_S = 300.0
"""A server that asks to be left alone for longer is looked at again all the same."""
LINGER_S = 0.1
"""How long the sender waits for more events before it sends a small batch."""
SPOOL_AFTER_S = 5.0
"""How long a batch that nobody flushes waits for a server that does not answer, where there is a spool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Where the events of a client are."""

    recorded: int
    """Since the client, or its process, began."""
    waiting: int
    """In memory."""
    spooled_files: int
    """Files of this process with events that wait on disk."""
    rejected: int
    """Not taken by the server, and not told yet by `flush`."""
    away: str | None
    """Why the last batch did not reach the server; None: it did."""


class Outbox:
    """Events on their way to one server. Thread-safe; in the child of a fork it begins anew, empty.

    A batch is in one of four places: queued, being sent, at the server, or in the spool. When the server is
    away and there is no spool (or no room on its disk), the batch goes back to the queue: the outbox is
    stuck, tries again every few seconds, and says so to whoever flushes or finds the queue full. What this
    process has spooled it sends by itself once the server is back.
    """

    def __init__(self, connect: Callable[[], Server], *, spool: Spool | None, retry_s: float) -> None:
        self._connect = connect
        self._spool = spool
        self._retry_s = retry_s
        self._begin()
        atexit.register(self.close)
        _LIVE.add(self)

    def _begin(self) -> None:
        self._server = self._connect()
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        # Everything below belongs to the lock of `_changed`.
        self._queue: deque[Posted] = deque()
        self._sending: list[Posted] = []
        self._held_bytes = 0
        self._recorded = 0
        self._flushers = 0
        self._rejected: list[Rejected] = []
        self._num_rejected = 0
        self._away: ClientError | None = None
        """Why the last batch did not reach the server."""
        self._tries = 0
        """How often a batch or a file was begun to be sent, its retries not counted."""
        self._failed_try = 0
        """The number of the last one that failed."""
        self._asked_at = -1
        """The number of the last one that had begun when somebody asked for a flush."""
        self._next_try = 0.0
        """When a server that is away is looked at again."""
        self._stuck = False
        """Whether that batch is in no spool either."""
        self._spooled: list[Path] = []
        """Files of this process that hold events."""
        self._is_trouble_told = False
        self._closing = False
        self._has_ended = False
        """Whether the sender thread is gone: closed, or dead of a fault of its own."""
        self._thread: threading.Thread | None = None
        self._at_end_of_worker: Any = None

    def begin_in_child(self) -> None:
        """After a fork: what the parent has in hand is the parent's, and so are its thread and connection."""
        self._server.close()
        if self._spool is not None:
            self._spool.fork()
        self._begin()

    def put(self, text: bytes) -> None:
        """Queue one event; waits while the queue is full.

        Raises:
            ServerAway, RequestRefused: the queue is full and cannot be sent.
            ClientClosed: after `close`.
        """
        with self._changed:
            while self.is_full and not self._closing:
                if self._stuck:
                    raise self._why_away()
                self._raise_ended()
                self._changed.wait()
            if self._closing:
                raise ClientClosed(hint="record inside the with block of the client")
            self._raise_ended()
            self._queue.append(Posted(self._recorded, text))
            self._held_bytes += len(text)
            self._recorded += 1
            if self._thread is None:
                self._start()
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Return when `put` would not wait, or would raise."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self.is_full or self._stuck or self._closing or self._has_ended
            )

    def flush(self) -> None:
        """Return when the server has everything put so far on its disk; see `Client.flush`."""
        self._send_all()
        self._raise_rejected()

    def close(self) -> None:
        """flush, and stop. Events that are safe in the spool while the server is away are no error here."""
        with self._changed:
            if self._closing:
                return
        try:
            self._send_all()
        except ServerAway as error:
            if self._spool is None or self._stuck:
                raise
            _log.warning("%s", error)
        finally:
            self._stop()
        self._raise_rejected()

    def drain(self, spool: Spool) -> int:
        """Send the spool files of processes that ended; see `Client.drain`."""
        server = self._connect()
        patience = Patience(lambda: self._retry_s, self._stopped, self._tell_trouble)
        try:
            paths = spool_files(spool.folder, owner=spool.owner)
            done = drain(server, paths, patience=patience, after_batch=lambda size: None)
        finally:
            server.close()
        if done.rejected:
            raise RejectedEvents(done.rejected)
        return done.taken

    def stats(self) -> Stats:
        """Where the events are now."""
        with self._changed:
            return Stats(
                recorded=self._recorded,
                waiting=len(self._queue) + len(self._sending),
                spooled_files=len(self._spooled),
                rejected=self._num_rejected,
                away=None if self._away is None else str(self._away),
            )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._send, name="tracestore-client", daemon=True)
        self._thread.start()
        # A worker of multiprocessing ends without running what atexit holds.
        if util := sys.modules.get("multiprocessing.util"):
            self._at_end_of_worker = util.Finalize(None, self.close, exitpriority=0)

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
        if self._at_end_of_worker is not None:
            self._at_end_of_worker.cancel()
        _LIVE.discard(self)

    @property
    def is_full(self) -> bool:
        """Whether `put` would wait."""
        return len(self._queue) >= MAX_QUEUED_EVENTS or self._held_bytes >= MAX_QUEUED_BYTES

    def _send_all(self) -> None:
        """Wait until everything put so far is at the server. Raises why it is not."""
        with self._changed:
            if self._closing:
                raise ClientClosed(hint="flush before the client is closed")
            target, self._asked_at = self._recorded, self._tries
            asked_at = self._asked_at
            self._next_try = 0.0
            self._flushers += 1
            self._changed.notify_all()

            def is_settled() -> bool:
                # What was tried before says nothing of now.
                is_away = self._failed_try > asked_at and self._away is not None
                if self._stuck or self._settled() < target:
                    return self._has_ended or (self._stuck and is_away)
                return self._has_ended or is_away or not self._spooled

            try:
                self._changed.wait_for(is_settled)
            finally:
                self._flushers -= 1
            if self._settled() < target or self._spooled:
                self._raise_ended()
                raise self._why_away()

    def _why_away(self) -> ClientError:
        """Why the events are not at the server, and where they are. The lock is held."""
        error = self._away
        assert error is not None
        if self._spool is None or self._stuck:
            return type(error)(hint=error.hint, **error.values)
        hint = "they are sent when it answers, or by `tracestore spool drain`"
        hint = f"{error.hint}; {hint}" if error.hint else hint
        return type(error)(hint=hint, **error.values, spool=str(self._spool.folder))

    def _raise_ended(self) -> None:
        if self._has_ended:
            raise ClientError(
                hint="the sender thread ended by a fault of its own; its traceback is on stderr"
            )

    def _settled(self) -> int:
        return self._recorded - len(self._queue) - len(self._sending)

    def _raise_rejected(self) -> None:
        with self._changed:
            rejected, more = self._rejected, self._num_rejected - len(self._rejected)
            self._rejected, self._num_rejected = [], 0
        if rejected:
            raise RejectedEvents(rejected, more=more)

    # the sender thread

    def _send(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                if batch:
                    self._send_batch(batch)
                else:
                    self._send_spooled()
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _next_batch(self) -> list[Posted] | None:
        """Wait for work: events, or [] when it is time to send what is spooled; None once it is closed.

        A small batch waits a moment for more.
        """
        with self._changed:
            while not self._closing:
                if self._queue:
                    self._wait_for_more()
                    return self._taken()
                wait_s = max(0.0, self._next_try - time.monotonic()) if self._spooled else None
                if wait_s == 0.0:
                    return []
                self._changed.wait(wait_s)
            return None

    def _wait_for_more(self) -> None:
        if self._stuck:
            self._changed.wait_for(lambda: self._asked_at >= self._tries or self._closing, MAX_PAUSE_S)
        else:
            self._changed.wait_for(self._is_batch_due, LINGER_S)

    def _taken(self) -> list[Posted] | None:
        """The next events of the queue, which are being sent from now on."""
        if self._closing:
            return None
        size = 0
        while self._queue and len(self._sending) < MAX_BATCH_EVENTS and size < MAX_BATCH_BYTES:
            size += len(self._queue[0].text)
            self._sending.append(self._queue.popleft())
        return list(self._sending)

    def _is_batch_due(self) -> bool:
        full = len(self._queue) >= MAX_BATCH_EVENTS or self._held_bytes >= MAX_BATCH_BYTES
        return full or self._flushers > 0 or self._closing

    def _send_batch(self, batch: list[Posted]) -> None:
        rejected: list[Rejected] = []
        away = self._away
        # While the server is away, a spool takes the batches at once and the server is only looked at.
        if away is None or self._spool is None or time.monotonic() >= self._next_try:
            self._tries += 1
            try:
                rejected = deliver(self._server, batch, patience=self._patience())
                away = None
            except ClientError as error:
                away = error
        if rejected and self._spool is not None:
            self._keep_rejected(self._spool, batch, rejected)
        path = None if away is None else self._put_into_spool(batch)
        with self._changed:
            stuck = away is not None and path is None
            self._sending = []
            if stuck:
                self._queue.extendleft(reversed(batch))
            else:
                self._held_bytes -= size_of(batch)
            if path is not None and path not in self._spooled:
                self._spooled.append(path)
            self._settle(rejected, away=away, stuck=stuck)

    def _patience(self) -> Patience:
        was_away = self._away is not None

        def seconds() -> float:
            if self._flushers:
                return self._retry_s
            if was_away:
                return 0.0
            return self._retry_s if self._spool is None else min(self._retry_s, SPOOL_AFTER_S)

        return Patience(seconds, self._stopped, self._tell_trouble)

    def _settle(self, rejected: list[Rejected], *, away: ClientError | None, stuck: bool) -> None:
        """Write down what came of a batch or a file. The lock is held."""
        if rejected and not self._num_rejected:
            _log.error("the server refused: %s", RejectedEvents(rejected))
        self._num_rejected += len(rejected)
        self._rejected += rejected[: max(0, MAX_KEPT_REJECTIONS - len(self._rejected))]
        if away is None:
            self._next_try = 0.0
        elif away is not self._away:
            self._failed_try = self._tries
            pause_s = max(MAX_PAUSE_S, min(MAX_RETRY_AFTER_S, away.values.get("retry_after_s") or 0.0))
            self._next_try = 0.0 if self._asked_at >= self._tries else time.monotonic() + pause_s
        self._away, self._stuck = away, stuck
        if away is not None:
            self._tell_trouble(str(away))
        elif self._is_trouble_told and not self._spooled:
            self._is_trouble_told = False
            _log.warning("the server answers again, and has everything that had to wait for it")
        self._changed.notify_all()

    def _tell_trouble(self, problem: str) -> None:
        if self._is_trouble_told:
            return
        self._is_trouble_told = True
        soon = "" if self._spool is None else f", or soon in {self._spool.folder},"
        _log.warning("%s; the events wait in memory%s until it answers", problem, soon)

    # the spool

    def _put_into_spool(self, batch: Sequence[Posted]) -> Path | None:
        if self._spool is None:
            return None
        try:
            return self._spool.append(batch)
        except OSError as error:
            _log.error("the server is away and the spool cannot be written: %s", error)
            return None

    def _keep_rejected(self, spool: Spool, batch: Sequence[Posted], rejected: Sequence[Rejected]) -> None:
        indexes = {one.index for one in rejected}
        try:
            spool.keep_rejected([posted.text for posted in batch if posted.index in indexes])
        except OSError as error:
            _log.error("events that the server refused cannot be kept: %s", error)

    def _send_spooled(self) -> None:
        """Send the files of this process; events that are recorded meanwhile go in between."""
        assert self._spool is not None
        self._spool.release()
        for path in list(self._spooled):
            self._tries += 1
            try:
                rejected = self._send_file(path)
            except (ClientError, OSError) as error:
                away = error if isinstance(error, ClientError) else SpoolUnusable(hint=str(error))
                with self._changed:
                    self._settle([], away=away, stuck=False)
                return
            with self._changed:
                self._spooled.remove(path)
                self._settle(rejected, away=None, stuck=False)

    def _send_file(self, path: Path) -> list[Rejected]:
        while True:
            with claimed(path) as is_ours:
                if is_ours:
                    return send_file(
                        self._server, path, patience=self._patience(), after_batch=self._send_waiting
                    ).rejected
            # Somebody who drains the folder is sending it, and it stays ours until that has ended.
            if not path.exists() or self._stopped.wait(LINGER_S):
                return []

    def _send_waiting(self, _: int) -> None:
        while True:
            with self._changed:
                batch = self._taken() if self._queue and self._away is None else None
            if not batch:
                return
            self._send_batch(batch)


_LIVE: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _begin_in_child() -> None:
    for outbox in list(_LIVE):
        outbox.begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
