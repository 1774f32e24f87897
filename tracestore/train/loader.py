"""Shards -> rows, in a seeded order, one shard in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracestore.shards.read import Export
from tracestore.shards.row import Row


def shuffled_rows(export: Export, *, seed: int, epoch: int) -> Iterator[tuple[str, Row]]:
    """(shard file, row) of every row once: shards in random order, and inside each its groups.

    The same seed and epoch give the same order. Parts of a group inside a shard stay together, in order.
    Checksums are compared in the first epoch only.

    Raises:
        ShardMissing, ShardCorrupt, OtherSchema: see `tracestore.shards.read`.
    """
    rng = np.random.default_rng([seed, epoch])
    for index in rng.permutation(len(export.manifest.shards)):
        shard = export.manifest.shards[index]
        groups: list[list[Row]] = []
        for row in export.shard_rows(shard, check=epoch == 0):
            if row.part > 0 and groups and groups[-1][0].group_id == row.group_id:
                groups[-1].append(row)
            else:
                groups.append([row])
        for group in rng.permutation(len(groups)):
            for row in groups[group]:
                yield shard.file, row
