from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from tracestore.train.losses.terms import divergence


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        ("k1", 0.5, 0.5),  # -1 + 1.5
        ("k3", 0.106531, 0.393469),  # e^-.5 - 1 + .5;  1 - e^-.5
    ],
)
def test_the_divergence_at_a_token(estimator: Literal["k1", "k3"], value: float, slope: float) -> None:
    logprob_N = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    reference_N = torch.tensor([-1.5], dtype=torch.float64)
    said_N, term_N = divergence(logprob_N, reference_N, estimator=estimator)
    assert said_N.tolist() == pytest.approx([value], abs=1e-6)
    assert term_N.tolist() == pytest.approx([value], abs=1e-6)
    term_N.sum().backward()
    assert logprob_N.grad is not None
    assert logprob_N.grad.tolist() == pytest.approx([slope], abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_mean_over_the_policys_own_tokens_is_the_divergence(estimator: Literal["k1", "k3"]) -> None:
    """Exactly, by enumerating a vocabulary of nine; of k1 so is the mean of its gradient."""
    torch.manual_seed(0)
    logits_V = torch.randn(9, dtype=torch.float64, requires_grad=True)
    log_q_V = torch.log_softmax(torch.randn(9, dtype=torch.float64), -1)
    log_p_V = torch.log_softmax(logits_V, -1)
    kl = (log_p_V.exp() * (log_p_V - log_q_V)).sum()
    said_V, term_V = divergence(log_p_V, log_q_V, estimator=estimator)
    p_V = log_p_V.exp().detach()
    assert float((p_V * said_V).sum()) == pytest.approx(float(kl.detach()))
    if estimator == "k1":
        [exact] = torch.autograd.grad(kl, logits_V, retain_graph=True)
        [found] = torch.autograd.grad((p_V * term_V).sum(), logits_V)
        np.testing.assert_allclose(found, exact, atol=1e-12)


def test_a_policy_that_is_its_reference_has_no_divergence_and_no_gradient() -> None:
    logprob_N = torch.tensor([-1.0, -20.0], requires_grad=True)
    for estimator in ("k1", "k3"):
        said_N, term_N = divergence(logprob_N, logprob_N.detach().double(), estimator=estimator)
        assert said_N.tolist() == [0.0, 0.0]
        [grad] = torch.autograd.grad(term_N.sum(), logprob_N)
        assert grad.tolist() == [0.0, 0.0]
