from __future__ import annotations

import math
import random

import pytest
import torch

from tests.train.models import tiny
from tracestore.train.attention import (
    NAME,
    Block,
    SegmentsOutOfOrder,
    TreeUnsupported,
    attending,
    tree_attention,
    tree_plan,
)

# T tokens, D head size


def dense(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, parents: list[int], lengths: list[int]
) -> torch.Tensor:
    """The same attention by a T x T mask."""
    segment_T = torch.repeat_interleave(torch.arange(len(parents)), torch.tensor(lengths))
    above = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for index in range(len(parents)):
        at = index
        while at >= 0:
            above[index, at] = True
            at = parents[at]
    order_T = torch.arange(len(segment_T))
    seen_TT = above[segment_T][:, segment_T] & (order_T[:, None] >= order_T)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(-1, -2) * 0.4).masked_fill(~seen_TT, -math.inf)
    return torch.softmax(scores, -1) @ value


def random_tree(rng: random.Random) -> tuple[list[int], list[int]]:
    parents: list[int] = []
    path: list[int] = []
    for index in range(rng.randint(1, 12)):
        path = path[: rng.randint(0, len(path))]
        parents.append(path[-1] if path else -1)
        path.append(index)
    return parents, [rng.choice([1, 2, 3, 17, 40]) for _ in parents]


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 2e-2)]
)
def test_outputs_and_gradients_equal_those_of_a_dense_mask(dtype: torch.dtype, limit: float) -> None:
    rng = random.Random(0)
    torch.manual_seed(0)
    for _ in range(25):
        parents, lengths = random_tree(rng)
        tokens, size = sum(lengths), rng.choice([1, 4, 16, 20])
        value_size = rng.choice([size, size + 3, max(1, size // 2)])
        shapes = ((4, size), (2, size), (2, value_size))  # grouped queries
        given = [torch.randn(1, heads, tokens, d, dtype=dtype).requires_grad_() for heads, d in shapes]
        wide = [x.detach().double().requires_grad_() for x in given]
        out = tree_attention(*given, plan=tree_plan(parents, lengths), scaling=0.4)
        expected = dense(*wide, parents, lengths)
        grad = torch.randn_like(out)
        results = [out, *torch.autograd.grad(out, given, grad)]
        references = [expected, *torch.autograd.grad(expected, wide, grad.double())]
        for result, reference in zip(results, references, strict=True):
            assert result.dtype == dtype
            assert (result.double() - reference).norm() <= limit * (reference.norm() + 1)


def test_a_segment_is_seen_by_its_descendants_and_by_no_sibling() -> None:
    plan = tree_plan([-1, 0, 0], [4, 2, 3])
    assert plan.blocks == (Block(0, 4, 9, True), Block(4, 6, 6, False), Block(6, 9, 9, False))
    assert plan.longest_path == 4 + 3


def test_an_unbranched_chain_is_one_block() -> None:
    assert tree_plan([-1, 0, 1, 2], [2, 1, 3, 2]).blocks == (Block(0, 8, 8, True),)


def test_a_chain_below_a_fork_merges_too() -> None:
    plan = tree_plan([-1, 0, 1, 0, 3], [2, 1, 3, 1, 1])
    assert plan.blocks == (Block(0, 2, 8, True), Block(2, 6, 6, False), Block(6, 8, 8, False))


def test_roots_do_not_see_each_other() -> None:
    assert tree_plan([-1, -1], [2, 3]).blocks == (Block(0, 2, 2, True), Block(2, 5, 5, True))


@pytest.mark.parametrize("parents", [[-1, 0, 0, 1], [-1, -1, 0], [1, -1]])
def test_segments_out_of_depth_first_order_are_an_error(parents: list[int]) -> None:
    with pytest.raises(SegmentsOutOfOrder):
        tree_plan(parents, [1] * len(parents))


def run(model: torch.nn.Module, parents: list[int], lengths: list[int]) -> None:
    plan = tree_plan(parents, lengths)
    ids = torch.arange(plan.num_tokens)[None] % 50
    with attending(plan):
        model(input_ids=ids, position_ids=ids, use_cache=False)


def test_a_sliding_window_serves_while_every_path_fits_it() -> None:
    model = tiny("mistral", attention=NAME, sliding_window=6)
    run(model, [-1, 0, 0], [4, 2, 2])
    with pytest.raises(TreeUnsupported, match="shorter than the longest path of 7"):
        run(model, [-1, 0, 0], [4, 2, 3])


def test_attention_dropout_is_refused_in_training() -> None:
    model = tiny("llama", attention=NAME, attention_dropout=0.1)
    run(model, [-1, 0, 0], [4, 2, 2])
    with pytest.raises(TreeUnsupported, match="dropout"):
        run(model.train(), [-1, 0, 0], [4, 2, 2])


@pytest.mark.parametrize("feature", ["softcap", "sinks", "s_aux", "position_bias"])
def test_features_of_attention_that_a_tree_does_not_honour_are_refused(feature: str) -> None:
    model = tiny("llama", attention=NAME)
    plan = tree_plan([-1], [3])
    with pytest.raises(TreeUnsupported, match=feature), attending(plan):
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False, **{feature: 30.0})


def test_a_mask_of_the_callers_own_is_refused() -> None:
    model = tiny("llama", attention=NAME)
    mask = torch.zeros(1, 1, 3, 3)
    with pytest.raises(TreeUnsupported, match="mask"), attending(tree_plan([-1], [3])):
        model(input_ids=torch.tensor([[1, 2, 3]]), attention_mask=mask, use_cache=False)


def test_a_plan_of_another_length_is_refused() -> None:
    model = tiny("llama", attention=NAME)
    with pytest.raises(TreeUnsupported, match="plan of 4 tokens"), attending(tree_plan([-1], [4])):
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)


def test_a_model_called_without_a_plan_says_so() -> None:
    model = tiny("llama", attention=NAME)
    with pytest.raises(TreeUnsupported, match="attending"):
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)


def test_a_model_that_never_asks_for_the_plan_is_refused() -> None:
    model = tiny("llama", attention="eager")
    with pytest.raises(TreeUnsupported, match="AttentionInterface"), attending(tree_plan([-1], [3])):
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
