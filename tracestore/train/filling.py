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

from tracestore.shards.pairs import pairs
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.shards.views import Ownership, weights
from tracestore.train.credit import advantages, counted
from tracestore.train.credit.base import Advantages, Context, combine, returns
from tracestore.train.forest import Forest, Targets, forest, trainable_targets, trained_targets, unit
from tracestore.train.loader import Group
from tracestore.train.losses.denominators import Denominator, Work, shared_out
from tracestore.train.losses.dpo import suffixes

TOKENS = Denominator()
Values = Callable[[Forest], np.ndarray | None]
"""float64 [T], what a critic says before each token; None: there is no critic."""
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
    work: tuple[Work, ...]
    denominator: int
    """What the sum of the step's losses is divided by."""
    notes: Mapping[str, int]
    """Counted in these groups: what the rule noted, trained_tokens_without_advantage, rows_without_targets,
    stale_tokens; of truncated importance sampling tokens_over_importance_cap and
    tokens_without_importance_weight; of dpo what `tracestore.shards.pairs.pairs` says."""

    margins: tuple[float, ...] = ()
    """dpo: of each pair, how much more the model than the reference prefers the chosen one."""

    @property
    def num_targets(self) -> int:
        return sum(len(targets) for _, targets in self.work)

    @property
    def preferred(self) -> float | None:
        """Share of pairs whose chosen member the model prefers more than the reference; None: no pairs."""
        return sum(margin > 0 for margin in self.margins) / len(self.margins) if self.margins else None


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
    denominator: Denominator = TOKENS,
    old_logprobs: OldLogprobs = lambda grown: None,
    values: Values = lambda grown: None,
    oldest_version: int | None = None,
    importance_cap: float | None = None,
) -> Batch:
    """The batch of a step: credit on whole groups, spread over the tokens that several samples share.

    Args:
        context: its `batch_counts` are counted here, over these groups, and its `values` come from `values`.
        values: with a critic, targets get `return` and `value_before`.
        oldest_version: tokens of earlier policy versions do not train; None: all of them may.
        importance_cap: see `truncated`; None: no such weights.

    Raises:
        MissingLogprobs: a token that trains has nothing to compare with.
        NonFiniteCredit, and what else the rule raises.
    """
    work, notes = [], Counter[str]()
    rows = (grown.row for one in groups for grown in one.forests)
    context = replace(context, batch_counts=counted(rows, rule=rule))
    for one in groups:
        of_group: list[Work] = []
        for grown in _fresh(one, oldest_version, notes):
            value_T = values(grown)
            given = advantages(grown.row, rule=rule, context=replace(context, values=value_T))
            credit = combine(grown.row, given, ownership=ownership)
            targets = trained_targets(grown, credit, old_logprob_T=old_logprobs(grown))
            notes.update(_notes(grown.row, given, len(targets)))
            if ownership == "tree_mean":  # in the advantages already, not in what stands beside them
                targets = targets.given(term=weights(grown.row, ownership)[targets.token_N])
            if value_T is not None:
                return_T = returns(grown.row, given)
                token_N = targets.token_N
                targets = targets.given(**{"return": return_T[token_N], "value_before": value_T[token_N]})
            if importance_cap is not None:
                targets = truncated(grown, targets, cap=importance_cap, notes=notes)
            of_group.append((grown, targets))
        work.append(of_group)
    return _batch(groups, work, denominator, notes)


def supervised(
    groups: tuple[Grown, ...],
    *,
    ownership: Ownership,
    denominator: Denominator = TOKENS,
    oldest_version: int | None = None,
) -> Batch:
    """The batch of a step that trains all that the shard trains, without rewards, at temperature 1."""
    work, notes = [], Counter[str]()
    for one in groups:
        of_group: list[Work] = []
        for fresh_one in _fresh(one, oldest_version, notes):
            grown = replace(fresh_one, temperature=1.0)
            weight_T = weights(grown.row, ownership)
            targets = _plain(grown, np.flatnonzero((weight_T > 0) & (grown.previous_T >= 0)))
            of_group.append((grown, replace(targets, plus_N=weight_T[targets.token_N])))
            notes["rows_without_targets"] += not len(targets)
        work.append(of_group)
    return _batch(groups, work, denominator, notes)


def paired(groups: tuple[Grown, ...], *, oldest_version: int | None = None) -> Batch:
    """The batch of a step that trains the pairs of its candidate sets, at temperature 1; divided by pairs."""
    work: list[Work] = []
    notes = Counter[str]()
    count = 0
    for one in groups:
        for fresh_one in _fresh(one, oldest_version, notes):
            grown = replace(fresh_one, temperature=1.0)
            found = list(pairs(grown.row, notes))
            count += len(found)
            in_a_pair_T = np.zeros(grown.num_tokens, dtype=bool)
            for pair in found:
                for token_index in suffixes(pair):
                    in_a_pair_T[token_index] = True
            work.append((grown, _plain(grown, np.flatnonzero(in_a_pair_T))))
            notes["rows_without_targets"] += not found
    return Batch(tuple(one.group for one in groups), tuple(work), count, +notes)


def truncated(grown: Forest, targets: Targets, *, cap: float, notes: Counter[str]) -> Targets:
    """Advantages times min(pi_old / pi_recorded, cap): what the sampler made likelier than we do weighs less.

    pi_old is the trainer's policy before step one (`old_logprobs: recomputed`), pi_recorded what the sampler
    said. The weight is no function of the weights that train; denominators do not change. A token whose
    recorded logprob is unknown or cannot be compared keeps its weight of 1, and is counted.

    Source: truncated importance sampling, Yao et al., Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training (2025).

    Example: cap 2, old -1; recorded -1.5: e^.5 = 1.6487; recorded -3: min(e^2, 2) = 2; recorded -.5: e^-.5 =
    .6065
    """
    token_N = targets.token_N
    recorded_N = grown.logprob_T[token_N]
    known_N = grown.is_comparable_T[token_N] & np.isfinite(recorded_N)
    log_weight_N = np.where(known_N, targets.old_logprob_N - np.where(known_N, recorded_N, 0.0), 0.0)
    notes["tokens_over_importance_cap"] += int(np.count_nonzero(log_weight_N > np.log(cap)))
    notes["tokens_without_importance_weight"] += int(np.count_nonzero(~known_N))
    weight_N = np.where(known_N, np.exp(np.minimum(log_weight_N, np.log(cap))), 1.0)
    return replace(targets, plus_N=targets.plus_N * weight_N, minus_N=targets.minus_N * weight_N)


def _fresh(one: Grown, oldest_version: int | None, notes: Counter[str]) -> Iterator[Forest]:
    for read in one.forests:
        grown = read if oldest_version is None else fresh(read, oldest_version)
        notes["stale_tokens"] += read.row.num_trained - grown.row.num_trained
        yield grown


def _plain(grown: Forest, token_N: np.ndarray) -> Targets:
    """Targets of a loss without advantages and without a ratio."""
    zero_N, unknown_N = np.zeros(len(token_N)), np.full(len(token_N), np.nan)
    return Targets(token_N, zero_N, zero_N, unknown_N)


def _batch(
    groups: tuple[Grown, ...], work: list[list[Work]], denominator: Denominator, notes: Counter[str]
) -> Batch:
    shared, count = shared_out(work, denominator)
    return Batch(tuple(one.group for one in groups), tuple(shared), count, +notes)


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
