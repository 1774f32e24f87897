"""Law 7: the gradient of a packed tree is the gradient of its samples one by one.

The rows' side knows nothing of trees: one sample at a time, the model's stock attention, no packing, no
position ids, its own loss (the mean over the samples through a token of their clipped losses).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

from tests.exporters.memory import MemorySource
from tests.sample_traces.traces import NAMES, trace_events
from tests.train.models import KINDS, VOCAB, tiny
from tests.train.rows import random_row, row
from tracestore.shards.read import open_export
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.shards.views import BrokenForest, flattened
from tracestore.train.attention import SegmentsOutOfOrder, tree_plan
from tracestore.train.credit.base import Advantages, combine
from tracestore.train.engine import Engine
from tracestore.train.forest import Forest, Targets, forest, trained_targets
from tracestore.train.losses.base import Clip, Objective
from tracestore.train.losses.policy import clipped
from tracestore.train.plan import step, units
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

FORESTS = 100
CLIP = Clip(eps_low=0.2, eps_high=0.28)


@contextmanager
def float64_throughout() -> Iterator[None]:
    """Lifts the library's float32 islands (RMSNorm, eager softmax, rotary angles) to the input's float64."""

    def rms_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def rotary(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    stock = torch.nn.functional.softmax

    def softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return stock(x, dim=dim, dtype=x.dtype if dtype == torch.float32 else dtype)

    with pytest.MonkeyPatch.context() as patch:
        for norm in (LlamaRMSNorm, Qwen3RMSNorm):
            patch.setattr(norm, "forward", rms_norm)
        for positions in (LlamaRotaryEmbedding, Qwen3RotaryEmbedding):
            patch.setattr(positions, "forward", rotary)
        patch.setattr(torch.nn.functional, "softmax", softmax)
        yield


def case(seed: int, model: Any, *, margin: float) -> tuple[Row, dict[int, float]]:
    """A random row whose recorded logprobs are off the model's by a factor in [0.5, 2], and an advantage of
    either sign for most of its samples.

    Args:
        margin: how near log ratios may come to an edge of the clip, where the gradient jumps.
    """
    return off_policy(random_row(seed, vocab=VOCAB), model, seed=seed, margin=margin)


def off_policy(made: Row, model: Any, *, seed: int, margin: float = 0.0) -> tuple[Row, dict[int, float]]:
    """The same of any row."""
    rng = np.random.default_rng(seed)
    logprobs = np.zeros(len(made.token_ids))
    with torch.no_grad():
        for index in range(len(made.samples)):
            flat = flattened(made, index)
            temperature_N = temperatures(made, flat.completion)
            logprobs[flat.token_index[1:]] = (
                row_logprobs(model, flat.token_ids, temperature_N).double().numpy()
            )
    sampled = made.has_logprob
    log_ratio = rng.uniform(-math.log(2), math.log(2), int(sampled.sum()))
    for edge in (math.log(1 - CLIP.eps_low), math.log(1 + CLIP.eps_high)):
        near = np.abs(log_ratio - edge) < margin
        log_ratio[near] = edge + margin
    logprobs[sampled] -= log_ratio
    graded = [index for index in range(len(made.samples)) if rng.random() < 0.9]
    advantage = {index: float(rng.normal()) for index in graded}
    return replace(made, logprobs=np.where(sampled, logprobs, 0.0)), advantage


def temperatures(row: Row, completion_N: np.ndarray) -> torch.Tensor:
    of = [
        row.calls[c.call].temperature if row.calls[c.call].logprobs_are == "processed" else 1.0
        for c in row.completions
    ]
    return torch.tensor([1.0 if c < 0 else of[c] for c in completion_N.tolist()], dtype=torch.float64)


def row_logprobs(model: Any, token_ids: np.ndarray, temperature_N: torch.Tensor) -> torch.Tensor:
    """[N - 1], log p of every token of one sample but its first."""
    ids = torch.as_tensor(token_ids.astype(np.int64))
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    scaled = logits.to(wide) / temperature_N[1:, None].to(wide)
    return torch.log_softmax(scaled, -1).gather(-1, ids[1:, None])[:, 0]


def rows_gradient(model: Any, row: Row, advantage: dict[int, float], denominator: int) -> tuple[float, float]:
    """Runs backward sample by sample; returns the loss and the sum of |weight * loss| it is made of."""
    through: dict[int, int] = {}
    for index in advantage:
        for completion in row.samples[index].completions:
            through[completion] = through.get(completion, 0) + 1
    total = magnitude = 0.0
    for index, a in advantage.items():
        flat, own = flattened(row, index), set(row.samples[index].completions)
        weights = [
            1 / through[c] if reason == Reason.TRAINED and c in own else 0.0
            for c, reason in zip(flat.completion.tolist(), flat.reason.tolist(), strict=True)
        ]
        logprob_N = row_logprobs(model, flat.token_ids, temperatures(row, flat.completion))
        old_N = torch.as_tensor(flat.logprobs[1:])
        ratio_N = torch.exp(logprob_N.double() - old_N).to(logprob_N.dtype)
        limited_N = ratio_N.clamp(1 - CLIP.eps_low, 1 + CLIP.eps_high)
        token_N = -torch.minimum(ratio_N * a, limited_N * a) * torch.tensor(weights[1:], dtype=ratio_N.dtype)
        loss = token_N.sum() / denominator
        loss.backward()
        total += float(loss.detach())
        magnitude += float(token_N.detach().abs().sum()) / denominator
    return total, magnitude


def tree_gradient(
    model: Any, grown: Forest, targets: Targets, *, max_tokens: int = 10_000, micro_batch_tokens: int = 10_000
) -> float:
    """Runs backward over the planned micro-batches; returns the loss."""
    engine = Engine(model)
    planned = step(units(grown, targets, max_tokens=max_tokens), micro_batch_tokens=micro_batch_tokens)
    total = 0.0
    for batch in planned.micro_batches:
        for pack, logprob_N in engine.passes(batch):
            loss = clipped(logprob_N, pack, Objective(clip=CLIP)).loss_N.sum() / planned.denominator
            loss.backward()
            total += float(loss.detach())
    assert not engine.reasons, "the tree was refused"
    return total


def flat_grad(model: Any) -> torch.Tensor:
    """The gradient over all parameters, float64, and none left behind."""
    grad = torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).double().flatten() for p in model.parameters()]
    )
    model.zero_grad(set_to_none=True)
    return grad


def prepared(seed: int, model: Any, *, margin: float = 0.0) -> tuple[Row, dict[int, float], Forest, Targets]:
    return targeted(*case(seed, model, margin=margin))


def targeted(row: Row, advantage: dict[int, float]) -> tuple[Row, dict[int, float], Forest, Targets]:
    given = Advantages("test", {(i, c): a for i, a in advantage.items() for c in row.samples[i].completions})
    grown = forest(row)
    return row, advantage, grown, trained_targets(grown, combine(row, given))


def seeds(kind: str) -> range:
    """The hundred forests, a third to each kind of model."""
    return range(KINDS.index(kind), FORESTS, len(KINDS))


@pytest.mark.parametrize("kind", KINDS)
def test_tree_gradient_equals_rows_gradient_in_float64(kind: str) -> None:
    checked = sum(equal_in_float64(kind, seed) for seed in seeds(kind))
    assert checked > 0.9 * len(seeds(kind))


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_holds_for_a_thousand_forests(kind: str) -> None:
    some = range(KINDS.index(kind), 1_000, len(KINDS))
    assert sum(equal_in_float64(kind, seed) for seed in some) > 0.9 * len(some)


def equal_in_float64(kind: str, seed: int) -> bool:
    """Whether a forest had a target; where it had, both gradients were equal."""
    with float64_throughout():
        model = tiny(kind, dtype=torch.float64)
        row, advantage, grown, targets = prepared(seed, model)
        if len(targets):
            check_in_float64(model, row, advantage, grown, targets)
        return bool(len(targets))


def check_in_float64(
    model: Any, row: Row, advantage: dict[int, float], grown: Forest, targets: Targets
) -> None:
    loss_tree = tree_gradient(model, grown, targets)
    g_tree = flat_grad(model)
    loss_rows, magnitude = rows_gradient(model, row, advantage, len(targets))
    g_rows = flat_grad(model)
    assert (g_tree - g_rows).norm() <= 1e-9 * g_rows.norm(), row.group_id
    assert abs(loss_tree - loss_rows) <= 1e-9 * magnitude, row.group_id


@pytest.mark.parametrize("name", NAMES)
def test_tree_gradient_equals_rows_gradient_on_every_sample_trace(name: str, tmp_path: Path) -> None:
    source = MemorySource(trace_events(name))
    export(source, "p", tmp_path / "export", Spec())
    rows = [row for row in open_export(tmp_path / "export").rows() if row.num_trained]
    assert rows
    with float64_throughout():
        model = tiny("llama", dtype=torch.float64, max_position_embeddings=8_192)
        for seed, row in enumerate(rows):
            small = replace(row, token_ids=row.token_ids % VOCAB)  # ids that the tiny model knows
            check_in_float64(model, *targeted(*off_policy(small, model, seed=seed)))


@pytest.mark.parametrize("kind", KINDS)
def test_tree_gradient_equals_rows_gradient_in_float32(kind: str) -> None:
    model = tiny(kind)
    for seed in seeds(kind):
        row, advantage, grown, targets = prepared(seed, model)
        if not len(targets):
            continue
        loss_tree = tree_gradient(model, grown, targets)
        g_tree = flat_grad(model)
        loss_rows, magnitude = rows_gradient(model, row, advantage, len(targets))
        g_rows = flat_grad(model)
        assert (g_tree - g_rows).norm() <= 1e-5 * g_rows.norm(), seed
        assert abs(loss_tree - loss_rows) <= 1e-5 * magnitude, seed


@pytest.mark.parametrize("kind", KINDS)
def test_tree_error_in_bfloat16_is_at_most_twice_the_rows_own(kind: str) -> None:
    coarse = tiny(kind, dtype=torch.bfloat16, attention="sdpa")
    exact = tiny(kind, attention="sdpa")
    exact.load_state_dict(coarse.state_dict())
    tree_errors, rows_errors = [], []
    for seed in seeds(kind):
        # A token at an edge of the clip would be cut in one arithmetic and not in the other.
        row, advantage, grown, targets = prepared(seed, exact, margin=0.15)
        if not len(targets):
            continue
        rows_gradient(exact, row, advantage, len(targets))
        g_exact = flat_grad(exact)
        if not g_exact.any():  # every target lies beyond the clip
            continue
        rows_gradient(coarse, row, advantage, len(targets))
        error_rows = (flat_grad(coarse) - g_exact).norm()
        tree_gradient(coarse, grown, targets)
        error_tree = (flat_grad(coarse) - g_exact).norm()
        tree_errors.append(float(error_tree / g_exact.norm()))
        rows_errors.append(float(error_rows / g_exact.norm()))
    # Over all forests: of a single one with few targets, rounding decides by chance which side is nearer.
    assert math.hypot(*tree_errors) <= 2 * math.hypot(*rows_errors)


def test_segments_out_of_depth_first_order_are_an_error() -> None:
    # Segment 3 continues segment 1, whose subtree ended when its sibling 2 began.
    made = row([(-1, [1], -1), (0, [2], 0), (0, [3], 1), (1, [4], 2)], [])
    with pytest.raises(BrokenForest):
        forest(made)
    with pytest.raises(SegmentsOutOfOrder):
        tree_plan(made.segments.parent.tolist(), made.segments.length.tolist())


def test_cutting_and_packing_never_change_the_gradient() -> None:
    with float64_throughout():
        model = tiny("llama", dtype=torch.float64)
        for seed in range(8):
            _, _, grown, targets = prepared(seed, model)
            tree_gradient(model, grown, targets)
            whole = flat_grad(model)
            longest = max(int(grown.position_T.max()) + 1, 1)
            for max_tokens, micro_batch_tokens in ((longest, longest), (longest + 7, 40), (10_000, longest)):
                tree_gradient(
                    model, grown, targets, max_tokens=max_tokens, micro_batch_tokens=micro_batch_tokens
                )
                cut = flat_grad(model)
                assert (cut - whole).norm() <= 1e-12 * whole.norm(), (seed, max_tokens, micro_batch_tokens)
