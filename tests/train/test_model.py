from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.train.models import KINDS, tiny
from tests.train.test_loop import group
from tracestore.train.engine import Engine
from tracestore.train.forest import Targets, forest, trainable_targets
from tracestore.train.losses.base import Objective
from tracestore.train.model import compute_layers_again
from tracestore.train.plan import planned
from tracestore.train.step import gradients


def gradient(model: Any, **engine: Any) -> dict[str, torch.Tensor]:
    """Of a clipped loss over a branched group, by parameter."""
    grown = forest(group(0))
    token_N = trainable_targets(grown).token_N
    some = np.linspace(0.0, 1.0, len(token_N))
    targets = Targets(token_N, plus_N=some, minus_N=some - 1.0, old_logprob_N=np.full(len(token_N), -4.0))
    asked = Engine(model, **engine)
    gradients(asked, planned([(grown, targets)], micro_batch_tokens=1_000), objective=Objective())
    assert asked.reasons == {}
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def away(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    ours, theirs = (torch.cat([g[name].flatten() for name in wanted]) for g in (found, wanted))
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("use_tree", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_layers_computed_again_give_the_same_gradient_bit_for_bit(kind: str, use_tree: bool) -> None:
    kept = gradient(tiny(kind, attention="sdpa"), use_tree=use_tree)
    model = tiny(kind, attention="sdpa")
    compute_layers_again(model)
    again = gradient(model, use_tree=use_tree)
    assert again.keys() == kept.keys()
    assert all(torch.equal(again[name], kept[name]) for name in kept)


def test_bfloat16_computes_with_float32_weights_and_errs_on_the_tree_as_the_rows_do() -> None:
    exact = gradient(tiny("llama", attention="sdpa"))
    on_tree = gradient(tiny("llama", attention="sdpa"), compute_dtype=torch.bfloat16)
    on_rows = gradient(tiny("llama", attention="sdpa"), compute_dtype=torch.bfloat16, use_tree=False)
    assert {g.dtype for g in on_tree.values()} == {torch.float32}
    assert 1e-3 < away(on_tree, exact) <= 2 * away(on_rows, exact)
