"""Groups -> what one step trains: whole groups, the credit of each, and the tokens that it weighs.

A step takes whole groups. However large a group is, it is trained in one step, so no limit cuts its gradient
in two; micro-batches, not steps, are what bounds memory.
"""

# T tokens of a row

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.shards.views import Ownership
from tracestore.train.credit import advantages, counted
from tracestore.train.credit.base import Advantages, Context, combine
from tracestore.train.forest import Forest, Targets, forest, trainable_targets, trained_targets, unit
from tracestore.train.loader import Group

OldLogprobs = Callable[[Forest], np.ndarray | None]
"""float64 [T] to compare with instead of the recorded ones; None: the recorded ones."""


@dataclass(frozen=True)
class Filling:
    """How many groups a step takes."""

    groups_per_step: int | None = None
    """None: as many as `max_tokens_per_step` has room for, and at least one."""
    max_tokens_per_step: int = 32_768
    """Distinct tokens that are computed, where `groups_per_step` is None."""
    refill: bool = False
    """Leave out groups in which every advantage is 0 and take others in their place."""


@dataclass(frozen=True)
class Grown:
    """A group as forests, one for each part."""

    group: Group
    forests: tuple[Forest, ...]

    @property
    def num_tokens(self) -> int:
        """Distinct tokens that a step computes for it."""
        wanted = ((grown, trainable_targets(grown)) for grown in self.forests)
        return sum(unit(grown, targets).num_tokens for grown, targets in wanted if len(targets))


@dataclass(frozen=True)
class Filled:
    """The groups of one step."""

    groups: tuple[Grown, ...]
    left_out: tuple[Group, ...]
    """Those that came since the step before and were replaced by others, since they have no spread."""


@dataclass(frozen=True)
class Batch:
    """What one step trains."""

    groups: tuple[Group, ...]
    work: tuple[tuple[Forest, Targets], ...]
    notes: Mapping[str, int]
    """Counted in these groups: what the rule noted, trained_tokens_without_advantage, rows_without_targets,
    stale_tokens."""


def grow(group: Group) -> Grown:
    """The group as forests."""
    return Grown(group, tuple(forest(row, shard=shard) for shard, row in group.rows))


def fresh(grown: Forest, oldest_version: int) -> Forest:
    """The forest in which tokens of policy versions before `oldest_version` do not train.

    A version that is unknown is not too old.
    """
    reason_T = grown.row.reason.copy()
    for run in grown.row.policy_runs:
        if run.version is not None and run.version < oldest_version:
            part = reason_T[run.start : run.start + run.length]
            part[part == Reason.TRAINED] = Reason.STALE
    return replace(grown, row=replace(grown.row, reason=reason_T))


def filled(
    groups: Iterable[Grown],
    filling: Filling,
    *,
    rule: str,
    context: Context,
    across_epochs: bool = False,
    give_up_after: int | None = None,
) -> Iterator[Filled]:
    """Groups in order, put into steps in order; what is left at the end is a smaller step.

    Args:
        across_epochs: whether a step takes groups of two epochs: those of an export that goes on are its
            entries, in which no group comes twice. Otherwise what is left of an epoch is a smaller step.
        context: whether a group has spread is asked with it, for every step.
        give_up_after: end when so many groups in a row had no spread.
    """
    waiting: list[Grown] = []
    left_out: list[Group] = []
    tokens = in_a_row = 0

    def taken() -> Filled:
        nonlocal waiting, left_out, tokens
        made = Filled(tuple(waiting), tuple(left_out))
        waiting, left_out, tokens = [], [], 0
        return made

    for one in groups:
        if filling.refill and not _has_spread(one, rule, context):
            left_out.append(one.group)
            in_a_row += 1
            if in_a_row == give_up_after:
                break
            continue
        in_a_row = 0
        if waiting and not across_epochs and waiting[-1].group.after.epoch != one.group.after.epoch:
            yield taken()
        if filling.groups_per_step is None:
            more = one.num_tokens
            if waiting and tokens + more > filling.max_tokens_per_step:
                yield taken()
            tokens += more
        waiting.append(one)
        if len(waiting) == filling.groups_per_step:
            yield taken()
    if waiting or left_out:
        yield taken()


def _has_spread(one: Grown, rule: str, context: Context) -> bool:
    # What its depths weigh in a batch makes no advantage 0.
    context = replace(context, batch_counts=counted((grown.row for grown in one.forests), rule=rule))
    return any(
        np.any(value)
        for grown in one.forests
        for value in advantages(grown.row, rule=rule, context=context).values.values()
    )


def credited(
    groups: tuple[Grown, ...],
    *,
    rule: str,
    context: Context,
    ownership: Ownership,
    old_logprobs: OldLogprobs = lambda grown: None,
    oldest_version: int | None = None,
) -> Batch:
    """The batch of a step: credit on whole groups, spread over the tokens that several samples share.

    Args:
        context: its `batch_counts` are counted here, over these groups.
        oldest_version: tokens of earlier policy versions do not train; None: all of them may.

    Raises:
        MissingLogprobs: a token that trains has nothing to compare with.
        NonFiniteCredit, and what else the rule raises.
    """
    work, notes = [], Counter[str]()
    rows = (grown.row for one in groups for grown in one.forests)
    context = replace(context, batch_counts=counted(rows, rule=rule))
    for one in groups:
        for read in one.forests:
            grown = read if oldest_version is None else fresh(read, oldest_version)
            notes["stale_tokens"] += read.row.num_trained - grown.row.num_trained
            given = advantages(grown.row, rule=rule, context=context)
            credit = combine(grown.row, given, ownership=ownership)
            targets = trained_targets(grown, credit, old_logprob_T=old_logprobs(grown))
            notes.update(_notes(grown.row, given, len(targets)))
            work.append((grown, targets))
    return Batch(tuple(one.group for one in groups), tuple(work), +notes)


def _notes(row: Row, given: Advantages, targets: int) -> Counter[str]:
    notes = Counter(given.notes) if row.part == 0 else Counter[str]()  # every part has the whole header
    notes["trained_tokens_without_advantage"] += row.num_trained - targets
    notes["rows_without_targets"] += targets == 0
    return notes


def credit_digest(batch: Batch) -> str:
    """Equal for batches that train the same tokens with the same advantages, to six digits: machines of
    another kind round the last ones in another way."""
    digest = hashlib.sha256()
    for grown, targets in batch.work:
        digest.update(f"{grown.shard}:{grown.row.group_id}:{grown.row.part}".encode())
        digest.update(targets.token_N.tobytes())
        sums = (targets.plus_N.sum(), targets.minus_N.sum())
        digest.update(" ".join(f"{total:.6g}" for total in sums).encode())
    return digest.hexdigest()[:16]
