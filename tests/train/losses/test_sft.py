from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.train.rows import episodes_of_one_call
from tracestore.train.forest import Targets, forest, pack, unit
from tracestore.train.losses.base import Objective
from tracestore.train.losses.sft import cross_entropy


def test_cross_entropy_asks_for_no_recorded_logprob() -> None:
    unknown_N = np.full(2, np.nan)
    targets = Targets(np.array([2, 3]), np.array([1.0, 0.5]), np.zeros(2), unknown_N)
    some = pack([unit(forest(episodes_of_one_call([None])), targets)])
    logprob_N = torch.tensor([0.25, 0.5], dtype=torch.float64).log().requires_grad_()
    found = cross_entropy(logprob_N, some, Objective(loss="sft"))
    # -1 * log .25, -.5 * log .5
    assert found.loss_N.tolist() == pytest.approx([math.log(4), 0.5 * math.log(2)])
    found.loss_N.sum().backward()
    assert logprob_N.grad is not None
    assert logprob_N.grad.tolist() == [-1.0, -0.5]
    assert found.ratio_N is None
