"""Which completion was trained in which sample, shard and optimizer step, for a sink of the caller's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tracestore.train.forest import Forest, Unit


@dataclass(frozen=True)
class Consumed:
    """One completion in one optimizer step; the fields of the wire's consumption event."""

    id: str
    """Made from (run, step, call, completion): telling a sink twice changes nothing."""
    episode_id: str
    call_id: str
    completion: int
    """Index among the call's completions."""
    run: str
    step: int
    export_hash: str
    """Hash of the manifest."""
    shard: str
    sample_id: str
    """The sample that owns the completion's tokens."""
    tokens: int
    """Trained tokens of the completion in this step."""


Sink: TypeAlias = Callable[[Sequence[Consumed]], None]


def consumed(units: Iterable[Unit], *, run: str, step: int, export_hash: str) -> list[Consumed]:
    """What a step trained, one record per completion, in order of first appearance."""
    tokens: dict[tuple[int, int], int] = {}
    forests: dict[int, Forest] = {}
    for one in units:
        key = id(one.forest.row)
        forests[key] = one.forest
        found, counts = np.unique(one.forest.completion_T[one.targets.token_N], return_counts=True)
        for completion, count in zip(found.tolist(), counts.tolist(), strict=True):
            tokens[key, completion] = tokens.get((key, completion), 0) + count
    return [
        _record(forests[key], completion, count, run=run, step=step, export_hash=export_hash)
        for (key, completion), count in tokens.items()
    ]


def _record(forest: Forest, index: int, tokens: int, *, run: str, step: int, export_hash: str) -> Consumed:
    row = forest.row
    completion = row.completions[index]
    call = row.calls[completion.call]
    owner = int(forest.owner_S[row.segments.completion == index][0])
    name = "\x1f".join((run, str(step), call.call_id, str(completion.index)))
    return Consumed(
        id=hashlib.sha256(name.encode()).hexdigest()[:32],
        episode_id=row.episodes[call.episode].episode_id,
        call_id=call.call_id,
        completion=completion.index,
        run=run,
        step=step,
        export_hash=export_hash,
        shard=forest.shard,
        sample_id=row.samples[owner].sample_id,
        tokens=tokens,
    )
