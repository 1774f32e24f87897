"""Preference pairs as records: a prompt, a chosen and a rejected suffix. See `tracestore.shards.pairs`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from tracestore.shards.pairs import Pair, pairs
from tracestore.shards.row import Row
from tracestore_exporters import flat

_IDS = pa.list_(pa.field("element", pa.int32()))
_MASK = pa.list_(pa.field("element", pa.bool_()))
SCHEMA = pa.schema(
    [
        pa.field("candidate_set_id", pa.string()),
        pa.field("episode_id", pa.string()),
        pa.field("prompt_ids", _IDS),
        pa.field("chosen_ids", _IDS),
        pa.field("rejected_ids", _IDS),
        pa.field("chosen_mask", _MASK),
        pa.field("rejected_mask", _MASK),
        pa.field("chosen_score", pa.float64()),
        pa.field("rejected_score", pa.float64()),
    ]
)


def records(row: Row, options: flat.Options, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Every pair of a row's candidate sets.

    Args:
        options: says nothing here: a pair has no advantage and no weight.
        left_out: told the sets and pairs that are in no record, by why: `needs_blobs`, and what
            `tracestore.shards.pairs.pairs` says.
    """
    for pair in pairs(row, left_out):
        if any(flat.needs_blobs(flat.blobs_of(row, side.sample)) for side in (pair.chosen, pair.rejected)):
            left_out["needs_blobs"] += 1
        else:
            yield _record(row, pair)


def _record(row: Row, pair: Pair) -> dict[str, Any]:
    shared, chosen, rejected = pair.shared, pair.chosen, pair.rejected
    return {
        "candidate_set_id": pair.entry.candidate_set_id,
        "episode_id": row.episodes[pair.entry.episode].episode_id,
        "prompt_ids": chosen.ids[:shared],
        "chosen_ids": chosen.ids[shared:],
        "rejected_ids": rejected.ids[shared:],
        "chosen_mask": chosen.mask[shared:],
        "rejected_mask": rejected.mask[shared:],
        "chosen_score": chosen.member.score,
        "rejected_score": rejected.member.score,
    }
