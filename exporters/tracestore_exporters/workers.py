"""Shards of a plan -> processes that make them, each with a connection of its own to the store.

Whoever is free gets the next shard, the largest first. A worker that dies is named and its shard given out
once more; a second death is an error. Workers end with the process that started them, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import DupFd
from typing import Any

from tracestore.errors import TracestoreError
from tracestore_exporters.export import Note, Task, cut_shard
from tracestore_exporters.opening import Opening
from tracestore_exporters.parts import Part
from tracestore_exporters.plan import PlannedShard, largest_first

# A fork would share the connections of the process that plans.
_SPAWN = multiprocessing.get_context("spawn")
_TELL_EVERY_S = 0.2


class WorkerDied(TracestoreError):
    """Workers died twice over the same shard."""


@dataclass(frozen=True, slots=True)
class Processes:
    """An engine of several processes on this machine, see `export.Engine`.

    Raises:
        WorkerDied: as it says. Any other error is the first that a worker met.
    """

    opening: Opening
    workers: int
    note: Note

    def __call__(
        self, task: Task, shards: Sequence[PlannedShard], *, advance: Callable[[int], None], lock: int | None
    ) -> Iterator[Part]:
        waiting = largest_first(shards)
        crew: list[_Worker] = []
        again: set[str] = set()
        try:
            while waiting and len(crew) < self.workers:
                crew.append(_Worker.started(self.opening, task, waiting.pop(0), lock=lock))
            while crew:
                worker = _ready(crew)
                said = worker.hear()
                if isinstance(said, Part):
                    yield said
                    worker.go_on_with(waiting.pop(0) if waiting else None)
                elif isinstance(said, int):
                    worker.groups += said
                    advance(said)
                elif isinstance(said, _Failed):
                    said.error.add_note(said.trace)
                    raise said.error
                else:
                    crew.remove(worker)
                    worker.end()
                    if worker.shard is not None:
                        advance(-worker.groups)
                        self._name(worker, is_second=worker.shard.file in again)
                        again.add(worker.shard.file)
                        crew.append(_Worker.started(self.opening, task, worker.shard, lock=lock))
        finally:
            for worker in crew:
                worker.end()

    def _name(self, worker: _Worker, *, is_second: bool) -> None:
        assert worker.shard is not None
        dead = f"worker {worker.process.pid} ({_how(worker.process.exitcode)})"
        if is_second:
            raise WorkerDied(
                shard=worker.shard.file,
                last=dead,
                hint="where the system ended it for want of memory, take fewer workers or a smaller"
                " max_row_bytes",
            )
        self.note(f"{dead} died; {worker.shard.file} is made once more")


@dataclass(frozen=True, slots=True)
class _Failed:
    """What a worker met."""

    error: Exception
    trace: str


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    link: Connection[Any, Any]
    shard: PlannedShard | None
    """What it is at; None: it has been told to end."""
    groups: int = 0
    """How many of the shard's it has told of."""

    @classmethod
    def started(cls, opening: Opening, task: Task, shard: PlannedShard, *, lock: int | None) -> _Worker:
        ours, theirs = _SPAWN.Pipe()
        held = None if lock is None else _Held(lock)
        process = _SPAWN.Process(target=_work, args=(opening, task, theirs, held), daemon=True)
        # Ctrl-C goes to every process of the terminal: this one hears it, and ends the others.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        worker = cls(process, ours, shard)
        worker.go_on_with(shard)
        return worker

    def hear(self) -> Part | int | _Failed | None:
        """A part, groups that were done, an error; None: it has ended."""
        try:
            said: Part | int | _Failed = self.link.recv()
        except (EOFError, OSError):
            return None
        return said

    def go_on_with(self, shard: PlannedShard | None) -> None:
        self.shard, self.groups = shard, 0
        with suppress(BrokenPipeError):  # it has died, which `hear` tells
            self.link.send(shard)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()


def _ready(crew: Sequence[_Worker]) -> _Worker:
    ready = wait([worker.link for worker in crew])
    return next(worker for worker in crew if worker.link in ready)


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit code {exit_code}"


class _Held:
    """A descriptor that a process which is started keeps open too."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _kept, (DupFd(self.descriptor),)


def _kept(duplicate: Any) -> _Held:
    return _Held(duplicate.detach())


def _work(opening: Opening, task: Task, link: Connection[Any, Any], _held: _Held | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    telling = _Telling(link)
    try:
        with opening.source(task) as source:
            while (shard := link.recv()) is not None:
                part = cut_shard(source, task, shard, advance=telling.advance)
                telling.flush()
                link.send(part)
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that waits raises it
        link.send(_Failed(error, traceback.format_exc()))


class _Telling:
    """Groups that were done, told now and then: one message each would cost more than a small group."""

    def __init__(self, link: Connection[Any, Any]) -> None:
        self._link = link
        self._groups = 0
        self._told_at = time.monotonic()

    def advance(self, groups: int) -> None:
        self._groups += groups
        if time.monotonic() - self._told_at > _TELL_EVERY_S:
            self.flush()

    def flush(self) -> None:
        self._link.send(self._groups)
        self._groups, self._told_at = 0, time.monotonic()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
