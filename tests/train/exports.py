"""Small exports on disk, written by the shard writer itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracestore.shards.manifest import Conservation, Manifest, write_manifest
from tracestore.shards.read import Export, open_export
from tracestore.shards.row import Row
from tracestore.shards.schema import schema_hash
from tracestore.shards.write import write_shard


def export_of(rows: Sequence[Row], folder: Path, *, rows_per_shard: int = 3) -> Export:
    """An export that holds `rows`, in order."""
    folder.mkdir(parents=True)
    shards = tuple(
        write_shard(folder / f"shard-{first:05}.arrow", rows[first : first + rows_per_shard])
        for first in range(0, len(rows), rows_per_shard)
    )
    sampled = sum(int(row.has_logprob.sum()) for row in rows)
    trained = sum(row.num_trained for row in rows)
    write_manifest(
        folder,
        Manifest(
            schema_hash=schema_hash(),
            project="default",
            snapshot=1,
            spec={},
            spec_hash="",
            libraries={},
            shards=shards,
            groups=len(rows),
            rows=len(rows),
            samples=sum(len(row.samples) for row in rows),
            causes={},
            conservation=Conservation(
                sampled_tokens=sampled,
                trained_tokens=trained,
                excluded={"no_target": sampled - trained} if sampled > trained else {},
                completions=sum(len(row.completions) for row in rows),
                no_token_ids_calls=0,
                no_token_ids_tokens=None,
            ),
        ),
    )
    return open_export(folder)
