"""Rows -> the conservation table: sampled = trained + excluded, each exclusion with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracestore.graph.model import Graph, Rendering
from tracestore.shards.manifest import Conservation
from tracestore.shards.reasons import Reason, label_of
from tracestore.shards.row import Row


@dataclass
class Tally:
    """Counts of some groups; tallies add up in any order."""

    sampled: int = 0
    trained: int = 0
    excluded: Counter[str] = field(default_factory=Counter)
    completions: int = 0
    calls_without_ids: int = 0
    tokens_without_ids: int | None = None
    stripped: int = 0
    rendered: int = 0
    not_rendered: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    """The first example of each why in `not_rendered` that has one."""

    def __iadd__(self, other: Tally) -> Tally:
        self.sampled += other.sampled
        self.trained += other.trained
        self.excluded += other.excluded
        self.completions += other.completions
        self.calls_without_ids += other.calls_without_ids
        if other.tokens_without_ids is not None:
            self.tokens_without_ids = (self.tokens_without_ids or 0) + other.tokens_without_ids
        self.stripped += other.stripped
        self.rendered += other.rendered
        self.not_rendered += other.not_rendered
        self.left_out += other.left_out
        self.details = other.details | self.details
        return self

    def conservation(self) -> Conservation:
        """The table. A broken sum is a fault of the exporter, not of its input."""
        table = Conservation(
            sampled_tokens=self.sampled,
            trained_tokens=self.trained,
            excluded=dict(sorted(self.excluded.items())),
            completions=self.completions,
            no_token_ids_calls=self.calls_without_ids,
            no_token_ids_tokens=self.tokens_without_ids,
            stripped_stop_tokens=self.stripped,
            rendered_completions=self.rendered,
            not_rendered=dict(sorted(self.not_rendered.items())),
            left_out=dict(sorted(self.left_out.items())),
        )
        assert table.holds, f"{self.sampled} sampled tokens, {self.trained} trained, {self.excluded}"
        return table


def recorded(graphs: Iterable[Graph]) -> Tally:
    """What was sampled, straight from the recorded ids; nothing of it is placed yet."""
    tally = Tally()
    for graph in graphs:
        for completion in graph.completions.values():
            if completion.token_ids is not None:
                tally.completions += 1
                tally.sampled += len(completion.token_ids)
                tally.stripped += completion.stop_token_stripped is True
        for call_id, call in graph.calls.items():
            ids = [graph.completions[key].token_ids for key in graph.completions_of(call_id)]
            if not any(one is None for one in ids):
                continue
            tally.calls_without_ids += 1
            usage = None if call.usage is None else call.usage.completion_tokens
            if usage is not None and all(one is None for one in ids):
                tally.tokens_without_ids = (tally.tokens_without_ids or 0) + usage
        if graph.rendering is not None:
            _count_rendering(tally, graph, graph.rendering)
    return tally


def _count_rendering(tally: Tally, graph: Graph, rendering: Rendering) -> None:
    tally.rendered += sum(
        completion.token_ids is not None and key[0] in rendering.calls
        for key, completion in graph.completions.items()
    )
    for problem in rendering.not_rendered.values():
        tally.not_rendered[problem.why] += 1
        if problem.detail is not None:
            tally.details.setdefault(problem.why, problem.detail)
    tally.left_out.update(what for left_out in rendering.left_out.values() for what in left_out)


def exported(graphs: Sequence[Graph], rows: Sequence[Row]) -> Tally:
    """A closed group: its sampled tokens, and what its rows say of them."""
    tally = recorded(graphs)
    counts = np.zeros(256, dtype=np.int64)
    for row in rows:
        sampled = np.repeat(row.segments.completion >= 0, row.segments.length)
        counts += np.bincount(row.reason[sampled], minlength=256)
    tally.trained = int(counts[Reason.TRAINED])
    for reason in np.flatnonzero(counts).tolist():
        if reason != Reason.TRAINED:
            tally.excluded[label_of(reason)] += int(counts[reason])
    withheld = num_withheld(graphs)
    if withheld:
        tally.excluded[Reason.REDACTED.label] += withheld
    # A completion whose call never came has no place in a row: what it answered is unknown.
    stray = sum(
        len(completion.token_ids)
        for graph in graphs
        for (call_id, _), completion in graph.completions.items()
        if call_id not in graph.calls and completion.token_ids is not None
    )
    if stray:
        tally.excluded[Reason.CALL_INCOMPLETE.label] += stray
    return tally


def num_withheld(graphs: Iterable[Graph]) -> int:
    """Sampled tokens that are in no row, since a rule of the spec took them out."""
    return sum(len(graph.completions[key].token_ids or ()) for graph in graphs for key in graph.withheld)


def still_open(graphs: Iterable[Graph]) -> Tally:
    """An open group: everything waits."""
    tally = recorded(graphs)
    if tally.sampled:
        tally.excluded[Reason.GROUP_OPEN.label] += tally.sampled
    return tally


def rendering_lines(table: Conservation) -> list[tuple[str, int]]:
    """What a chat template did, for people: (what, completions); () where none took part."""
    if not table.rendered_completions and not table.not_rendered:
        return []
    lines = [("rendered", table.rendered_completions)]
    lines += [(f"not rendered: {why}", count) for why, count in _largest_first(table.not_rendered)]
    return lines + [(f"rendered without: {what}", count) for what, count in _largest_first(table.left_out)]


def _largest_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def table_lines(table: Conservation) -> list[tuple[str, int, str]]:
    """The table for people: (what, tokens, share of sampled), the largest exclusion first."""
    lines = [("sampled", table.sampled_tokens), ("trained", table.trained_tokens)]
    lines += [(f"excluded: {label}", tokens) for label, tokens in _largest_first(table.excluded)]
    total = table.sampled_tokens
    return [(what, tokens, f"{100 * tokens / total:.1f} %" if total else "") for what, tokens in lines]
