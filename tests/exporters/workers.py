"""A store that several processes export, and workers that die or fail where a test wants it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.exporters.stores import grouped
from tests.scenarios import SCENARIOS
from tracestore.graph.model import Graph
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import Task
from tracestore_exporters.opening import Opening
from tracestore_exporters.rendering import Source

SCENARIOS_OF_A_GROUP = ("linear", "compaction", "interleaved_subagents")


def some_groups(num: int) -> list[AnyEvent]:
    """Groups of three episodes each, in one project."""
    return [
        event
        for number in range(num)
        for name in SCENARIOS_OF_A_GROUP
        for event in grouped(SCENARIOS[name](), prefix=f"{number}/{name}", group_id=f"g{number}")
    ]


@dataclass(frozen=True, slots=True)
class DeadlyOpening(Opening):
    """A store in which whoever loads one episode kills itself."""

    episode_id: str = ""
    deaths: int = 0
    """How many die; the next one lives."""
    marks: Path = Path()
    """An empty folder, to count them in."""

    @contextmanager
    def source(self, task: Task) -> Iterator[Source]:
        with Opening.source(self, task) as source:
            yield _Deadly(source, self)


class _Deadly:
    def __init__(self, source: Source, opening: DeadlyOpening) -> None:
        self._source = source
        self._opening = opening

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def training_graphs(
        self, project: str, episode_ids: Sequence[str], *, snapshot: int | None = None
    ) -> list[Graph]:
        opening = self._opening
        if opening.episode_id in episode_ids:
            died = len(list(opening.marks.iterdir()))
            if died < opening.deaths:
                (opening.marks / str(died)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return self._source.training_graphs(project, episode_ids, snapshot=snapshot)
