"""Shards -> micro-batches as tensors, for a training loop of one's own.

The groups, the credit and the plan of a step are those of `tracestore train`. A loop that sums a loss over
the targets of a step, and divides it by the step's denominator, has its gradient.
"""

# B rows, T tokens of a row, N targets, V vocabulary

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tracestore.shards.read import Export, open_export
from tracestore.train.attention import TreePlan
from tracestore.train.credit import choose
from tracestore.train.credit.base import Context
from tracestore.train.credit.terms import check_terms
from tracestore.train.engine import computing
from tracestore.train.filling import Filling, credited, filled, grow
from tracestore.train.forest import Pack, pack
from tracestore.train.loader import Loader, Reading
from tracestore.train.loop import NothingToTrain
from tracestore.train.losses.logprobs import token_logprobs
from tracestore.train.plan import Step, chains, planned


@dataclass(frozen=True)
class PlannedStep:
    """What one optimizer step trains."""

    number: int
    """From 0."""
    groups: tuple[str, ...]
    """Ids of its groups, in order."""
    plan: Step
    notes: Mapping[str, int]
    """Counted up to this step, see `docs/training.md`: what was left out, and why."""


@dataclass(frozen=True)
class MicroBatch:
    """What one forward pass computes, and what the loss does with it."""

    step: int
    """Number of the optimizer step it belongs to, from 0."""
    ends_step: bool
    """Whether it is the last of its step: now the optimizer takes it."""
    denominator: int
    """Trained tokens of the whole step, those with advantage 0 included."""
    groups: tuple[str, ...]
    """Ids of the groups of the step."""
    notes: Mapping[str, int]
    """See `PlannedStep`."""
    input_ids_BT: torch.Tensor
    """int64 [B, T]; trees lie side by side in one row."""
    position_ids_BT: torch.Tensor
    """int64 [B, T], tokens before each on its path."""
    attention_mask_BT: torch.Tensor | None
    """int64 [B, T], 0 at what pads a row; None on a tree, see `attention`."""
    plan: TreePlan | None
    """Which tokens a token of the tree sees; None for padded rows."""
    row_N: torch.Tensor
    """int64 [N], the row of each target."""
    previous_N: torch.Tensor
    """int64 [N], the place in that row of the token before it, whose logits say how likely the target was."""
    target_N: torch.Tensor
    """int64 [N], token ids."""
    temperature_N: torch.Tensor
    """float64 [N], what the logits are divided by before they compare to the recorded logprob."""
    old_logprob_N: torch.Tensor
    """float64 [N], the denominator of the importance ratio."""
    plus_N: torch.Tensor
    """float64 [N], what the positive advantages of the samples that share a token sum to, per its weight."""
    minus_N: torch.Tensor
    """float64 [N], the negative ones; the advantage is the sum of both."""

    @contextmanager
    def attention(self, model: Any) -> Iterator[None]:
        """Inside, a forward pass of the model lets every token see its own path and nothing else.

        Raises:
            TreeUnsupported: the model cannot compute this tree. `padded_batches` gives it rows.
        """
        if self.plan is None:
            yield
        else:
            with computing(model, self.plan):
                yield

    def logprobs(self, logits_BTV: torch.Tensor) -> torch.Tensor:
        """[N], log p(target | path before it), with a gradient and without a [N, V] tensor."""
        at_N = self.row_N * self.input_ids_BT.shape[1] + self.previous_N
        return token_logprobs(logits_BTV.flatten(0, 1), at_N, self.target_N, self.temperature_N)


def batches(
    export: Export | str | Path,
    *,
    credit: str = "shared",
    reward_terms: Mapping[str, float] | None = None,
    reading: Reading | None = None,
    filling: Filling | None = None,
    micro_batch_tokens: int = 8_192,
    device: torch.device | str = "cpu",
) -> Iterator[MicroBatch]:
    """The micro-batches of step after step, each shared token once.

    Args:
        export: a folder, a URL, or what `tracestore.shards.read.open_export` gives.
        credit: a rule as `tracestore train --credit` reads it: `rloo`, `rao:lambda=0.4`.
        reward_terms: term of `tracestore.train.credit.terms` -> its weight in every episode's reward.
        reading: which groups, in which order; without it, each once.
        filling: how many groups a step takes.
        micro_batch_tokens: most tokens of one micro-batch; it changes no gradient.

    Raises:
        UnknownRule, BadOption, UnknownTerm: something in the arguments.
        MissingFact, MissingLogprobs, SampleTooLong, NothingToTrain: see `tracestore.train.loop.train`.
        ShardMissing, ShardCorrupt, OtherSchema, PartMissing: see `tracestore.train.loader.Loader.groups`.
    """
    wanted = steps(
        export,
        credit=credit,
        reward_terms=reward_terms,
        reading=reading,
        filling=filling,
        micro_batch_tokens=micro_batch_tokens,
    )
    for step in wanted:
        packs = [pack(units, device=device) for units in step.plan.micro_batches]
        for place, one in enumerate(packs):
            yield _on_tree(one, step, ends_step=place == len(packs) - 1)


def padded_batches(
    export: Export | str | Path,
    *,
    credit: str = "shared",
    reward_terms: Mapping[str, float] | None = None,
    reading: Reading | None = None,
    filling: Filling | None = None,
    micro_batch_tokens: int = 8_192,
    pad_token_id: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[MicroBatch]:
    """The same targets in rows of one path each, padded at their ends, for models that compute no trees.

    A prefix that several rows share is computed in each of them. Rows of like length stand together.

    Args:
        micro_batch_tokens: most tokens of one micro-batch, padding included.
        pad_token_id: stands where a row has ended; nothing depends on it.

    Arguments and errors else as `batches`.
    """
    wanted = steps(
        export,
        credit=credit,
        reward_terms=reward_terms,
        reading=reading,
        filling=filling,
        micro_batch_tokens=micro_batch_tokens,
    )
    for step in wanted:
        paths = (path for units in step.plan.micro_batches for one in units for path in chains(one))
        rows = [pack([path], device=device) for path in paths]
        some = list(_of_like_length(rows, micro_batch_tokens))
        for place, of_batch in enumerate(some):
            yield _padded(of_batch, step, pad_token_id=pad_token_id, ends_step=place == len(some) - 1)


def steps(
    export: Export | str | Path,
    *,
    credit: str = "shared",
    reward_terms: Mapping[str, float] | None = None,
    reading: Reading | None = None,
    filling: Filling | None = None,
    micro_batch_tokens: int = 8_192,
) -> Iterator[PlannedStep]:
    """The steps that `batches` gives as tensors; one in which nothing trains is passed over."""
    choose(credit)
    terms = dict(reward_terms or {})
    check_terms(terms)
    opened = export if isinstance(export, Export) else open_export(str(export))
    reading, context = reading or Reading(), Context(reward_terms=terms)
    many = None if reading.follow else opened.manifest.rows
    notes = Counter[str]()
    number = nothing = 0
    with closing(Loader(opened, reading).groups()) as groups:
        for some in filled(
            map(grow, groups),
            filling or Filling(),
            rule=credit,
            context=context,
            across_epochs=reading.follow,
            give_up_after=many,
        ):
            batch = credited(
                some.groups,
                rule=credit,
                context=replace(context, step=number),
                ownership=opened.manifest.ownership,
            )
            notes.update({"groups_refilled": len(some.left_out), **batch.notes})
            plan = planned(batch.work, micro_batch_tokens=micro_batch_tokens)
            if plan.micro_batches:
                last, names = batch.groups[-1], tuple(group.name.id for group in batch.groups)
                yield PlannedStep(number, names, plan, dict(+(notes + Counter(last.notes))))
                number, nothing = number + 1, 0
            else:
                nothing += len(some.groups)
            if many is not None and nothing >= many:
                break  # of an export without end, too
    if not number:
        hint = "no token that trains has an advantage: are there rewards, and does the spec train anything?"
        raise NothingToTrain(rule=credit, notes=dict(+notes), hint=hint)


def _on_tree(one: Pack, step: PlannedStep, *, ends_step: bool) -> MicroBatch:
    return MicroBatch(
        step=step.number,
        ends_step=ends_step,
        denominator=step.plan.denominator,
        groups=step.groups,
        notes=step.notes,
        input_ids_BT=one.input_ids_T[None],
        position_ids_BT=one.position_ids_T[None],
        attention_mask_BT=None,
        plan=one.plan,
        row_N=torch.zeros_like(one.target_N),
        previous_N=one.logit_P[one.which_N],
        target_N=one.target_N,
        temperature_N=one.temperature_N,
        old_logprob_N=one.old_logprob_N,
        plus_N=one.plus_N,
        minus_N=one.minus_N,
    )


def _of_like_length(rows: Sequence[Pack], most: int) -> Iterator[list[Pack]]:
    """Rows by length, the longest first, together while the padded batch has at most `most` tokens."""
    held: list[Pack] = []
    for row in sorted(rows, key=lambda one: -one.num_tokens):
        if held and (len(held) + 1) * held[0].num_tokens > most:
            yield held
            held = []
        held.append(row)
    if held:
        yield held


def _padded(rows: Sequence[Pack], step: PlannedStep, *, pad_token_id: int, ends_step: bool) -> MicroBatch:
    def padded(values: list[torch.Tensor], filler: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=filler)

    return MicroBatch(
        step=step.number,
        ends_step=ends_step,
        denominator=step.plan.denominator,
        groups=step.groups,
        notes=step.notes,
        input_ids_BT=padded([one.input_ids_T for one in rows], pad_token_id),
        position_ids_BT=padded([one.position_ids_T for one in rows], 0),
        attention_mask_BT=padded([torch.ones_like(one.input_ids_T) for one in rows], 0),
        plan=None,
        row_N=torch.cat([torch.full_like(one.target_N, place) for place, one in enumerate(rows)]),
        previous_N=torch.cat([one.logit_P[one.which_N] for one in rows]),
        target_N=torch.cat([one.target_N for one in rows]),
        temperature_N=torch.cat([one.temperature_N for one in rows]),
        old_logprob_N=torch.cat([one.old_logprob_N for one in rows]),
        plus_N=torch.cat([one.plus_N for one in rows]),
        minus_N=torch.cat([one.minus_N for one in rows]),
    )
