"""Shards of a plan -> tasks of a Ray cluster, the one that RAY_ADDRESS names or one of this machine alone.

The nodes need what the workers of one machine have: the same versions installed, the database by the same
URL, and the same place to write to (a shared folder, or a bucket). Nothing is sent to Ray's makers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tracestore.errors import TracestoreError
from tracestore_exporters.export import Note, Task, cut_shard
from tracestore_exporters.opening import Opening
from tracestore_exporters.parts import Part
from tracestore_exporters.plan import PlannedShard, largest_first
from tracestore_exporters.rendering import Source
from tracestore_exporters.workers import WorkerDied

# Read when Ray is loaded.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray
from ray.exceptions import NodeDiedError, OutOfMemoryError, RayTaskError, WorkerCrashedError

_OBJECT_STORE_BYTES = 80 * 2**20
"""Plans and parts are small; this is about the least that Ray takes."""


class NoCluster(TracestoreError):
    """The Ray cluster cannot be reached, or one cannot be started."""


@dataclass(frozen=True, slots=True)
class OnRay:
    """An engine of the processes of a Ray cluster, see `export.Engine`.

    Raises:
        NoCluster: RAY_ADDRESS names none that answers, or this machine is too busy to start one.
        WorkerDied: as it says. Any other error is the first that a worker met.
    """

    opening: Opening
    workers: int | None
    """Shards that are made at once; None: one for each CPU of the cluster."""
    note: Note

    def __call__(
        self, task: Task, shards: Sequence[PlannedShard], *, advance: Callable[[int], None], lock: int | None
    ) -> Iterator[Part]:
        waiting = largest_first(shards)
        again: set[str] = set()
        with _cluster(self.workers):
            at_once = self.workers or _num_cpus()
            make = ray.remote(max_retries=0, num_cpus=1)(_made)
            at_work: dict[Any, PlannedShard] = {}
            while waiting or at_work:
                while waiting and len(at_work) < at_once:
                    shard = waiting.pop(0)
                    at_work[make.remote(self.opening, task, shard)] = shard
                [done], _ = ray.wait(list(at_work), num_returns=1)
                shard = at_work.pop(done)
                try:
                    part: Part = ray.get(done)
                except (WorkerCrashedError, NodeDiedError, OutOfMemoryError) as error:
                    self._name(shard, error, is_second=shard.file in again)
                    again.add(shard.file)
                    waiting.insert(0, shard)
                except RayTaskError as error:
                    raise error.cause from error
                else:
                    advance(part.groups)
                    yield part

    def _name(self, shard: PlannedShard, error: Exception, *, is_second: bool) -> None:
        reason = str(error).partition("\n")[0]
        if is_second:
            raise WorkerDied(shard=shard.file, last=reason, hint="Ray's logs on that node say why") from error
        self.note(f"a worker of Ray died ({reason}); {shard.file} is made once more")


def _num_cpus() -> int:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return int(resources.get("CPU", 1))


@contextmanager
def _cluster(workers: int | None) -> Iterator[None]:
    """Ray, as it runs here already, at RAY_ADDRESS, or else started for this export and ended with it."""
    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(address=address, log_to_driver=False)
        else:
            ray.init(
                address="local",
                num_cpus=workers or os.cpu_count(),
                num_gpus=0,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                _node_ip_address="127.0.0.1",
            )
    except Exception as error:
        # Ray says it in bare ones. What it has started by then is ended.
        ray.shutdown()
        raise NoCluster(
            address=address,
            reason=" ".join(str(error).split()),
            hint="without RAY_ADDRESS a cluster is started here, for which Ray waits half a minute",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _made(opening: Opening, task: Task, shard: PlannedShard) -> Part:
    return cut_shard(_source(opening, task), task, shard, advance=lambda groups: None)


_open: list[tuple[Opening, Task, Source, ExitStack]] = []


def _source(opening: Opening, task: Task) -> Source:
    """Opened once in each process of the cluster."""
    for opened_by, for_task, source, _ in _open:
        if (opened_by, for_task) == (opening, task):
            return source
    while _open:
        _open.pop()[-1].close()
    stack = ExitStack()
    source = stack.enter_context(opening.source(task))
    _open.append((opening, task, source, stack))
    return source
