"""PKPO: what each of n attempts at one task is worth when the best of k of them counts.

The estimate of E[max of k rewards] (of pass@k, where a reward is 0 or 1) is the mean over all subsets of k of
the n attempts. Attempt i is worth its share of it, the sum over the subsets that hold i:

    s_i = sum over I with i in I, |I| = k, of max(r_j, j in I) / C(n, k)

and sum_i s_i * grad log pi(attempt i) is an unbiased gradient. For rewards 0 and 1, c of them 1, that is

    right: k/n        wrong: k/n * rho(n-1, c, k-1),    rho(n, c, k) = 1 - C(n-c, k) / C(n, k)

so a wrong attempt earns what the others would have earned without it, and k = 1 gives r/n.

Source: Walder & Karkhanis, Pass@K Policy Optimization (arXiv 2505.15201), for the binary weights; the sum
over subsets is our derivation, unbiased for any rewards (the test enumerates a small policy).

Worked: n = 4, c = 1, k = 2: right 2/4 = .5, wrong 2/4 * (1 - C(2, 1) / C(3, 1)) = .5 * (1 - 2/3) = .1667.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def pass_at_k_weights(rewards: Sequence[float], *, k: int) -> list[float]:
    """s_i of each attempt, in order; the module has the formula.

    Raises:
        ValueError: k is not in 1 .. n, where no subset of k attempts exists.
    """
    n = len(rewards)
    if not 1 <= k <= n:
        raise ValueError(f"the best of {k} of {n} attempts is not defined")
    subsets = math.comb(n, k)
    ascending = sorted(range(n), key=lambda i: rewards[i])
    weights = [0.0] * n
    above: list[float] = []
    for rank in range(n - 1, -1, -1):
        i = ascending[rank]
        # Attempt i is the best of C(rank, k-1) subsets: the others of them lie below.
        own = rewards[i] * (math.comb(rank, k - 1) / subsets)
        weights[i] = math.fsum((own, *above))
        if k > 1 and rank > 0:
            # Of those that also hold one given attempt below, C(rank-1, k-2).
            above.append(rewards[i] * (math.comb(rank - 1, k - 2) / subsets))
    return weights
