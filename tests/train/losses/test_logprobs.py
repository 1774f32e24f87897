from __future__ import annotations

import math

import pytest
import torch

from tests.train.rows import episodes_of_one_call, random_row
from tracestore.train.forest import Pack, forest, pack, recorded_targets, unit
from tracestore.train.losses.logprobs import by_parts, token_logprobs, token_logprobs_and_entropies


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_token_logprobs_and_their_gradient_are_those_of_log_softmax(dtype: torch.dtype, limit: float) -> None:
    torch.manual_seed(0)
    made = episodes_of_one_call(
        [1.0] * 300, call={3: {"logprobs_are": "processed", "temperature": 0.5}}
    )  # more targets than one chunk, and siblings that share their predecessor
    grown = forest(made)
    some = pack([unit(grown, recorded_targets(grown))])
    logits = torch.randn(len(some.logit_P), 320, dtype=dtype).mul_(3).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    found = token_logprobs(logits, some.which_N, some.target_N, some.temperature_N)
    scaled = wide[some.which_N] / some.temperature_N[:, None]
    expected = torch.log_softmax(scaled, -1).gather(-1, some.target_N[:, None])[:, 0]
    grad = torch.randn(len(found), dtype=torch.float64)
    found.backward(grad.to(found.dtype))
    expected.backward(grad)
    assert logits.grad is not None
    assert wide.grad is not None
    assert (found.double() - expected).abs().max() <= limit
    assert (logits.grad.double() - wide.grad).norm() <= limit * wide.grad.norm()


def test_logprobs_and_entropies_by_parts_and_their_gradients_are_those_of_all_logits_at_once() -> None:
    torch.manual_seed(0)
    for seed in range(6):
        grown = forest(random_row(seed, vocab=50))
        some = pack([unit(grown, recorded_targets(grown))])
        head = torch.nn.Linear(8, 50, dtype=torch.float64)
        hidden = torch.randn(len(some.logit_P), 8, dtype=torch.float64, requires_grad=True)
        grad = torch.randn(some.num_targets, dtype=torch.float64)
        whole = token_logprobs_and_entropies(head(hidden), some.which_N, some.target_N, some.temperature_N)
        wanted = torch.autograd.grad(whole, [hidden, *head.parameters()], (grad, grad.flip(0)))
        for part in (1, 3, 1000):
            found = by_parts(token_logprobs_and_entropies, head, hidden, some, part=part)
            for value, expected in zip(found, whole, strict=True):
                torch.testing.assert_close(value, expected)
            grads = torch.autograd.grad(found, [hidden, *head.parameters()], (grad, grad.flip(0)))
            for a, b in zip(grads, wanted, strict=True):
                torch.testing.assert_close(a, b)


def test_logprobs_of_bfloat16_logits_are_summed_in_float32() -> None:
    grown = forest(episodes_of_one_call([1]))
    some = pack([unit(grown, recorded_targets(grown))])
    logits = torch.zeros(len(some.logit_P), 1000, dtype=torch.bfloat16)
    found = token_logprobs(logits, some.which_N, some.target_N, some.temperature_N)
    assert found.tolist() == pytest.approx([-math.log(1000)] * 2, abs=1e-5)


def several_temperatures() -> Pack:
    """More targets than one chunk, siblings that share their predecessor, two temperatures."""
    call = {i: {"logprobs_are": "processed", "temperature": 0.5} for i in range(0, 200, 3)}
    grown = forest(episodes_of_one_call([1.0] * 200, call=call))
    return pack([unit(grown, recorded_targets(grown))])


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_entropies_and_their_gradient_are_those_of_the_whole_distribution(
    dtype: torch.dtype, limit: float
) -> None:
    torch.manual_seed(0)
    some = several_temperatures()
    logits = torch.randn(len(some.logit_P), 320, dtype=dtype).mul_(3).requires_grad_()
    wide = logits.detach().double().requires_grad_()
    _, found = token_logprobs_and_entropies(logits, some.which_N, some.target_N, some.temperature_N)
    log_p = torch.log_softmax(wide[some.which_N] / some.temperature_N[:, None], -1)
    expected = -(log_p.exp() * log_p).sum(-1)
    grad = torch.randn(len(found), dtype=torch.float64)
    found.backward(grad.to(found.dtype))
    expected.backward(grad)
    assert logits.grad is not None
    assert wide.grad is not None
    assert (found.double() - expected).abs().max() <= limit * expected.abs().max()
    assert (logits.grad.double() - wide.grad).norm() <= limit * wide.grad.norm()


def test_the_gradient_of_both_outputs_is_that_of_finite_differences() -> None:
    torch.manual_seed(0)
    grown = forest(episodes_of_one_call([1, 0]))
    some = pack([unit(grown, recorded_targets(grown))])
    logits = torch.randn(len(some.logit_P), 8, dtype=torch.float64, requires_grad=True)

    def both(given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs_and_entropies(given, some.which_N, some.target_N, some.temperature_N)

    assert torch.autograd.gradcheck(both, (logits,))


def test_asking_for_entropies_changes_no_logprob() -> None:
    torch.manual_seed(0)
    some = several_temperatures()
    logits = torch.randn(len(some.logit_P), 320)
    given = (logits, some.which_N, some.target_N, some.temperature_N)
    assert torch.equal(token_logprobs(*given), token_logprobs_and_entropies(*given)[0])


def test_a_token_that_a_model_rules_out_adds_nothing_to_the_entropy_and_gets_no_gradient() -> None:
    grown = forest(episodes_of_one_call([1]))
    some = pack([unit(grown, recorded_targets(grown))])
    logits = torch.zeros(len(some.logit_P), 10, dtype=torch.float64)
    logits[:, 8:] = -math.inf
    logits.requires_grad_()
    _, entropy_N = token_logprobs_and_entropies(logits, some.which_N, some.target_N, some.temperature_N)
    assert entropy_N.tolist() == pytest.approx([math.log(8)] * 2)
    entropy_N.sum().backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-12  # uniform over 8: nothing can be raised
