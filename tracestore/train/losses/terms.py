"""Terms beside a loss: the divergence from a reference model, and the policy's entropy.

Both count at every target, those with advantage 0 too, under the loss's own denominator.

`k3`  KL(pi || ref) at a token is estimated by q - 1 - log q, q = ref / pi: never negative, and its own
      gradient is taken, (1 - q) grad logprob. What GRPO's papers and TRL add to their losses.
`k1`  It is estimated by d = logprob - reference, and the gradient is d grad logprob, that of d in the
      reward: on tokens of the policy its mean is the gradient of the divergence, where grad d itself has
      mean 0.

Source: Schulman, Approximating KL Divergence (2020); k3 in a loss: DeepSeekMath (arXiv 2402.03300),
equation 4; gradients of the estimators: Tang and Munos (arXiv 2506.09477).

Worked: logprob -1, reference -1.5: k1 = .5, its gradient .5; q = e^-.5 = .6065, k3 = .6065 - 1 + .5 =
.1065, its gradient 1 - .6065 = .3935.

Known traps: k1 can be negative at a token, and the mean of few tokens too. Entropy is that of the
distribution at the temperature of the call, over the whole vocabulary, not the -logprob of the sampled
token."""

# N targets

from __future__ import annotations

import torch

from tracestore.train.losses.base import Estimator


def divergence(
    logprob_N: torch.Tensor, reference_N: torch.Tensor, *, estimator: Estimator
) -> tuple[torch.Tensor, torch.Tensor]:
    """[N], the estimate at each target, detached; and [N], a term with its gradient and its value."""
    difference_N = (logprob_N.double() - reference_N).to(logprob_N.dtype)
    if estimator == "k3":
        term_N = torch.expm1(-difference_N) + difference_N
    else:
        value_N = difference_N.detach()
        term_N = value_N + value_N * (logprob_N - logprob_N.detach())
    return term_N.detach(), term_N
