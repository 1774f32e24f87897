"""What every credit rule takes and gives, the group statistics they share, and how samples share a token."""

# T tokens of a row

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracestore.errors import TracestoreError
from tracestore.shards.rewards import reward_terms
from tracestore.shards.row import Row
from tracestore.shards.views import Ownership, survivors, weights

Value = float | np.ndarray
"""One number for all tokens of a completion, or float64 [tokens of the completion]."""


class NonFiniteCredit(TracestoreError):
    """A composed reward or an advantage is no finite number."""


class WrongLength(TracestoreError):
    """A rule gave a completion another number of advantages than it has tokens."""


@dataclass(frozen=True)
class Context:
    """What a rule may depend on besides the row."""

    step: int = 0
    """Optimizer step, for annealed terms."""
    pass_k: int | None = None
    """Of how many attempts the best one counts, for `pkpo`."""


@dataclass(frozen=True)
class Advantages:
    """What a rule gives: per sample, an advantage for each completion of its chain."""

    rule: str
    values: Mapping[tuple[int, int], Value]
    """(sample, completion) -> advantage. A pair that is missing has no advantage, which is not 0: it is not
    trained and not counted in a denominator."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """Counted on the way: ungraded_episodes, excluded_episodes, groups_without_spread, singleton_groups,
    groups_smaller_than_k."""


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


def episode_rewards(row: Row, episodes: Iterable[int]) -> dict[int, float]:
    """Sum of each episode's `reward_terms`, in order, ungraded episodes left out.

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
    groups = peer_groups(row)
    given: dict[int, float] = {}
    notes = {
        "excluded_episodes": len(row.episodes) - sum(map(len, groups)),
        "ungraded_episodes": 0,
        "singleton_groups": 0,
        "groups_without_spread": 0,
    }
    for group in groups:
        rewards = episode_rewards(row, group)
        notes["ungraded_episodes"] += len(group) - len(rewards)
        values = list(rewards.values())
        if not values:
            continue
        if len(values) == 1:
            notes["singleton_groups"] += 1
        elif max(values) == min(values):
            notes["groups_without_spread"] += 1
        if max(values) == min(values):
            shares = [0.0] * len(values)
        else:
            shares = finite(advantage, values, group_id=row.group_id, hint="scale the group's rewards down")
        given.update(zip(rewards, shares, strict=True))
    return on_every_completion(row, given, rule=rule, notes=notes)


def on_every_completion(
    row: Row, given: Mapping[int, float], *, rule: str, notes: Mapping[str, int]
) -> Advantages:
    """One scalar per episode, on every completion of every sample of it; episodes in none have none."""
    return Advantages(
        rule=rule,
        values={
            (index, completion): given[sample.episode]
            for index, sample in enumerate(row.samples)
            if sample.episode in given
            for completion in sample.completions
        },
        notes={name: count for name, count in notes.items() if count},
    )
