"""Tree attention: each token attends to the tokens on its own path, and each token is computed once.

Segments stand in depth-first order, so the descendants of a segment are the tokens right behind it.
The keys of a segment are therefore seen by one contiguous range of queries: causally by its own tokens,
in full by its descendants. That is one flash call per segment, "causal" with more queries than keys.
What a token gets from its segment and from each ancestor is merged by log-sum-exp, and the backward pass
hands the merged output and log-sum-exp to the same flash kernel, as ring attention does; no mask is built.

Source of the merge: Liu et al., Ring Attention (arXiv 2310.01889); of the backward pass from the merged
log-sum-exp: Dao, FlashAttention-2 (arXiv 2307.08691), section 3.1.
"""

# B batch (always 1), H query heads, K key heads, T tokens of a pack, D head size, S segments

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface

from tracestore.errors import TracestoreError

NAME = "tracestore_tree"
"""What a model's `attn_implementation` is called when it computes trees."""

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SegmentsOutOfOrder(TracestoreError):
    """Segments are not in depth-first order."""


class TreeUnsupported(TracestoreError):
    """This model's attention cannot be computed on a tree."""


@dataclass(frozen=True, slots=True)
class Block:
    """Keys `start:stop`, seen causally by their own tokens and in full by the tokens `stop:reach`."""

    start: int
    stop: int
    reach: int
    is_root: bool


@dataclass(frozen=True, slots=True)
class TreePlan:
    """Which keys every token of a pack sees."""

    blocks: tuple[Block, ...]
    num_tokens: int
    longest_path: int
    """Tokens on the longest root-to-leaf path: a sliding window of at least this size changes nothing."""


def tree_plan(parents: Sequence[int], lengths: Sequence[int]) -> TreePlan:
    """The blocks of a forest of segments.

    A segment whose parent stands right before it and has no other child continues the parent's block,
    so an unbranched chain costs one call.

    Args:
        parents: index of each segment's parent, -1 for a root; length S.
        lengths: tokens of each segment, at least 1; length S.

    Raises:
        SegmentsOutOfOrder: a segment does not follow its parent's earlier descendants directly.

    Example: parents [-1, 0, 0], lengths [4, 2, 3] -> keys 0:4 seen by 0:9, keys 4:6 by 4:6, keys 6:9 by 6:9
    """
    children = [0] * len(parents)
    for parent in parents:
        if parent >= 0:
            children[parent] += 1
    starts: list[int] = []
    stops: list[int] = []
    depths: list[int] = []
    roots: list[bool] = []
    block_of: list[int] = []
    path: list[int] = []
    end = 0
    for segment, (parent, length) in enumerate(zip(parents, lengths, strict=True)):
        assert length > 0, "a segment without tokens has no place in a pack"
        while path and path[-1] != parent:
            path.pop()
        if parent >= 0 and not path:
            raise SegmentsOutOfOrder(
                segment=segment,
                parent=parent,
                hint="write parents before children, each subtree in one piece",
            )
        path.append(segment)
        start, end = end, end + length
        if parent >= 0 and parent == segment - 1 and children[parent] == 1:
            block = block_of[parent]
            stops[block] = end
            depths[block] += length
        else:
            block = len(starts)
            starts.append(start)
            stops.append(end)
            depths.append(length + (depths[block_of[parent]] if parent >= 0 else 0))
            roots.append(parent < 0)
        block_of.append(block)
    reaches = list(stops)
    for segment in range(len(parents) - 1, -1, -1):
        if parents[segment] >= 0:
            above = block_of[parents[segment]]
            reaches[above] = max(reaches[above], reaches[block_of[segment]])
    blocks = tuple(map(Block, starts, stops, reaches, roots))
    return TreePlan(blocks=blocks, num_tokens=end, longest_path=max(depths, default=0))


class _TreeAttention(torch.autograd.Function):
    """Softmax attention over a TreePlan, in float32 or float64."""

    @staticmethod
    def forward(
        ctx: Any,
        query_BHTD: torch.Tensor,
        key_BKTD: torch.Tensor,
        value_BKTD: torch.Tensor,
        plan: TreePlan,
        scaling: float,
    ) -> torch.Tensor:
        batch, heads, tokens, size = query_BHTD.shape
        out_BHTD = query_BHTD.new_empty((batch, tokens, heads, size)).transpose(1, 2)
        lse_BHT = query_BHTD.new_empty((batch, tokens, heads)).transpose(1, 2)
        for block in plan.blocks:
            queries, keys = slice(block.start, block.reach), slice(block.start, block.stop)
            part, part_lse = _flash(
                query_BHTD[:, :, queries],
                key_BKTD[:, :, keys],
                value_BKTD[:, :, keys],
                0.0,
                True,
                scale=scaling,
            )
            out, lse = out_BHTD[:, :, queries], lse_BHT[:, :, queries]
            if block.is_root:  # every token lies in one root's range, so this is the first to write it
                out.copy_(part)
                lse.copy_(part_lse)
            else:
                share = torch.sigmoid(part_lse - lse)
                out.lerp_(part, share[..., None])
                torch.logaddexp(lse, part_lse, out=lse)
        ctx.save_for_backward(query_BHTD, key_BKTD, value_BKTD, out_BHTD, lse_BHT)
        ctx.plan, ctx.scaling = plan, scaling
        return out_BHTD

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_BHTD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None, None]:
        query_BHTD, key_BKTD, value_BKTD, out_BHTD, lse_BHT = ctx.saved_tensors
        grad_query = torch.empty_like(query_BHTD)
        grad_key, grad_value = torch.empty_like(key_BKTD), torch.empty_like(value_BKTD)
        for block in ctx.plan.blocks:
            queries, keys = slice(block.start, block.reach), slice(block.start, block.stop)
            part_query, part_key, part_value = _flash_backward(
                grad_BHTD[:, :, queries],
                query_BHTD[:, :, queries],
                key_BKTD[:, :, keys],
                value_BKTD[:, :, keys],
                out_BHTD[:, :, queries],
                lse_BHT[:, :, queries],
                0.0,
                True,
                scale=ctx.scaling,
            )
            if block.is_root:
                grad_query[:, :, queries] = part_query
            else:
                grad_query[:, :, queries] += part_query
            grad_key[:, :, keys] = part_key  # a key belongs to one block
            grad_value[:, :, keys] = part_value
        return grad_query, grad_key, grad_value, None, None


def tree_attention(
    query_BHTD: torch.Tensor,
    key_BKTD: torch.Tensor,
    value_BKTD: torch.Tensor,
    *,
    plan: TreePlan,
    scaling: float,
) -> torch.Tensor:
    """Attention of every token over its own path, [1, H, T, D]; H is a multiple of K (grouped queries).

    Computed in float64 for float64, in float32 for every narrower type: partial results are then merged
    before they are rounded, and the kernel's backward pass in bfloat16 is several times slower on a CPU
    without bfloat16 units. Values may have another head size than keys.
    """
    size = value_BKTD.shape[-1]
    width = max(query_BHTD.shape[-1], size)
    query, key, value = (_wide(_pad(x, width)) for x in (query_BHTD, key_BKTD, value_BKTD))
    out: torch.Tensor = _TreeAttention.apply(query, key, value, plan, scaling)  # type: ignore[no-untyped-call]
    return out[..., :size].to(value_BKTD.dtype)


def _pad(x: torch.Tensor, width: int) -> torch.Tensor:
    # The kernel wants one head size; zeros add nothing to a score, and the value's are cut off again.
    return x if x.shape[-1] == width else torch.nn.functional.pad(x, (0, width - x.shape[-1]))


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


@dataclass(slots=True)
class _Active:
    plan: TreePlan
    layers: int = 0
    window: int | None = None
    """The narrowest sliding window that a layer has."""

    def sees(self, window: int | None) -> None:
        if window is not None:
            self.window = window if self.window is None else min(window, self.window)


_ACTIVE: ContextVar[_Active | None] = ContextVar("tracestore_tree_plan", default=None)


@contextmanager
def attending(plan: TreePlan) -> Iterator[_Active]:
    """Inside, a model whose attention is `NAME` computes this plan; tells what was met on the way.

    Raises:
        TreeUnsupported: on leaving, when no attention layer asked for the plan: the model brings its own
            attention, and what it computed was not the tree.
    """
    active = _Active(plan)
    token = _ACTIVE.set(active)
    try:
        yield active
    finally:
        _ACTIVE.reset(token)
    if not active.layers:
        raise TreeUnsupported(reason="no layer of the model calls transformers' AttentionInterface")


def again() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts for `torch.utils.checkpoint`: a layer that the backward pass computes again attends to its
    first plan, on whichever thread that is."""
    return nullcontext(), _resumed(_ACTIVE.get())


@contextmanager
def _resumed(active: _Active | None) -> Iterator[None]:
    token = _ACTIVE.set(active)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **features: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention signature; raises TreeUnsupported for whatever the tree cannot honour."""
    active = _ACTIVE.get()
    if active is None:
        raise TreeUnsupported(reason="no plan", hint="call the model inside `attending(plan)`")
    problem = _problem(module, query, key, attention_mask, dropout, features, active.plan)
    if problem:
        raise TreeUnsupported(layer=type(module).__name__, reason=problem)
    active.layers += 1
    active.sees(features.get("sliding_window"))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out_BHTD = tree_attention(query, key, value, plan=active.plan, scaling=scale)
    return out_BHTD.transpose(1, 2).contiguous(), None


def _problem(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float,
    features: dict[str, Any],
    plan: TreePlan,
) -> str | None:
    """Why this call is not plain causal softmax attention over one pack, or None."""
    window = features.get("sliding_window")
    if query.device.type != "cpu":
        return f"tree attention runs on the CPU, the model is on {query.device.type}"
    if query.shape[0] != 1 or query.shape[2] != plan.num_tokens or key.shape[2] != plan.num_tokens:
        return (
            f"a plan of {plan.num_tokens} tokens met queries {tuple(query.shape)} and keys {tuple(key.shape)}"
        )
    if attention_mask is not None:
        return "an attention mask of its own"
    if dropout > 0:
        return f"attention dropout {dropout}: no two branches would see the same prefix"
    if window is not None and window < plan.longest_path:
        return f"a sliding window of {window} is shorter than the longest path of {plan.longest_path} tokens"
    if features.get("is_causal", getattr(module, "is_causal", True)) is False:
        return "attention that is not causal"
    for name in ("softcap", "s_aux", "sinks", "position_bias"):
        if features.get(name) is not None:
            return f"attention with {name}"
    return None


def _no_mask(*, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> None:
    """Stands in for transformers' mask builders: the plan is the mask, if the model wants a causal one."""
    active = _ACTIVE.get()
    if use_vmap:
        raise TreeUnsupported(reason="a mask function of the model's own")
    if active is not None:
        active.sees(local_size)
    if active is not None and local_size is not None and local_size < active.plan.longest_path:
        longest = active.plan.longest_path
        raise TreeUnsupported(
            reason=f"local attention of {local_size} is shorter than the longest path of {longest} tokens"
        )


AttentionInterface.register(NAME, _attention_forward)
AttentionMaskInterface.register(NAME, _no_mask)
