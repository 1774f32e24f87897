from __future__ import annotations

import numpy as np
import pytest

from tests.train.rows import random_row, row
from tracestore.train.forest import Forest, Unit, forest, trainable_targets, unit
from tracestore.train.plan import Cost, Placing, SampleTooLong, chains, planned, spread, step, units


def grown(*, leaves: int, prefix: int = 6, branch: int = 4) -> Forest:
    """One unsampled prefix under `leaves` sampled branches; the last token of each is no input."""
    return forest(
        row(
            [(-1, list(range(prefix)), -1), *((0, list(range(branch)), i) for i in range(leaves))],
            [(i, [0, i + 1], [i]) for i in range(leaves)],
        )
    )


def tokens_of(some: list[Unit]) -> list[int]:
    return sorted(int(t) for one in some for t in one.targets.token_N)


def test_a_tree_that_fits_stays_whole() -> None:
    tree = grown(leaves=4)
    [one] = units(tree, trainable_targets(tree), max_tokens=6 + 4 * 3)
    assert one.num_tokens == 18


def test_a_tree_that_does_not_fit_is_cut_between_branches_and_its_prefix_repeated() -> None:
    tree = grown(leaves=4)
    cut = list(units(tree, trainable_targets(tree), max_tokens=6 + 2 * 3))
    assert [one.num_tokens for one in cut] == [12, 12]
    assert [one.segment_U.tolist() for one in cut] == [[0, 1, 2], [0, 3, 4]]


def test_every_target_is_in_exactly_one_unit_however_the_forest_is_cut() -> None:
    for seed in range(30):
        tree = forest(random_row(seed, vocab=50))
        targets = trainable_targets(tree)
        if not len(targets):
            continue
        longest = int(tree.position_T.max()) + 1
        for max_tokens in (longest, longest + 5, 10_000):
            cut = list(units(tree, targets, max_tokens=max_tokens))
            assert tokens_of(cut) == targets.token_N.tolist()
            assert all(0 < one.num_tokens <= max_tokens for one in cut)


def test_chains_are_single_paths_that_hold_every_target_once() -> None:
    for seed in range(30):
        tree = forest(random_row(seed, vocab=50))
        targets = trainable_targets(tree)
        if not len(targets):
            continue
        paths = list(chains(unit(tree, targets)))
        assert tokens_of(paths) == targets.token_N.tolist()
        for one in paths:
            parents = tree.row.segments.parent[one.segment_U]
            assert parents.tolist() == [-1, *one.segment_U[:-1].tolist()]


def test_a_path_longer_than_the_limit_is_an_error_that_says_how_long() -> None:
    tree = grown(leaves=2)
    with pytest.raises(SampleTooLong, match="tokens=9, max_tokens=8"):
        list(units(tree, trainable_targets(tree), max_tokens=8))


def test_a_step_counts_its_targets_and_what_it_computes() -> None:
    work = [(tree, trainable_targets(tree)) for tree in (grown(leaves=2), grown(leaves=1))]
    only = planned(work, micro_batch_tokens=12)
    # trees of 6 + 2 * 3 = 12 and 6 + 3 = 9 tokens
    assert (only.num_tokens, only.denominator) == (21, 8 + 4)
    assert [len(batch) for batch in only.micro_batches] == [1, 1]


def test_micro_batches_are_filled_first_fit() -> None:
    some = [
        next(units(tree, trainable_targets(tree), max_tokens=100))
        for tree in (grown(leaves=2), grown(leaves=1), grown(leaves=1), grown(leaves=2))
    ]
    planned = step(some, micro_batch_tokens=21)
    # sizes 12, 9, 9, 12: the second joins the first, the fourth joins the third
    assert [[one.num_tokens for one in batch] for batch in planned.micro_batches] == [[12, 9], [9, 12]]


def prompt_of_two_calls() -> Forest:
    """A prompt of 20 tokens under two completions of 5: 20 + 2 * 4 = 28 computed tokens."""
    return grown(leaves=2, prefix=20, branch=5)


@pytest.mark.parametrize("micro_batch_tokens", [24, 26, 28, 40])
def test_micro_batches_are_cut_inside_a_step_whose_denominator_stays_whole(micro_batch_tokens: int) -> None:
    tree = prompt_of_two_calls()
    work = [(tree, trainable_targets(tree))]
    only = planned(work, micro_batch_tokens=micro_batch_tokens)
    assert only.denominator == 5 + 5
    units = [one for batch in only.micro_batches for one in batch]
    assert [one.num_tokens for one in units] == ([28] if micro_batch_tokens >= 28 else [24, 24])
    assert tokens_of(units) == work[0][1].token_N.tolist()


def test_no_micro_batch_size_changes_what_a_step_trains() -> None:
    trees = [forest(random_row(seed, vocab=50)) for seed in range(20)]
    work = [(tree, trainable_targets(tree)) for tree in trees]
    longest = max(int(tree.position_T.max()) + 1 for tree in trees)

    def trained(micro_batch_tokens: int) -> tuple[int, list[tuple[int, int]]]:
        one = planned(work, micro_batch_tokens=micro_batch_tokens)
        units = [unit for batch in one.micro_batches for unit in batch]
        where = {id(tree): index for index, tree in enumerate(trees)}
        return one.denominator, sorted(
            (where[id(unit.forest)], token) for unit in units for token in unit.targets.token_N.tolist()
        )

    whole = trained(10_000)
    assert whole[0] == len(set(whole[1])) == len(whole[1])
    assert trained(longest) == trained(longest + 4) == whole


def test_a_path_longer_than_a_micro_batch_is_an_error() -> None:
    tree = prompt_of_two_calls()
    with pytest.raises(SampleTooLong, match="tokens=24, max_tokens=23"):
        planned([(tree, trainable_targets(tree))], micro_batch_tokens=23)


def test_forests_without_targets_take_no_part() -> None:
    tree = grown(leaves=2)
    nothing = trainable_targets(tree).where(np.zeros(8, dtype=bool))
    assert planned([(tree, nothing)], micro_batch_tokens=100).micro_batches == ()


def test_a_unit_costs_its_tokens_what_stands_before_each_of_them_and_its_logits() -> None:
    tree = grown(leaves=2, prefix=3, branch=3)  # computed: 3 and two branches of 2
    [one] = units(tree, trainable_targets(tree), max_tokens=100)
    # pairs: 1 + 2 + 3 in the prefix, 4 + 5 in each branch; 3 targets in each branch
    assert Cost(pair=0.01, logit=0.5)(one) == pytest.approx(7 + 0.01 * (6 + 2 * 9) + 0.5 * 6)


def test_the_dearest_units_go_first_each_to_the_rank_with_least_to_do() -> None:
    trees = [grown(leaves=1, prefix=n, branch=2) for n in (2, 6, 3, 4, 5)]
    cut = [one for tree in trees for one in units(tree, trainable_targets(tree), max_tokens=100)]
    assert [one.num_tokens for one in cut] == [3, 7, 4, 5, 6]
    shares = spread(cut, Placing(ranks=2))
    # 7 | 6, then 5 to the 6, 4 to the 7, 3 to either (11 | 11)
    assert [[one.num_tokens for one in share] for share in shares] == [[3, 7, 4], [5, 6]]


def test_one_tree_is_cut_so_that_every_rank_has_some_of_it_and_pays_the_prefix_again() -> None:
    tree = grown(leaves=8, prefix=6, branch=9)
    work = [(tree, trainable_targets(tree))]
    for ranks in (2, 3, 4):
        plan = planned(work, micro_batch_tokens=1_000, placing=Placing(ranks=ranks))
        assert all(any(batches) for batches in plan.by_rank)
        assert plan.num_tokens <= 8 * 8 + 6 * 4 * ranks


def test_ranks_have_equally_many_passes_and_every_target_once() -> None:
    for seed in range(30):
        tree = forest(random_row(seed, vocab=50))
        targets = trainable_targets(tree)
        longest = int(tree.position_T.max()) + 1
        for ranks in (2, 3, 5):
            for passes in (Placing().passes, lambda some: [(c,) for one in some for c in chains(one)]):
                plan = planned(
                    [(tree, targets)], micro_batch_tokens=longest, placing=Placing(ranks=ranks, passes=passes)
                )
                assert len(plan.by_rank) == ranks
                assert len(set(map(len, plan.by_rank))) == 1
                parts = [one for batch in plan.micro_batches for one in batch]
                assert tokens_of(parts) == targets.token_N.tolist()
                assert plan.denominator == len(targets)
                assert plan.num_tokens == sum(one.num_tokens for one in parts)
