"""What a step was like -> TensorBoard's event files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from tracestore.train.metrics import StepMetrics


@contextmanager
def event_file(folder: Path, *, steps_before: int) -> Iterator[Callable[[StepMetrics], None]]:
    """Adds the numbers of a step to an event file in the folder, one curve for each.

    Args:
        steps_before: of a run that goes on, where it does. What an earlier file has from there on is of steps
            that are made again; TensorBoard leaves it out.
    """
    # A file's name has the second in which it is begun: a run that goes on at once must not write over that
    # of the one before, which has the steps up to here.
    suffix = f".{steps_before}"
    writer = SummaryWriter(str(folder), purge_step=steps_before or None, filename_suffix=suffix)

    def add(metrics: StepMetrics) -> None:
        for name, value in curves(metrics).items():
            writer.add_scalar(name, value, metrics.step)
        writer.flush()

    try:
        yield add
    finally:
        writer.close()


def curves(metrics: StepMetrics) -> dict[str, float]:
    """The numbers of a step by name; of tables each entry has one. What is unknown has none.

    Example: `{"loss": -0.1, "staleness/0": 12, "advantage_by_cause/root/mean": 0.5}`
    """
    return dict(_numbers(asdict(metrics), ""))


def _numbers(values: dict[str, Any], above: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and name != "step":
            yield f"{above}{name}", float(value)
