from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore.shards.pkpo import pass_at_k_weights


def rho(n: int, c: int, k: int) -> float:
    """Pass@k of n attempts, c of them right."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def test_one_of_four_right_and_the_best_of_two_counts() -> None:
    # right 2/4; wrong 2/4 * (1 - C(2, 1) / C(3, 1)) = .5 * (1 - 2/3) = .1667
    assert pass_at_k_weights([0, 1, 0, 0], k=2) == pytest.approx([1 / 6, 0.5, 1 / 6, 1 / 6])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", range(6))
def test_rewards_of_zero_and_one_give_the_printed_weights(right: int, k: int) -> None:
    n, rewards = 5, [1] * right + [0] * (5 - right)
    wrong = k / n * rho(n - 1, right, k - 1) if right < n else 0
    expected = [k / n] * right + [wrong] * (n - right)
    assert pass_at_k_weights(rewards, k=k) == pytest.approx(expected)


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=7), st.data())
def test_a_weight_is_the_share_of_an_attempt_in_the_mean_over_all_subsets(
    rewards: list[float], data: st.DataObject
) -> None:
    n = len(rewards)
    k = data.draw(st.integers(1, n))
    subsets = list(combinations(range(n), k))
    expected = [
        sum(max(rewards[j] for j in subset) for subset in subsets if i in subset) / len(subsets)
        for i in range(n)
    ]
    assert pass_at_k_weights(rewards, k=k) == pytest.approx(expected, abs=1e-12)


def test_the_gradient_of_pass_at_k_is_unbiased() -> None:
    # A coin that is right with p: pass@2 = 1 - (1-p)^2, its derivative 2 (1-p). The score of an attempt is
    # 1/p when right and -1/(1-p) when wrong; the mean over all outcomes of three tosses is exact.
    p = 0.3
    total = 0.0
    for outcome in range(8):
        rewards = [outcome >> i & 1 for i in range(3)]
        chance = math.prod(p if one else 1 - p for one in rewards)
        weights = pass_at_k_weights(rewards, k=2)
        scores = [1 / p if one else -1 / (1 - p) for one in rewards]
        total += chance * sum(w * s for w, s in zip(weights, scores, strict=True))
    assert total == pytest.approx(2 * (1 - p))


@pytest.mark.parametrize("k", [0, 3])
def test_the_best_of_more_attempts_than_there_are_is_not_defined(k: int) -> None:
    with pytest.raises(ValueError, match=f"the best of {k} of 2"):
        pass_at_k_weights([0, 1], k=k)
