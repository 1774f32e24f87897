"""Batches -> a store of this process: CPU time per call of what the server does with them, without HTTP.

Decoding is body -> events, preparing what the thread that posts does of `Store.ingest`, committing what the
store's own threads do of it.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workload import CALLS_PER_ROLLOUT, Kind, Workload, unpacked

from tracestore.store import Store
from tracestore.wire.decode import decode_body
from tracestore.wire.events import AnyEvent
from tracestore.wire.memory import SpanMemory
from tracestore_api.serve import collect_rarely

Items = list[tuple[AnyEvent, bytes]]


def in_process(
    made: Workload, num_warm_up: int, *, kinds: Sequence[Kind], profile: Path | None = None
) -> dict[str, Any]:
    """us of CPU per call by step, for every kind of batch."""
    result: dict[str, Any] = {}
    threads = _Profiles()
    collect_rarely()
    for kind in kinds:
        batches = [unpacked(frame) for frame in made.batches(kind)]
        with tempfile.TemporaryDirectory(prefix="tracestore-bench-") as folder:
            with nullcontext() if profile is None else threads.profiled():
                spent = _spent(Path(folder) / "store.db", batches[:num_warm_up], batches[num_warm_up:])
            measured = _per_call(spent, num_calls=CALLS_PER_ROLLOUT * (len(batches) - num_warm_up))
            size = (Path(folder) / "store.db").stat().st_size
        measured["disk_bytes"] = round(size / (CALLS_PER_ROLLOUT * len(batches)))
        result |= {f"{kind}_{name}": value for name, value in measured.items()}
        told = ", ".join(f"{name} {value}" for name, value in measured.items())
        print(f"{kind}: {told}", file=sys.stderr)
    if profile is not None:
        threads.write(profile)
    return result


@dataclass
class _Spent:
    """Seconds of CPU, and by the clock."""

    decoding: float = 0.0
    preparing: float = 0.0
    committing: float = 0.0
    clock: float = 0.0


def _spent(database: Path, warm_up: Sequence[bytes], batches: Sequence[bytes]) -> _Spent:
    memory = SpanMemory()
    with Store.open(f"sqlite:///{database}") as store:
        for batch in warm_up:
            store.ingest("default", _items(batch, memory))
        spent, begin = _Spent(), time.perf_counter()
        for batch in batches:
            start = time.thread_time()
            items = _items(batch, memory)
            spent.decoding += time.thread_time() - start
            own, all_threads = time.thread_time(), time.process_time()
            outcomes = store.ingest("default", items)
            own = time.thread_time() - own
            spent.preparing += own
            spent.committing += time.process_time() - all_threads - own
            assert all(one.status == "stored" for one in outcomes), outcomes
        spent.clock = time.perf_counter() - begin
    return spent


def _per_call(spent: _Spent, *, num_calls: int) -> dict[str, float]:
    return {
        "decode_us": round(spent.decoding / num_calls * 1e6, 1),
        "prepare_us": round(spent.preparing / num_calls * 1e6, 1),
        "commit_us": round(spent.committing / num_calls * 1e6, 1),
        "cps": round(num_calls / spent.clock),
    }


def _items(batch: bytes, memory: SpanMemory) -> Items:
    return [
        (one.event, one.text)
        for one in decode_body(batch, content_type="application/x-ndjson", memory=memory)
        if one.event is not None
    ]


class _Profiles:
    """Of this thread, and of every thread that starts while it is profiled."""

    def __init__(self) -> None:
        self._own = cProfile.Profile()
        self._others: list[cProfile.Profile] = []

    @contextmanager
    def profiled(self) -> Iterator[None]:
        run = threading.Thread.run

        def run_profiled(thread: threading.Thread) -> None:
            profile = cProfile.Profile()
            profile.runcall(run, thread)
            self._others.append(profile)

        threading.Thread.run = run_profiled  # type: ignore[method-assign, assignment]
        self._own.enable()
        try:
            yield
        finally:
            self._own.disable()
            threading.Thread.run = run  # type: ignore[method-assign]

    def write(self, file: Path) -> None:
        """One file for `python -m pstats`."""
        pstats.Stats(self._own, *self._others).dump_stats(file)
