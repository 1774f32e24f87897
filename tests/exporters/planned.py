"""Events -> a row, and how a test looks at it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.shards.reasons import label_of
from tracestore.shards.row import Row
from tracestore.shards.views import flat_samples
from tracestore.wire.events import AnyEvent
from tracestore_exporters.rows import GroupInfo, plan_row
from tracestore_exporters.spec import Spec


def planned(*episodes: Iterable[AnyEvent], spec: Spec | None = None) -> Row:
    """The row of one group, each argument one episode's events; checked on the way."""
    graphs = [build(events) for events in episodes]
    row = plan_row(graphs, spec or Spec(), GroupInfo("p", episode_ids(graphs), "g"))
    check_samples(row)
    return row


def episode_ids(graphs: Sequence[Graph]) -> tuple[str, ...]:
    return tuple(
        graph.episode.id if graph.episode is not None else f"e{number}" for number, graph in enumerate(graphs)
    )


def check_samples(row: Row) -> None:
    """Every trained token is in exactly one sample's mask."""
    times = np.zeros(len(row.token_ids), dtype=np.int64)
    for flat in flat_samples(row):
        times[flat.token_index[flat.mask]] += 1
        assert int(flat.mask.sum()) == flat.sample.num_owned
        assert len(flat.token_ids) == flat.sample.num_tokens
    assert np.array_equal(times, (row.reason == 0).astype(np.int64))


def key(row: Row, completion: int) -> tuple[str, int]:
    """(call id, index) of a completion of the row."""
    entry = row.completions[completion]
    return row.calls[entry.call].call_id, entry.index


def chains(row: Row) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The chain of completions of each sample, sorted."""
    return tuple(sorted(tuple(key(row, c) for c in sample.completions) for sample in row.samples))


def causes(row: Row) -> dict[str, str]:
    """Sample id -> why it begins."""
    return {sample.sample_id: sample.cause for sample in row.samples}


def reasons(row: Row) -> dict[str, list[str]]:
    """Call id -> reason of each sampled token of its completions, in order."""
    found: dict[str, list[str]] = {}
    order = sorted(
        (key(row, c), s, n)
        for c, s, n in zip(
            row.segments.completion.tolist(),
            row.segments.start.tolist(),
            row.segments.length.tolist(),
            strict=True,
        )
        if c >= 0
    )
    for (call_id, _), start, length in order:
        found.setdefault(call_id, []).extend(label_of(r) for r in row.reason[start : start + length].tolist())
    return found


def whole_reason(row: Row, call_id: str) -> str:
    """The one reason of all tokens of a call."""
    (only,) = set(reasons(row)[call_id])
    return only


def sample_ids(row: Row, sample_id: str) -> list[int]:
    """The flattened token ids of a sample."""
    (flat,) = [flat for flat in flat_samples(row) if flat.sample.sample_id == sample_id]
    ids: list[int] = flat.token_ids.tolist()
    return ids
