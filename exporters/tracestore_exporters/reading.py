"""Groups of a plan -> their graphs, small ones several at a time: a statement costs more than a few rows."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tracestore.graph.model import Graph
from tracestore_exporters.plan import PlannedGroup
from tracestore_exporters.rendering import Source

EPISODES_AT_ONCE = 8
"""Episodes that are held in memory at once, where a single group has no more: a group is one row."""


def graphs_of(
    source: Source, project: str, groups: Sequence[PlannedGroup], *, snapshot: int
) -> Iterator[tuple[PlannedGroup, list[Graph]]]:
    """Every group with the graphs of its episodes, in order. The graphs have no texts (`Source`)."""
    for some in _batches(groups):
        ids = [episode_id for group in some for episode_id in group.episode_ids]
        graphs = source.training_graphs(project, ids, snapshot=snapshot)
        for group in some:
            count = len(group.episode_ids)
            # Taken away, so that what is done with is not kept until the others are.
            own, graphs = graphs[:count], graphs[count:]
            yield group, own


def _batches(groups: Sequence[PlannedGroup]) -> Iterator[list[PlannedGroup]]:
    some: list[PlannedGroup] = []
    for group in groups:
        if some and sum(len(one.episode_ids) for one in (*some, group)) > EPISODES_AT_ONCE:
            yield some
            some = []
        some.append(group)
    if some:
        yield some


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let Python's cycle collector look seldom.

    With the defaults a sixth of an export goes into looking through what is gone with its group anyway.
    """
    before = gc.get_threshold()
    gc.set_threshold(500_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
