"""A row -> preference pairs: what was selected against what was not, on the part in which they differ.

Of each candidate set every selected member is paired with every rejected one, unless both are known to be
equally good (by score, else by the rewards of the candidates): a choice between equals is no preference. A
member is a completion, or an agent that sampled all of it, and all below it, in one sample. The prompt is
what both have in common, so the suffixes begin with the first token that differs; where one member is the
beginning of the other, they share one token less, so that both have a suffix. Tokens that no model sampled
(tool results) stand in a suffix outside its mask.
"""

# N tokens from the root to a member's end

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from tracestore.shards.candidates import is_tie, member_completions, worth
from tracestore.shards.reasons import Reason
from tracestore.shards.row import CandidateSetEntry, MemberEntry, Row
from tracestore.shards.views import FlatSample, flattened


@dataclass(frozen=True, eq=False)
class Side:
    """A member of a pair, from the root to its end."""

    member: MemberEntry
    sample: FlatSample
    """A sample that holds it; it may go on behind it."""
    length: int
    """Tokens of the sample up to the member's end."""
    mask: np.ndarray
    """bool [N], the tokens that the member trains."""

    @property
    def ids(self) -> np.ndarray:
        """int32 [N]."""
        return self.sample.token_ids[: self.length]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two members of a candidate set."""

    entry: CandidateSetEntry
    chosen: Side
    rejected: Side
    shared: int
    """Tokens at the beginning that count as the prompt of both."""


def pairs(row: Row, left_out: Counter[str]) -> Iterator[Pair]:
    """Every pair of a row's candidate sets that has a suffix to train on both sides.

    Args:
        left_out: told the sets and pairs that are not given, by why: sets_without_a_choice,
            ties, pairs_of_no_single_sample, pairs_of_equal_tokens, pairs_that_do_not_train.
    """
    own = {sample.episode for sample in row.samples}
    for index, entry in enumerate(row.candidate_sets):
        if row.num_parts > 1 and entry.episode not in own:
            continue  # every part has the whole header; the set's tokens are in another part
        chosen = [place for place, one in enumerate(entry.members) if one.selected]
        rejected = [place for place, one in enumerate(entry.members) if one.selected is False]
        if not chosen or not rejected:
            left_out["sets_without_a_choice"] += 1
        for winner, loser in product(chosen, rejected):
            if is_tie(worth(row, index, winner), worth(row, index, loser)):
                left_out["ties"] += 1
                continue
            pair = _pair(row, entry, entry.members[winner], entry.members[loser], left_out)
            if pair is not None:
                yield pair


def _pair(
    row: Row, entry: CandidateSetEntry, winner: MemberEntry, loser: MemberEntry, left_out: Counter[str]
) -> Pair | None:
    chosen, rejected = _side(row, winner), _side(row, loser)
    if chosen is None or rejected is None:
        left_out["pairs_of_no_single_sample"] += 1
        return None
    shared = _common(chosen.ids, rejected.ids)
    if shared == chosen.length == rejected.length:
        left_out["pairs_of_equal_tokens"] += 1
        return None
    shared = min(shared, chosen.length - 1, rejected.length - 1)
    if not chosen.mask[shared:].any() or not rejected.mask[shared:].any():
        left_out["pairs_that_do_not_train"] += 1
        return None
    return Pair(entry, chosen, rejected, shared)


def _side(row: Row, member: MemberEntry) -> Side | None:
    """None: no sample holds all of the member."""
    own = member_completions(row, member)
    # An answer of no tokens is in no sample, and nothing of a member is missing without it.
    sampled = own & set(row.segments.completion.tolist())
    holds = [index for index, one in enumerate(row.samples) if sampled <= set(one.completions)]
    if not sampled or not holds:
        return None
    sample = flattened(row, holds[0])
    is_own = np.isin(sample.completion, list(sampled))
    length = int(np.flatnonzero(is_own)[-1]) + 1
    mask = (sample.reason == Reason.TRAINED) & is_own
    return Side(member, sample, length, mask[:length])


def _common(left: np.ndarray, right: np.ndarray) -> int:
    """Tokens at the beginning that both have."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
