"""A row -> preference pairs: what was selected against what was not, on the part in which they differ.

Of each candidate set every selected member is paired with every rejected one, unless both are known to be
equally good (by score, else by the rewards of the candidates): a choice between equals is no preference. A
member is a completion, or an agent that sampled all of it, and all below it, in one sample. The prompt is
what both have in common, so the suffixes begin with the first token that differs; where one member is the
beginning of the other, they share one token less, so that both have a suffix. Tokens that no model sampled
(tool results) stand in a suffix outside its mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa

from tracestore.shards.candidates import is_tie, member_completions, worth
from tracestore.shards.reasons import Reason
from tracestore.shards.row import CandidateSetEntry, MemberEntry, Row
from tracestore.shards.views import flattened
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


@dataclass(frozen=True)
class _Path:
    """The tokens of a member from the root, and which of them it trains."""

    ids: np.ndarray
    mask: np.ndarray
    needs_blobs: bool


def records(row: Row, options: flat.Options, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Every pair of a row's candidate sets.

    Args:
        options: says nothing here: a pair has no advantage and no weight.
        left_out: told the sets and pairs that are in no record, by why.
    """
    for index, entry in enumerate(row.candidate_sets):
        chosen = [place for place, one in enumerate(entry.members) if one.selected]
        rejected = [place for place, one in enumerate(entry.members) if one.selected is False]
        if not chosen or not rejected:
            left_out["sets_without_a_choice"] += 1
        for winner, loser in product(chosen, rejected):
            if is_tie(worth(row, index, winner), worth(row, index, loser)):
                left_out["ties"] += 1
                continue
            pair = _pair(row, entry.members[winner], entry.members[loser], left_out)
            if pair is not None:
                yield _named(row, entry) | pair


def _named(row: Row, entry: CandidateSetEntry) -> dict[str, Any]:
    return {
        "candidate_set_id": entry.candidate_set_id,
        "episode_id": row.episodes[entry.episode].episode_id,
    }


def _pair(row: Row, winner: MemberEntry, loser: MemberEntry, left_out: Counter[str]) -> dict[str, Any] | None:
    chosen, rejected = _path(row, winner), _path(row, loser)
    if chosen is None or rejected is None:
        left_out["pairs_of_no_single_sample"] += 1
        return None
    if chosen.needs_blobs or rejected.needs_blobs:
        left_out["needs_blobs"] += 1
        return None
    shared = _common(chosen.ids, rejected.ids)
    if shared == len(chosen.ids) == len(rejected.ids):
        left_out["pairs_of_equal_tokens"] += 1
        return None
    shared = min(shared, len(chosen.ids) - 1, len(rejected.ids) - 1)
    if not chosen.mask[shared:].any() or not rejected.mask[shared:].any():
        left_out["pairs_that_do_not_train"] += 1
        return None
    return {
        "prompt_ids": chosen.ids[:shared],
        "chosen_ids": chosen.ids[shared:],
        "rejected_ids": rejected.ids[shared:],
        "chosen_mask": chosen.mask[shared:],
        "rejected_mask": rejected.mask[shared:],
        "chosen_score": winner.score,
        "rejected_score": loser.score,
    }


def _path(row: Row, member: MemberEntry) -> _Path | None:
    """None: no sample holds all of the member."""
    own = member_completions(row, member)
    # An answer of no tokens is in no sample, and nothing of a member is missing without it.
    sampled = own & set(row.segments.completion.tolist())
    holds = [index for index, one in enumerate(row.samples) if sampled <= set(one.completions)]
    if not sampled or not holds:
        return None
    sample = flattened(row, holds[0])
    is_own = np.isin(sample.completion, list(sampled))
    end = int(np.flatnonzero(is_own)[-1]) + 1
    mask = (sample.reason == Reason.TRAINED) & is_own
    reads = flat.needs_blobs(flat.blobs_of(row, sample))
    return _Path(ids=sample.token_ids[:end], mask=mask[:end], needs_blobs=reads)


def _common(left: np.ndarray, right: np.ndarray) -> int:
    """Tokens at the beginning that both have."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
