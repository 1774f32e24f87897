"""Row -> packed tensors: ids, positions, the predecessor of every token, and what the loss does with each.

The arrow of this module: samples -> forest -> pack. A forest is one row as arrays. A unit is the part of a
forest that one forward pass computes: a set of segments closed under parents, each cut behind the last token
that something still needs. A pack is units side by side, as tensors.

The targets of a unit are tokens whose logprob is wanted. A token needs its predecessor and the path before
it, never itself: the last sampled token of a leaf is a target but no input.
"""

# T tokens of a row or of a pack, S segments of a row, U segments of a unit, N targets, P their predecessors

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from tracestore.errors import TracestoreError
from tracestore.shards.reasons import Reason
from tracestore.shards.row import CallEntry, Row
from tracestore.shards.views import forest_view
from tracestore.train.attention import TreePlan, tree_plan
from tracestore.train.credit.base import TokenCredit


class MissingLogprobs(TracestoreError):
    """A trained token has no recorded logprob."""


@dataclass(frozen=True)
class Forest:
    """One row as arrays over its tokens and segments."""

    row: Row
    previous_T: np.ndarray
    """int64 [T], the token before each on its path, on the row's token axis; -1 for a root's first token."""
    position_T: np.ndarray
    """int64 [T], tokens before it on its path."""
    segment_T: np.ndarray
    """int64 [T]."""
    owner_S: np.ndarray
    """int64 [S], first sample whose chain holds the segment's completion; -1 where nothing was sampled."""
    shard: str
    """File the row was read from; "" for a row made in memory."""
    temperature: float | None = None
    """What logits are divided by, whatever a token was sampled at; None: as it was."""

    @property
    def num_tokens(self) -> int:
        return len(self.row.token_ids)

    @cached_property
    def completion_T(self) -> np.ndarray:
        """int64 [T], index into the row's completions; -1 where not sampled."""
        completions: np.ndarray = self.row.segments.completion.astype(np.int64)[self.segment_T]
        return completions

    @cached_property
    def temperature_T(self) -> np.ndarray:
        """float64 [T], what logits are divided by: as in sampling, so that a logprob compares to the recorded
        one."""
        sampled_T = self._of_call_T(_temperature, 1.0)
        return sampled_T if self.temperature is None else np.full_like(sampled_T, self.temperature)

    @cached_property
    def is_comparable_T(self) -> np.ndarray:
        """bool [T], False where the recorded logprob was renormalised in a way that is not recorded, or at
        another temperature."""
        sampled_T = self._of_call_T(_temperature, 1.0)
        is_known_T = self._of_call_T(_is_comparable, 1.0).astype(bool)
        comparable_T: np.ndarray = is_known_T & (sampled_T == self.temperature_T)
        return comparable_T

    @cached_property
    def logprob_T(self) -> np.ndarray:
        """float64 [T], as recorded; NaN where none is, or where it is no finite number."""
        if self.row.logprobs is None:
            return np.full(self.num_tokens, np.nan)
        known = self.row.has_logprob & np.isfinite(self.row.logprobs)
        return np.where(known, self.row.logprobs.astype(np.float64), np.nan)

    def _of_call_T(self, value_of: Callable[[CallEntry], float], unsampled: float) -> np.ndarray:
        calls = self.row.calls
        values = [value_of(calls[completion.call]) for completion in self.row.completions]
        of_call_T: np.ndarray = np.asarray([*values, unsampled], dtype=np.float64)[self.completion_T]
        return of_call_T


def forest(row: Row, *, shard: str = "") -> Forest:
    """The row's forest. Raises BrokenForest when its segments are out of depth-first order."""
    view = forest_view(row)
    segments = row.segments
    previous_T = np.arange(-1, len(row.token_ids) - 1, dtype=np.int64)
    parent, start = segments.parent.astype(np.int64), segments.start
    last_of_parent = start[parent] + segments.length[parent] - 1
    previous_T[start] = np.where(parent >= 0, last_of_parent, -1)
    return Forest(
        row=row,
        previous_T=previous_T,
        position_T=view.position.astype(np.int64),
        segment_T=view.segment_of.astype(np.int64),
        owner_S=view.owner.astype(np.int64),
        shard=shard,
    )


def _temperature(call: CallEntry) -> float:
    is_scaled = call.logprobs_are == "processed" and call.temperature is not None and call.temperature > 0
    return call.temperature if is_scaled and call.temperature is not None else 1.0


def _is_comparable(call: CallEntry) -> bool:
    """Raw logprobs always compare; processed ones when the temperature is known and nothing was cut off."""
    if call.logprobs_are != "processed":
        return True
    keeps_all = call.top_p in (None, 1.0) and call.top_k in (None, 0, -1)
    return keeps_all and call.temperature is not None and call.temperature > 0


@dataclass(frozen=True)
class Targets:
    """Tokens of a forest whose logprob is wanted, ascending, and the advantages that weigh them in a loss."""

    token_N: np.ndarray
    """int64 [N], on the row's token axis; every one has a predecessor."""
    plus_N: np.ndarray
    """float64 [N], see `TokenCredit`."""
    minus_N: np.ndarray
    """float64 [N]."""
    old_logprob_N: np.ndarray
    """float64 [N], the denominator of the importance ratio; NaN where unknown."""
    more: Mapping[str, np.ndarray] = field(default_factory=dict)
    """float64 [N] each, what else a loss was given: `share`, what a target weighs in the sum that the step's
    denominator divides (without it: 1); `term`, what divergence and entropy weigh there, g / K under
    `tree_mean` (without it: 1); `reference`, logprobs of the reference model; `value`, `slope`,
    `ratio` and `is_clipped` of a coupled loss, see `tracestore.train.losses.base.linear`; `return` and
    `value_before`, what a critic should have said before the token (NaN: unknown) and what it said."""

    def __len__(self) -> int:
        return len(self.token_N)

    def where(self, keep_N: np.ndarray) -> Targets:
        """The targets at which `keep_N` (bool [N]) holds."""
        return Targets(
            self.token_N[keep_N],
            self.plus_N[keep_N],
            self.minus_N[keep_N],
            self.old_logprob_N[keep_N],
            {name: values[keep_N] for name, values in self.more.items()},
        )

    def given(self, **more: np.ndarray) -> Targets:
        """The same targets with something else that a loss needs."""
        return replace(self, more={**self.more, **more})


def trained_targets(
    forest: Forest, credit: TokenCredit, *, old_logprob_T: np.ndarray | None = None
) -> Targets:
    """Tokens that the shard trains and the rule gave an advantage, zero included.

    Args:
        old_logprob_T: float64 [T]; without it, the recorded logprobs.

    Raises:
        MissingLogprobs: one of them has no recorded logprob to compare with.
    """
    token_N = np.flatnonzero((forest.row.reason == Reason.TRAINED) & credit.has_T & (forest.previous_T >= 0))
    old_T = forest.logprob_T if old_logprob_T is None else old_logprob_T
    missing_N = token_N[np.isnan(old_T[token_N])]
    if len(missing_N):
        completion = forest.row.completions[forest.completion_T[missing_N[0]]]
        raise MissingLogprobs(
            group_id=forest.row.group_id,
            call_id=forest.row.calls[completion.call].call_id,
            tokens=len(missing_N),
            hint="recorded without any: train with recomputed old logprobs (--old-logprobs recomputed)",
        )
    return Targets(token_N, credit.plus_T[token_N], credit.minus_T[token_N], old_T[token_N])


def trainable_targets(forest: Forest) -> Targets:
    """Every token that the shard trains, whatever its credit."""
    token_N = np.flatnonzero((forest.row.reason == Reason.TRAINED) & (forest.previous_T >= 0))
    zero_N = np.zeros(len(token_N))
    return Targets(token_N, zero_N, zero_N, forest.logprob_T[token_N])


def recorded_targets(forest: Forest) -> Targets:
    """Every sampled token with a finite recorded logprob, trained or not."""
    is_recorded_T = (forest.completion_T >= 0) & (forest.previous_T >= 0) & np.isfinite(forest.logprob_T)
    token_N = np.flatnonzero(is_recorded_T)
    zero_N = np.zeros(len(token_N))
    return Targets(token_N, zero_N, zero_N, forest.logprob_T[token_N])


@dataclass(frozen=True)
class Unit:
    """What one forward pass computes of one forest."""

    forest: Forest
    targets: Targets
    segment_U: np.ndarray
    """int64 [U], the row's segments, ascending, parents included."""
    length_U: np.ndarray
    """int64 [U], tokens of each that are computed."""

    @property
    def num_tokens(self) -> int:
        return int(self.length_U.sum())


def unit(forest: Forest, targets: Targets) -> Unit:
    """The tokens that the targets need: their predecessors, and all before those on their paths."""
    segments = forest.row.segments
    needed_S = np.zeros(len(segments), dtype=np.int64)
    previous_N = forest.previous_T[targets.token_N]
    at_N = forest.segment_T[previous_N]
    np.maximum.at(needed_S, at_N, previous_N - segments.start[at_N] + 1)
    for segment in range(len(segments) - 1, -1, -1):
        parent = segments.parent[segment]
        if needed_S[segment] and parent >= 0:
            needed_S[parent] = segments.length[parent]
    segment_U = np.flatnonzero(needed_S)
    return Unit(forest=forest, targets=targets, segment_U=segment_U, length_U=needed_S[segment_U])


@dataclass(frozen=True)
class Pack:
    """Units side by side as tensors, ready for one forward pass."""

    units: tuple[Unit, ...]
    plan: TreePlan
    input_ids_T: torch.Tensor
    """int64 [T]."""
    position_ids_T: torch.Tensor
    """int64 [T]."""
    logit_P: torch.Tensor
    """int64 [P], tokens of the pack at which logits are wanted, ascending, each once."""
    which_N: torch.Tensor
    """int64 [N], index into `logit_P` of each target's predecessor."""
    target_N: torch.Tensor
    """int64 [N], token ids."""
    temperature_N: torch.Tensor
    """float64 [N]."""
    old_logprob_N: torch.Tensor
    """float64 [N]."""
    plus_N: torch.Tensor
    """float64 [N]."""
    minus_N: torch.Tensor
    """float64 [N]."""
    more: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """float64 [N] each, see `Targets`."""

    @property
    def share_N(self) -> torch.Tensor:
        """float64 [N], what each target weighs in the sum that the step's denominator divides."""
        return self.more["share"] if "share" in self.more else torch.ones_like(self.plus_N)

    @property
    def num_tokens(self) -> int:
        return self.plan.num_tokens

    @property
    def num_targets(self) -> int:
        return len(self.target_N)


def pack(units: Sequence[Unit], *, device: torch.device | str = "cpu") -> Pack:
    """Units one behind the other, each with its targets, in order."""
    parents: list[int] = []
    lengths: list[int] = []
    ids, positions, previous = [], [], []
    first_token = 0
    for one in units:
        row, first_segment = one.forest.row, len(parents)
        place_S = np.full(len(row.segments), -1, dtype=np.int64)
        place_S[one.segment_U] = np.arange(len(one.segment_U)) + first_segment
        parent_U = row.segments.parent[one.segment_U]
        parents += np.where(parent_U >= 0, place_S[parent_U], -1).tolist()
        lengths += one.length_U.tolist()
        token_T = np.concatenate(
            [
                np.arange(start, start + length)
                for start, length in zip(row.segments.start[one.segment_U], one.length_U, strict=True)
            ]
        )
        ids.append(row.token_ids[token_T])
        positions.append(one.forest.position_T[token_T])
        # token_T ascends, so the place of a predecessor in the pack is where it would be inserted.
        previous_N = one.forest.previous_T[one.targets.token_N]
        previous.append(np.searchsorted(token_T, previous_N) + first_token)
        first_token += len(token_T)
    logit_P, which_N = np.unique(np.concatenate(previous), return_inverse=True)

    def over_targets(values: list[np.ndarray], dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(np.concatenate(values)).to(device=device, dtype=dtype)

    targets = [(one.forest, one.targets) for one in units]
    return Pack(
        units=tuple(units),
        plan=tree_plan(parents, lengths),
        input_ids_T=over_targets(ids, torch.int64),
        position_ids_T=over_targets(positions, torch.int64),
        logit_P=torch.as_tensor(logit_P, device=device),
        which_N=torch.as_tensor(which_N.reshape(-1), device=device),
        target_N=over_targets([f.row.token_ids[t.token_N] for f, t in targets], torch.int64),
        temperature_N=over_targets([f.temperature_T[t.token_N] for f, t in targets], torch.float64),
        old_logprob_N=over_targets([t.old_logprob_N for _, t in targets], torch.float64),
        plus_N=over_targets([t.plus_N for _, t in targets], torch.float64),
        minus_N=over_targets([t.minus_N for _, t in targets], torch.float64),
        more={
            name: over_targets([t.more[name] for _, t in targets], torch.float64)
            for name in targets[0][1].more
        },
    )
