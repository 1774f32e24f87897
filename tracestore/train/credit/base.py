"""What every credit rule takes and gives, the group statistics they share, and how samples share a token."""

# T tokens of a row

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracestore.errors import TracestoreError
from tracestore.shards.rewards import reward_terms
from tracestore.shards.row import Row, Sample
from tracestore.shards.views import Ownership, survivors, weights

Value = float | np.ndarray
"""One number for all tokens of a completion, or float64 [tokens of the completion]."""


class NonFiniteCredit(TracestoreError):
    """A composed reward or an advantage is no finite number."""


class WrongLength(TracestoreError):
    """A rule gave a completion another number of advantages than it has tokens."""


class MissingFact(TracestoreError):
    """A credit rule needs a fact that the row does not hold."""


@dataclass(frozen=True)
class Context:
    """What a rule may depend on besides the row."""

    step: int = 0
    """Optimizer step, for annealed terms."""
    batch_counts: Mapping[int, int] | None = None
    """Depth -> trajectories at it in the whole batch, never in a micro-batch: what
    `tracestore.train.credit.counted` says of the batch's rows. None: nobody counted."""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    """Term of `tracestore.train.credit.terms` -> its weight in the reward of every graded episode."""
    values: np.ndarray | None = None
    """float64 [T], a critic's value of the state before each token of the row; None: there is no critic."""


@dataclass(frozen=True)
class Advantages:
    """What a rule gives: per sample, an advantage for each completion of its chain."""

    rule: str
    values: Mapping[tuple[int, int], Value]
    """(sample, completion) -> advantage. A pair that is missing has no advantage, which is not 0: it is not
    trained and not counted in a denominator."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counted on the way: ungraded_episodes, excluded_episodes, groups_without_spread, singleton_groups,
    and what else the rule's module says."""
    returns: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)
    """(sample, completion) -> float64 [tokens of the completion], what a critic should have said there. Empty
    for a rule without a critic."""


@dataclass(frozen=True)
class TokenCredit:
    """Advantages on the row's token axis, shared tokens counted once."""

    plus_T: np.ndarray
    """float64 [T], mean over the samples through the token of max(A, 0), times the token's weight."""
    minus_T: np.ndarray
    """float64 [T], mean over the samples through the token of min(A, 0), times the token's weight."""
    has_T: np.ndarray
    """bool [T], False: no sample through the token has an advantage."""


def combine(row: Row, advantages: Advantages, *, ownership: Ownership = "train_once") -> TokenCredit:
    """The advantage of each token, over the samples that it belongs to and that train.

    A sample goes through a token when the token's completion is in the sample's chain; a token that a sample
    merely reads is not its own. What a shared token weighs is `tracestore.shards.views.weights`. Clipped
    losses need both parts: under a clip, +1 and -1 do not cancel.

    Example: advantages +1, -1, -1, -1 of four samples through one token -> plus 0.25, minus -0.75

    Raises:
        WrongLength: an array of advantages is not as long as its completion.
    """
    num_tokens = len(row.token_ids)
    plus_T, minus_T = np.zeros(num_tokens), np.zeros(num_tokens)
    has_T = np.zeros(num_tokens, dtype=bool)
    through: dict[int, list[Value]] = {}
    survives_M = survivors(row)
    for (sample, completion), value in advantages.values.items():
        if survives_M[sample]:
            through.setdefault(completion, []).append(_checked(row, completion, value, advantages.rule))
    done: dict[int, int] = {}
    for start, length, completion in zip(
        row.segments.start.tolist(),
        row.segments.length.tolist(),
        row.segments.completion.tolist(),
        strict=True,
    ):
        if completion not in through:
            continue
        # A fork inside a completion cuts it into segments; they follow each other in the row's order.
        offset = done.get(completion, 0)
        done[completion] = offset + length
        run = [v if isinstance(v, float) else v[offset : offset + length] for v in through[completion]]
        tokens = slice(start, start + length)
        plus_T[tokens] = sum(np.maximum(v, 0.0) for v in run) / len(run)
        minus_T[tokens] = sum(np.minimum(v, 0.0) for v in run) / len(run)
        has_T[tokens] = True
    weight_T = weights(row, ownership, survives=survives_M)
    return TokenCredit(plus_T=plus_T * weight_T, minus_T=minus_T * weight_T, has_T=has_T)


def returns(row: Row, advantages: Advantages) -> np.ndarray:
    """float64 [T], what a critic should have said before each token: the mean over the samples through it
    that train; NaN where the rule names none.

    Raises:
        WrongLength: an array of returns is not as long as its completion.
    """
    return_T = np.full(len(row.token_ids), np.nan)
    survives_M = survivors(row)
    through: dict[int, list[np.ndarray]] = {}
    for (sample, completion), value in advantages.returns.items():
        if survives_M[sample]:
            checked = np.asarray(_checked(row, completion, value, advantages.rule))
            through.setdefault(completion, []).append(checked)
    for completion, found in through.items():
        # A fork inside a completion cuts it into segments; they follow each other in the row's order.
        at_T = np.repeat(row.segments.completion == completion, row.segments.length)
        return_T[at_T] = np.mean(found, axis=0)
    return return_T


def _checked(row: Row, completion: int, value: Value, rule: str) -> Value:
    """The value, an array only if it has one advantage for each token of the completion."""
    entry = row.completions[completion]
    if not isinstance(value, float) and len(value) != entry.num_tokens:
        call_id = row.calls[entry.call].call_id
        raise WrongLength(rule=rule, call_id=call_id, tokens=entry.num_tokens, advantages=len(value))
    return value


def finite(
    compute: Callable[[Sequence[float]], list[float]],
    numbers: Sequence[float],
    *,
    hint: str,
    **where: str | None,
) -> list[float]:
    """What `compute` makes of `numbers`, all of it finite.

    Raises:
        NonFiniteCredit: naming `where`, when a number overflowed or was not finite to begin with.
    """
    try:
        values = compute(numbers)
    except (OverflowError, ValueError) as error:  # fsum: finite terms with no finite sum; inf beside -inf
        raise NonFiniteCredit(**where, problem=str(error), hint=hint) from error
    if not all(map(math.isfinite, values)):
        raise NonFiniteCredit(**where, values=values, hint=hint)
    return values


def mean(values: Sequence[float]) -> float:
    """The mean; of equal values exactly their value, where a sum of three 0.1 over 3 is another number."""
    return values[0] if max(values) == min(values) else math.fsum(values) / len(values)


def std(values: Sequence[float], *, ddof: int) -> float:
    """The standard deviation, sqrt(sum (v - mean)^2 / (n - ddof)); exactly 0 for equal values."""
    if max(values) == min(values):
        return 0.0
    center = mean(values)
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - ddof))


def episode_rewards(row: Row, episodes: Iterable[int]) -> dict[int, float]:
    """Sum of each episode's `reward_terms`, in order, ungraded episodes left out.

    An episode that ran out of its budget without a reward got 0: it has failed, and trains. One that broke is
    in no peer group, so that nobody asks.

    Raises:
        NonFiniteCredit: a sum is no finite number.
    """
    sums: dict[int, float] = {}
    for episode, values in reward_terms(row, episodes).items():
        if values:
            [sums[episode]] = finite(
                lambda some: [math.fsum(some)],
                values,
                group_id=row.group_id,
                episode_id=row.episodes[episode].episode_id,
                hint="correct the episode's rewards or their weights and export again",
            )
        elif row.episodes[episode].status == "budget_exhausted":
            sums[episode] = 0.0
    return sums


def peer_groups(row: Row) -> list[list[int]]:
    """Episodes that are compared with each other.

    The row's own group, and beside it the forks of each origin: a fork shares its origin's history, so it
    is no independent attempt at the task. Episodes that the export left out of the statistics are in none.
    """
    groups: dict[str | None, list[int]] = {}
    for index, episode in enumerate(row.episodes):
        if episode.in_statistics:
            groups.setdefault(episode.forked_from_episode_id, []).append(index)
    return list(groups.values())


def graded_groups(row: Row) -> tuple[list[dict[int, float]], Counter[str]]:
    """Episode -> composed reward for each peer group with a graded episode, and what was left out, counted.

    Raises:
        NonFiniteCredit: a composed reward is no finite number.
    """
    groups = peer_groups(row)
    notes = Counter(excluded_episodes=len(row.episodes) - sum(map(len, groups)))
    graded: list[dict[int, float]] = []
    for group in groups:
        rewards = episode_rewards(row, group)
        notes["ungraded_episodes"] += len(group) - len(rewards)
        if rewards:
            graded.append(rewards)
    return graded, notes


def note_spread(values: Sequence[float], notes: Counter[str]) -> bool:
    """Whether the values of a group differ; counts one alone, or several that are equal."""
    if len(values) == 1:
        notes["singleton_groups"] += 1
    elif max(values) == min(values):
        notes["groups_without_spread"] += 1
    return max(values) != min(values)


def episode_advantages(
    row: Row, *, rule: str, advantage: Callable[[Sequence[float]], list[float]]
) -> Advantages:
    """One scalar per episode, on every completion of every sample of the episode.

    Args:
        advantage: rewards of a group of at least two graded episodes -> their advantages, in order. A group
            whose rewards are all equal gets exactly 0 without asking: r - mean of three 0.1 is -1.4e-17.

    Raises:
        NonFiniteCredit: a composed reward or an advantage is no finite number.
    """
    given, notes = scalars(row, advantage)
    return on_every_completion(row, given, rule=rule, notes=notes)


def scalars(
    row: Row, advantage: Callable[[Sequence[float]], list[float]]
) -> tuple[dict[int, float], Counter[str]]:
    """Episode -> advantage, and what was counted; see `episode_advantages`."""
    groups, notes = graded_groups(row)
    given: dict[int, float] = {}
    for rewards in groups:
        values = list(rewards.values())
        shares = [0.0] * len(values)
        if note_spread(values, notes):
            shares = finite(advantage, values, group_id=row.group_id, hint="scale the group's rewards down")
        given.update(zip(rewards, shares, strict=True))
    return given, notes


def on_every_completion(
    row: Row, given: Mapping[int, float], *, rule: str, notes: Mapping[str, int]
) -> Advantages:
    """One scalar per episode, on every completion of every sample of it; episodes in none have none."""
    return on_samples(row, lambda sample: given.get(sample.episode), rule=rule, notes=notes)


def on_samples(
    row: Row, given: Callable[[Sample], float | None], *, rule: str, notes: Mapping[str, int]
) -> Advantages:
    """One scalar per sample, on every completion of its chain; None: it has none."""
    found = [given(sample) for sample in row.samples]
    return Advantages(
        rule=rule,
        values={
            (index, completion): value
            for index, (sample, value) in enumerate(zip(row.samples, found, strict=True))
            if value is not None
            for completion in sample.completions
        },
        notes={name: count for name, count in notes.items() if count},
    )
