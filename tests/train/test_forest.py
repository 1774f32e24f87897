from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.train.rows import episodes_of_one_call, random_row, row
from tracestore.shards.reasons import Reason
from tracestore.shards.views import BrokenForest, flattened
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, combine
from tracestore.train.forest import (
    MissingLogprobs,
    forest,
    pack,
    recorded_targets,
    trainable_targets,
    trained_targets,
    unit,
)

NESTED = row(
    [
        (-1, [10, 11, 12], -1),
        (0, [13, 14], 0),
        (1, [15], -1),
        (2, [16, 17], 1),
        (0, [18, 19], 2),
        (-1, [20, 21], 3),
    ],
    [(0, [0, 1, 2, 3], [0, 1]), (1, [0, 4], [2]), (2, [5], [3])],
    rewards=[1, 0, 0],
)
#             tokens 0 1 2   3 4   5   6 7   8 9   10 11


def test_positions_count_the_tokens_before_on_the_path() -> None:
    assert forest(NESTED).position_T.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 3, 4, 0, 1]


def test_the_predecessor_of_a_branchs_first_token_is_its_parents_last() -> None:
    assert forest(NESTED).previous_T.tolist() == [-1, 0, 1, 2, 3, 4, 5, 6, 2, 8, -1, 10]


def test_a_sampled_root_has_no_target_at_its_first_token() -> None:
    assert recorded_targets(forest(NESTED)).token_N.tolist() == [3, 4, 6, 7, 8, 9, 11]


def test_a_pack_follows_every_path_as_the_flattened_sample_reads_it() -> None:
    for seed in range(20):
        made = random_row(seed, vocab=50)
        grown = forest(made)
        targets = trainable_targets(grown)
        if not len(targets):
            continue
        packed = pack([unit(grown, targets)])
        wanted = {
            (flat.sample.sample_id, int(token)): flat.token_ids[:place].tolist()
            for index in range(len(made.samples))
            for flat in [flattened(made, index)]
            for place, token in enumerate(flat.token_index)
        }
        ids, positions = packed.input_ids_T.tolist(), packed.position_ids_T.tolist()
        for n, token in enumerate(targets.token_N.tolist()):
            place = int(packed.logit_P[packed.which_N[n]])
            before = _read_back(grown, packed_tokens(grown, targets), place)
            assert [ids[at] for at in before] in [v for (_, t), v in wanted.items() if t == token]
            assert [positions[at] for at in before] == list(range(len(before)))
            assert int(packed.target_N[n]) == made.token_ids[token]


def packed_tokens(grown, targets):  # type: ignore[no-untyped-def]
    """Row tokens of a pack, in order."""
    one = unit(grown, targets)
    start = grown.row.segments.start[one.segment_U]
    return [t for s, n in zip(start.tolist(), one.length_U.tolist(), strict=True) for t in range(s, s + n)]


def _read_back(grown, tokens, place):  # type: ignore[no-untyped-def]
    """Places in the pack of a token and all before it on its path."""
    at, places = tokens[place], []
    while at >= 0:
        places.append(tokens.index(at))
        at = int(grown.previous_T[at])
    return places[::-1]


def test_tokens_that_no_target_needs_are_not_computed() -> None:
    grown = forest(NESTED)
    targets = recorded_targets(grown)
    # Target 7 needs 0-6, target 9 needs 8, target 11 needs 10: the last token of each leaf is no input.
    assert packed_tokens(grown, targets) == [0, 1, 2, 3, 4, 5, 6, 8, 10]
    first = targets.where(targets.token_N <= 4)
    assert packed_tokens(grown, first) == [0, 1, 2, 3]


def test_siblings_share_the_logits_of_their_predecessor() -> None:
    packed = pack([unit(forest(NESTED), recorded_targets(forest(NESTED)))])
    assert packed.logit_P.tolist() == [2, 3, 5, 6, 7, 8]  # tokens 3 and 8 both follow token 2
    assert packed.which_N.tolist() == [0, 1, 2, 3, 0, 4, 5]


def test_units_of_several_rows_lie_side_by_side() -> None:
    grown = forest(NESTED)
    one = unit(grown, recorded_targets(grown))
    packed = pack([one, one])
    assert packed.num_tokens == 2 * one.num_tokens
    assert packed.logit_P.tolist() == [2, 3, 5, 6, 7, 8, 11, 12, 14, 15, 16, 17]


def test_zero_advantage_tokens_are_targets_and_ungraded_ones_are_not() -> None:
    made = episodes_of_one_call([1, 1, None])
    credit = combine(made, advantages(made, rule="shared", context=Context()))
    targets = trained_targets(forest(made), credit)
    assert targets.token_N.tolist() == [2, 3, 4, 5]
    assert targets.plus_N.tolist() == targets.minus_N.tolist() == [0.0] * 4


def test_an_excluded_token_is_no_target() -> None:
    made = episodes_of_one_call([1, 0])
    reason = made.reason.copy()
    reason[3] = Reason.STALE
    made = replace(made, reason=reason)
    credit = combine(made, advantages(made, rule="shared", context=Context()))
    assert trained_targets(forest(made), credit).token_N.tolist() == [2, 4, 5]


@pytest.mark.parametrize("value", [None, -np.inf, np.nan])
def test_a_trained_token_without_a_finite_logprob_is_an_error_that_names_its_call(
    value: float | None,
) -> None:
    made = episodes_of_one_call([1, 0])
    logprobs, has = made.logprobs.copy(), made.has_logprob.copy()
    logprobs[4], has[4] = (0.0, False) if value is None else (value, True)
    made = replace(made, logprobs=logprobs, has_logprob=has)
    credit = combine(made, advantages(made, rule="shared", context=Context()))
    with pytest.raises(MissingLogprobs, match="call-1"):
        trained_targets(forest(made), credit)
    recomputed = np.full(6, -1.0)
    assert len(trained_targets(forest(made), credit, old_logprob_T=recomputed)) == 4


def test_segments_out_of_order_are_an_error() -> None:
    made = row([(-1, [1], -1), (0, [2], 0), (0, [3], 1), (1, [4], 2)], [])
    with pytest.raises(BrokenForest):
        forest(made)


def test_processed_logprobs_are_compared_at_their_temperature_and_raw_ones_at_one() -> None:
    made = episodes_of_one_call(
        [1, 0, 0, 0],
        call={
            0: {"logprobs_are": "processed", "temperature": 0.7},
            1: {"logprobs_are": "raw", "temperature": 0.7, "top_p": 0.9},
            2: {"logprobs_are": "processed", "temperature": 0.7, "top_p": 0.9},
            3: {"logprobs_are": "processed", "temperature": None},
        },
    )
    grown = forest(made)
    assert grown.temperature_T.tolist() == [1, 1, 0.7, 0.7, 1, 1, 0.7, 0.7, 1, 1]
    assert grown.is_comparable_T[2:].tolist() == [True, True, True, True, False, False, False, False]
