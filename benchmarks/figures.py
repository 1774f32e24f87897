"""Runs -> figures: medians over rounds, under the names of the last line of the output."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """What one run against one server gave."""

    num_calls: int
    """Measured, without the warm-up."""
    seconds: float
    """Until the last call could be read."""
    post_seconds: tuple[float, ...]
    """Of each post, from its first byte to the last one of its answer."""
    num_busy: int
    """Posts that were sent again because the server had no room."""
    cpu_seconds: float
    """Of the server."""
    peak_mb: float
    disk_bytes_per_call: float
    """After the server has stopped, warm-up included."""

    @property
    def cps(self) -> float:
        return self.num_calls / self.seconds

    @property
    def cpu_ms(self) -> float:
        """Of the server, per call."""
        return self.cpu_seconds / self.num_calls * 1e3

    def post_ms(self, percent: int) -> float:
        return statistics.quantiles(self.post_seconds, n=100, method="inclusive")[percent - 1] * 1e3


def figures(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Of runs by what was run: text_full, ..., single_full, mlflow, phoenix."""

    def median(name: str, value: Callable[[Run], float]) -> float:
        return statistics.median(map(value, runs[name]))

    found: dict[str, Any] = {}
    for name in runs:
        # The batches with the whole context are what all else is held against.
        of = "" if name == "text_full" else f"_{name}"
        found[f"{name}_cps"] = round(median(name, lambda run: run.cps), 1)
        found[f"server_cpu_ms_per_call{of}"] = round(median(name, lambda run: run.cpu_ms), 3)
        found[f"disk_bytes_per_call{of}"] = round(median(name, lambda run: run.disk_bytes_per_call))
        found[f"rss_mb{of}"] = round(max(run.peak_mb for run in runs[name]))
        found[f"num_busy{of}"] = sum(run.num_busy for run in runs[name])
    if "single_full" in runs:
        found["single_p50_ms"] = round(median("single_full", lambda run: run.post_ms(50)), 1)
        found["single_p99_ms"] = round(median("single_full", lambda run: run.post_ms(99)), 1)
    if "ids_full" in runs:
        found["disk_bytes_per_call_ids"] = found["disk_bytes_per_call_ids_full"]
    for peer in [name for name in ("mlflow", "phoenix") if name in runs]:
        found[f"ratio_{peer}"] = round(found["text_full_cps"] / found[f"{peer}_cps"], 1)
    return found
