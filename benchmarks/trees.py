"""Token trees of known shape as rows of a shard: what training is timed on.

A shape is a list of (parent segment or -1, tokens). All but the roots are half read, half sampled: a tool's
answer and then the policy's; a segment of one token is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracestore.shards.reasons import Reason
from tracestore.shards.row import (
    AgentEntry,
    CallEntry,
    CompletionEntry,
    EpisodeEntry,
    Row,
    Sample,
    Segments,
)
from tracestore.train.credit.base import Advantages

Shape = Sequence[tuple[int, int]]


def _nested() -> Shape:
    """A trunk with three rejected plans at each of four decisions."""
    made, trunk = [(-1, 1024)], 0
    for _ in range(4):
        made += [(trunk, 128)] * 3
        made.append((trunk, 512))
        trunk = len(made) - 1
    return made


def _per_call() -> Shape:
    """Twelve calls of one agent, each a sample of its own: every prefix is one."""
    made, trunk = [(-1, 1536)], 0
    for _ in range(11):
        made.append((trunk, 1))
        made.append((trunk, 450))
        trunk = len(made) - 1
    return made


SHAPES: Mapping[str, Shape] = {
    "plans4": [(-1, 2048), *[(0, 256)] * 4],
    "nested": _nested(),
    "subagents": [(-1, 1536), (0, 2048), (0, 2048), (-1, 768), (3, 1024), (3, 1024), (3, 1024)],
    "compaction": [(-1, 1536), *[(0, 3072)] * 3],
    "rollouts16": [(-1, 1024), *[(0, 512)] * 16],
    "per_call": _per_call(),
}
"""Four plans on a prefix of 2,048; thirteen leaves of nested plans; two windows and three subagents with a
prompt each shares; three windows after a compaction; sixteen rollouts of a task; one sample a call."""


@dataclass(frozen=True)
class Timed:
    """A row, and what each of its samples is worth."""

    row: Row
    advantages: Advantages

    @property
    def num_sample_tokens(self) -> int:
        """Tokens of all samples, a shared one as often as it is shared."""
        return sum(sample.num_tokens for sample in self.row.samples)


def shaped(shape: Shape, *, vocab: int, seed: int = 0, shrink: int = 1) -> Timed:
    """The tree with random tokens and an advantage of either sign for each leaf.

    Args:
        shrink: divides the lengths of the segments.
    """
    rng = np.random.default_rng(seed)
    segments: list[tuple[int, int, bool]] = []  # parent, tokens, sampled
    last_of: list[int] = []
    for parent, full in shape:
        tokens = max(full // shrink, 1)
        above = last_of[parent] if parent >= 0 else -1
        if parent >= 0 and tokens > 1:
            segments.append((above, tokens // 2, False))
            above, tokens = len(segments) - 1, tokens - tokens // 2
        segments.append((above, tokens, parent >= 0))
        last_of.append(len(segments) - 1)
    return _timed(*_depth_first(segments), vocab=vocab, rng=rng)


def _depth_first(segments: Sequence[tuple[int, int, bool]]) -> tuple[list[int], list[int], list[bool]]:
    children: dict[int, list[int]] = {}
    for index, (parent, _, _) in enumerate(segments):
        children.setdefault(parent, []).append(index)
    order: list[int] = []
    waiting = children[-1][::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1], [])[::-1]
    place = {index: number for number, index in enumerate(order)} | {-1: -1}
    return (
        [place[segments[index][0]] for index in order],
        [segments[index][1] for index in order],
        [segments[index][2] for index in order],
    )


def _timed(
    parents: list[int], lengths: list[int], sampled: list[bool], *, vocab: int, rng: np.random.Generator
) -> Timed:
    is_sampled_S = np.asarray(sampled)
    completion_S = np.where(is_sampled_S, np.cumsum(is_sampled_S) - 1, -1).astype(np.int32)
    length_S = np.asarray(lengths, dtype=np.int32)
    sampled_T = np.repeat(is_sampled_S, length_S)
    num_tokens, num_completions = int(length_S.sum()), int(is_sampled_S.sum())
    samples = tuple(
        Sample(
            sample_id=str(leaf),
            episode=0,
            agent=0,
            segments=tuple(path),
            completions=tuple(int(completion_S[s]) for s in path if sampled[s]),
            cause="root",
            num_tokens=int(length_S[path].sum()),
            num_owned=0,
        )
        for leaf, path in _paths(parents)
    )
    row = Row(
        project="bench",
        group_id="g",
        task_id=None,
        part=0,
        num_parts=1,
        closed_by="event",
        token_ids=rng.integers(0, vocab, num_tokens).astype(np.int32),
        logprobs=np.zeros(num_tokens),
        has_logprob=sampled_T,
        reason=np.where(sampled_T, Reason.TRAINED, Reason.UNSAMPLED).astype(np.uint8),
        segments=Segments(
            parent=np.asarray(parents, dtype=np.int32),
            start=(np.cumsum(length_S) - length_S).astype(np.int64),
            length=length_S,
            completion=completion_S,
        ),
        episodes=(EpisodeEntry("e", "ok", None, None, None, 0, in_statistics=True),),
        agents=(_AGENT,),
        calls=tuple(_call(index) for index in range(num_completions)),
        completions=tuple(
            CompletionEntry(index, 0, "stop", None, None, int(length_S[completion_S == index].sum()))
            for index in range(num_completions)
        ),
        policy_runs=(),
        samples=samples,
    )
    values = {
        (index, completion): advantage
        for index, advantage in enumerate(rng.normal(size=len(samples)).tolist())
        for completion in samples[index].completions
    }
    return Timed(row, Advantages(rule="random", values=values))


def _paths(parents: Sequence[int]) -> list[tuple[int, list[int]]]:
    """(leaf, path from its root) of every leaf, in order."""
    found = []
    for leaf in sorted(set(range(len(parents))) - set(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        found.append((leaf, path[::-1]))
    return found


def with_logprobs(timed: Timed, logprob_T: np.ndarray) -> Timed:
    """The same row as sampled by a policy that gave these logprobs, float64 [T]."""
    return replace(timed, row=replace(timed.row, logprobs=np.nan_to_num(logprob_T)))


_AGENT = AgentEntry(
    agent_id="a",
    episode=0,
    parent=None,
    role="main",
    depth=0,
    stage=None,
    model=None,
    checkpoint=None,
    trainable=True,
    score=None,
    status=None,
    spawned_by_call=None,
    spawned_by_completion=None,
    spawned_by_tool_call_id=None,
    finding_used=None,
)


def _call(index: int) -> CallEntry:
    return CallEntry(
        call_id=str(index),
        episode=0,
        agent=0,
        ordinal=index,
        purpose="act",
        model=None,
        policy_name=None,
        policy_version=None,
        status="ok",
        logprobs_are="raw",
        temperature=1.0,
        top_p=None,
        top_k=None,
        params=None,
        parent_completion=None,
        link="none",
    )
