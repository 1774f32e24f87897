"""Graphs of one group -> rows. The pure core of the exporter: no store, no files, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracestore.graph.model import Graph
from tracestore.shards.reasons import Reason
from tracestore.shards.row import PolicyRun, Row, Sample, Segments
from tracestore_exporters.forest import Forest, Node
from tracestore_exporters.header import Header, header
from tracestore_exporters.masks import Masks, usable_logprobs
from tracestore_exporters.spec import Spec
from tracestore_exporters.split import Chain, chains
from tracestore_exporters.too_long import limited, too_long
from tracestore_exporters.units import Unit, units

BYTES_PER_TOKEN = 4 + 4 + 1
"""int32 id, float32 logprob, reason; what `max_row_bytes` counts."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What a row says of its group, and which episodes the graphs are of."""

    project: str
    episode_ids: tuple[str, ...]
    """In parallel with the graphs."""
    group_id: str | None = None
    task_id: str | None = None
    closed_by: str | None = None


def plan_row(graphs: Sequence[Graph], spec: Spec, group: GroupInfo) -> Row:
    """The whole group as one row, however large. See `plan_rows` for a group that may be cut."""
    graphs, group = _by_episode(graphs, group)
    every = units(graphs)
    masks = [Masks(graph, spec) for graph in graphs]
    return _row(graphs, every, masks, header(graphs, group.episode_ids, masks, spec), group, spec)


def plan_rows(graphs: Sequence[Graph], spec: Spec, group: GroupInfo) -> Iterator[Row]:
    """The group as one row, or as parts by episode when its tokens take more than `spec.max_row_bytes`.

    Every part has the full header; a prompt that episodes of two parts share is in both. An episode larger
    than the limit is a part of its own.
    """
    graphs, group = _by_episode(graphs, group)
    every = units(graphs)
    masks = [Masks(graph, spec) for graph in graphs]
    head = header(graphs, group.episode_ids, masks, spec)
    whole = _row(graphs, every, masks, head, group, spec)
    if len(graphs) == 1 or len(whole.token_ids) * BYTES_PER_TOKEN <= spec.max_row_bytes:
        yield whole
        return
    parts = _parts(whole, every, len(graphs), spec.max_row_bytes // BYTES_PER_TOKEN)
    for number, episodes in enumerate(parts):
        own = [unit for unit in every if unit.episode in episodes]
        yield _row(graphs, own, masks, head, group, spec, part=number, num_parts=len(parts))


def _by_episode(graphs: Sequence[Graph], group: GroupInfo) -> tuple[list[Graph], GroupInfo]:
    """Sorted by episode id: a row does not depend on the order in which episodes are listed."""
    pairs = sorted(zip(group.episode_ids, graphs, strict=True), key=lambda pair: pair[0])
    ids = tuple(episode_id for episode_id, _ in pairs)
    info = GroupInfo(
        project=group.project,
        episode_ids=ids,
        group_id=group.group_id,
        task_id=group.task_id,
        closed_by=group.closed_by,
    )
    return [graph for _, graph in pairs], info


def _parts(whole: Row, every: Sequence[Unit], num_episodes: int, max_tokens: int) -> list[set[int]]:
    """Episodes packed into parts in order. Sizes count a shared prompt for each episode that reads it."""
    size = [0] * num_episodes
    counted: list[set[int]] = [set() for _ in range(num_episodes)]
    lengths = whole.segments.length.tolist()
    for sample in whole.samples:
        new = set(sample.segments) - counted[sample.episode]
        counted[sample.episode] |= new
        size[sample.episode] += sum(lengths[segment] for segment in new)
    parts: list[set[int]] = []
    room = 0
    for episode in range(num_episodes):
        if not parts or size[episode] > room:
            parts.append(set())
            room = max_tokens
        parts[-1].add(episode)
        room -= size[episode]
    return parts


def _row(
    graphs: Sequence[Graph],
    every: Sequence[Unit],
    masks: Sequence[Masks],
    head: Header,
    group: GroupInfo,
    spec: Spec,
    *,
    part: int = 0,
    num_parts: int = 1,
) -> Row:
    for unit in every:
        unit.extends, unit.inputs = None, ()
    forest = Forest(every)
    nodes = forest.preorder()
    tokens = _Tokens(nodes, masks, head)
    samples = limited(_samples(chains(every, forest, graphs), nodes, forest, head), spec)
    tokens.exclude(too_long(samples, tokens.segments, spec), Reason.TOO_LONG)
    samples = _owned(samples, tokens)
    forest.take_apart()
    return Row(
        project=group.project,
        group_id=group.group_id,
        task_id=group.task_id,
        part=part,
        num_parts=num_parts,
        closed_by=group.closed_by,
        token_ids=tokens.ids,
        logprobs=tokens.logprobs,
        has_logprob=tokens.has_logprob,
        reason=tokens.reason,
        segments=tokens.segments,
        episodes=head.episodes,
        agents=head.agents,
        calls=head.calls,
        completions=head.completions,
        policy_runs=tuple(tokens.runs),
        samples=samples,
        candidate_sets=head.candidate_sets,
        edits=head.edits,
        rewards=head.rewards,
        blobs=head.blobs,
    )


class _Tokens:
    """The token columns of a row, each made in one go: numpy takes longer to begin than with a completion."""

    def __init__(self, nodes: Sequence[Node], masks: Sequence[Masks], head: Header) -> None:
        self.segments = _segments(nodes, head)
        self.ids = np.concatenate([node.ids for node in nodes]) if nodes else np.zeros(0, np.int32)
        self.ids = self.ids.astype(np.int32, copy=False)
        self.runs: list[PolicyRun] = []
        self.logprobs, self.has_logprob = self._logprobs(nodes)
        self.reason = np.zeros(len(self.ids), dtype=np.uint8)
        self._decide(nodes, masks)

    def exclude(self, which_T: np.ndarray, reason: Reason) -> None:
        """Take tokens that train out of it, for a reason."""
        self.reason[which_T & (self.reason == Reason.TRAINED)] = reason

    def _logprobs(self, nodes: Sequence[Node]) -> tuple[np.ndarray | None, np.ndarray]:
        """Values, and where they stand; float64 when one of the row needs it, None when no token has any."""
        none = np.zeros(int(self.segments.length.max(initial=0)), np.float32)
        pieces: list[np.ndarray] = []
        has_S = np.zeros(len(nodes), dtype=bool)
        nulls: list[int] = []
        for index, (node, start) in enumerate(zip(nodes, self.segments.start.tolist(), strict=True)):
            logprobs = None if node.unit is None else node.unit.body.logprobs
            first, last = node.start - node.base, node.end - node.base
            if logprobs is None:
                pieces.append(none[: last - first])
                continue
            has_S[index] = True
            pieces.append(logprobs.array[first:last])
            nulls += [start + at - first for at in logprobs.nulls if first <= at < last]
        has_T = np.repeat(has_S, self.segments.length)
        if not has_S.any():
            return None, has_T
        has_T[nulls] = False
        values = np.concatenate(pieces)
        usable = usable_logprobs(values, has_T)
        values[~usable] = 0
        return values, usable

    def _decide(self, nodes: Sequence[Node], masks: Sequence[Masks]) -> None:
        """The reasons, and who sampled what."""
        reason_S = np.full(len(nodes), Reason.UNSAMPLED, dtype=np.uint8)
        by_logprob_S = np.zeros(len(nodes), dtype=bool)
        apart: list[tuple[int, Node, Unit]] = []
        known: dict[int, Reason | None] = {}
        for index, (node, start) in enumerate(zip(nodes, self.segments.start.tolist(), strict=True)):
            unit = node.unit
            if unit is None:
                continue
            rules = masks[unit.episode]
            if id(unit) not in known:
                known[id(unit)] = rules.of_unit(unit)
            whole = known[id(unit)]
            reason_S[index] = Reason.TRAINED if whole is None else whole
            if whole is None and rules.asks_logprobs(unit):
                by_logprob_S[index] = rules.needs_logprobs and unit.body.logprobs is not None
            elif whole is None:
                apart.append((start, node, unit))
            self._add_runs(unit, node, start)
        self.reason = np.repeat(reason_S, self.segments.length)
        invalid = np.repeat(by_logprob_S, self.segments.length) & ~self.has_logprob
        self.reason[invalid] = Reason.LOGPROB_INVALID
        for start, node, unit in apart:
            first, last = node.start - node.base, node.end - node.base
            usable = np.zeros(len(unit.ids), dtype=bool)
            usable[first:last] = self.has_logprob[start : start + last - first]
            self.reason[start : start + last - first] = masks[unit.episode].of_tokens(unit, usable)[
                first:last
            ]

    def _add_runs(self, unit: Unit, node: Node, start: int) -> None:
        first, last = node.start - node.base, node.end - node.base
        for run in _runs(unit):
            low, high = max(run.start, first), min(run.start + run.length, last)
            if low < high:
                self.runs.append(PolicyRun(start + low - first, high - low, run.name, run.version))


def _runs(unit: Unit) -> list[PolicyRun]:
    """Who sampled which tokens of a completion, counted inside it."""
    length = len(unit.ids)
    versions = unit.body.versions
    if versions:
        ends = [run.start for run in versions[1:]] + [length]
        return [
            PolicyRun(run.start, end - run.start, run.name, run.version)
            for run, end in zip(versions, ends, strict=True)
        ]
    policy = unit.call.policy
    return [] if policy is None else [PolicyRun(0, length, policy.name, policy.version)]


def _segments(nodes: Sequence[Node], head: Header) -> Segments:
    index = {id(node): number for number, node in enumerate(nodes)}
    length = np.asarray([node.end - node.start for node in nodes], dtype=np.int32)
    start = np.zeros(len(nodes), dtype=np.int64)
    np.cumsum(length[:-1], out=start[1:])
    return Segments(
        parent=np.asarray([index.get(id(node.parent), -1) for node in nodes], dtype=np.int32),
        start=start,
        length=length,
        completion=np.asarray(
            [-1 if node.unit is None else head.completion_at[node.unit.place] for node in nodes],
            dtype=np.int32,
        ),
    )


def _samples(
    found: Sequence[Chain], nodes: Sequence[Node], forest: Forest, head: Header
) -> tuple[Sample, ...]:
    """Samples in depth-first order of their ends."""
    index = {id(node): number for number, node in enumerate(nodes)}
    ends = [forest.end_of[chain.units[-1].place] for chain in found]
    samples = []
    for at in sorted(range(len(found)), key=lambda i: index[id(ends[i])]):
        chain, end = found[at], ends[at]
        leaf = chain.units[-1]
        completions = tuple(head.completion_at[unit.place] for unit in chain.units)
        samples.append(
            Sample(
                sample_id=f"{leaf.call.id}:{leaf.key[1]}",
                episode=leaf.episode,
                agent=head.agent_at[leaf.agent],
                segments=tuple(index[id(node)] for node in end.up())[::-1],
                completions=completions,
                cause=chain.cause,
                num_tokens=end.end,
                num_owned=0,
            )
        )
    return tuple(samples)


def _owned(samples: Sequence[Sample], tokens: _Tokens) -> tuple[Sample, ...]:
    """The samples with what each owns: the first that trains and holds a completion owns its tokens."""
    trained = _trained_by_completion(tokens)
    owned: set[int] = set()
    counted = []
    for sample in samples:
        own = set() if sample.reason else set(sample.completions) - owned
        owned |= own
        counted.append(replace(sample, num_owned=sum(trained.get(one, 0) for one in own)))
    return tuple(counted)


def _trained_by_completion(tokens: _Tokens) -> dict[int, int]:
    segments = tokens.segments
    if len(segments) == 0:
        return {}
    counts = np.add.reduceat((tokens.reason == Reason.TRAINED).astype(np.int64), segments.start)
    found: dict[int, int] = {}
    for completion, count in zip(segments.completion.tolist(), counts.tolist(), strict=True):
        if completion >= 0:
            found[completion] = found.get(completion, 0) + count
    return found
