"""Generalized advantage estimation over what an agent sampled, and the order in which it sampled it.

    delta_i = reward_i + gamma * V_{i+1} - V_i        A_i = delta_i + gamma * lambda * A_{i+1}

over trained tokens alone: prompts, tool results and excluded tokens are no steps. V after the last one is 0.

Source: Schulman et al., High-Dimensional Continuous Control Using GAE (arXiv 1506.02438).
"""

# T tokens of a row, N trained tokens of a run of completions, B tokens of a block

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from tracestore.errors import TracestoreError
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.train.credit.base import Context, MissingFact
from tracestore.train.credit.options import Options

_BLOCK = 64
_AHEAD_BB = np.arange(_BLOCK)[:, None] - np.arange(_BLOCK)[None, :]
"""int64 [B, B], how many tokens the first lies behind the second."""


class NoSequence(TracestoreError):
    """What an agent sampled is no sequence, so that no advantage can run along it."""


class MissingValues(TracestoreError):
    """A rule with a critic got no values."""

    exit_code = 2


class Critic(Options):
    """Options of the rules that run along time."""

    gamma: float = Field(1.0, ge=0, le=1)
    critic: Literal["values", "zero"] = "values"
    """values: V of `Context.values`, which must be there; zero: V is 0, as a user says who has no critic."""


@dataclass(frozen=True)
class Turn:
    """A completion of an agent, and its trained tokens."""

    completion: int
    samples: tuple[int, ...]
    """Those whose chain holds it."""
    token_N: np.ndarray
    """int64 [tokens of the completion], each on the row's token axis."""
    is_trained_N: np.ndarray
    """bool [tokens of the completion]."""


def gae(reward_N: np.ndarray, value_N: np.ndarray, *, gamma: float, lambda_: float) -> np.ndarray:
    """float64 [N], the advantage of each step; the module has the formula.

    Example: rewards [0, 1], values 0, gamma 1, lambda .5 -> [.5 * 1, 1] = [.5, 1]
    """
    delta_N = reward_N + gamma * np.append(value_N[1:], 0.0)[: len(value_N)] - value_N
    fade = gamma * lambda_
    # In blocks from the end, each handed to the one before: a loop over tokens is many times slower.
    num_blocks = -(-len(delta_N) // _BLOCK)
    padded = np.zeros(num_blocks * _BLOCK)
    padded[len(padded) - len(delta_N) :] = delta_N
    power_B = fade ** np.arange(_BLOCK + 1)
    inside = padded.reshape(num_blocks, _BLOCK) @ np.where(_AHEAD_BB >= 0, power_B[_AHEAD_BB], 0.0)
    handed_B = power_B[:0:-1]
    following = 0.0
    for block in inside[::-1]:
        block += handed_B * following
        following = block[0]
    advantage_N: np.ndarray = inside.reshape(-1)[len(padded) - len(delta_N) :]
    return advantage_N


def values_of(row: Row, context: Context, options: Critic, *, rule: str) -> np.ndarray:
    """float64 [T], the critic's values.

    Raises:
        MissingValues: there are none and no option says that V is 0, or they are not as long as the row.
    """
    if options.critic == "zero":
        return np.zeros(len(row.token_ids))
    if context.values is None:
        raise MissingValues(
            rule=rule, hint=f"train a critic (--critic head), or say {rule}:critic=zero for V = 0"
        )
    if len(context.values) != len(row.token_ids):
        raise MissingValues(rule=rule, values=len(context.values), tokens=len(row.token_ids))
    return context.values


def sequences(row: Row) -> Iterator[tuple[int, list[Turn]]]:
    """Agent -> its turns in sampling order, for each agent with a completion in some sample's chain.

    Order is by the call's ordinal, never by clocks.

    Raises:
        MissingFact: one of several calls of an agent has no ordinal.
        NoSequence: a call has several completions that train, or two calls have one ordinal.
    """
    through: dict[int, list[int]] = {}
    for index, sample in enumerate(row.samples):
        for completion in sample.completions:
            through.setdefault(completion, []).append(index)
    tokens = tokens_of(row)
    is_trained_T = row.reason == Reason.TRAINED
    by_agent: dict[int, list[Turn]] = {}
    for completion, samples in sorted(through.items()):
        token_N = tokens.get(completion, np.zeros(0, np.int64))
        turn = Turn(completion, tuple(samples), token_N, is_trained_T[token_N])
        by_agent.setdefault(row.calls[row.completions[completion].call].agent, []).append(turn)
    for agent, turns in sorted(by_agent.items()):
        yield agent, _in_order(row, agent, turns)


def _in_order(row: Row, agent: int, turns: list[Turn]) -> list[Turn]:
    some = [turn for turn in turns if turn.is_trained_N.any()]
    if len(some) < 2:
        return some
    placed: dict[int, Turn] = {}
    for turn in some:
        call = row.calls[row.completions[turn.completion].call]
        if call.ordinal is None:
            raise MissingFact(
                fact="ordinal of a call", call_id=call.call_id, hint="post `ordinal` with every call"
            )
        if call.ordinal in placed:
            raise NoSequence(
                agent_id=row.agents[agent].agent_id,
                call_id=call.call_id,
                ordinal=call.ordinal,
                hint="export with the other candidates excluded, or take a rule without a critic",
            )
        placed[call.ordinal] = turn
    return [turn for _, turn in sorted(placed.items())]


def tokens_of(row: Row) -> dict[int, np.ndarray]:
    """Completion -> its tokens on the row's axis, in order, also where a fork inside it cut it."""
    parts: dict[int, list[np.ndarray]] = {}
    for start, length, completion in zip(
        row.segments.start.tolist(),
        row.segments.length.tolist(),
        row.segments.completion.tolist(),
        strict=True,
    ):
        if completion >= 0:
            parts.setdefault(completion, []).append(np.arange(start, start + length))
    return {completion: np.concatenate(found) for completion, found in parts.items()}


def spread(turns: Sequence[Turn], value_N: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
    """(sample, completion) -> a value for each token of it, from one for each trained token of all turns.

    Tokens that do not train get 0, which nobody reads.
    """
    found: dict[tuple[int, int], np.ndarray] = {}
    done = 0
    for turn in turns:
        count = int(np.count_nonzero(turn.is_trained_N))
        whole = np.zeros(len(turn.token_N))
        whole[turn.is_trained_N] = value_N[done : done + count]
        done += count
        found.update({(sample, turn.completion): whole for sample in turn.samples})
    return found


def trained_tokens(turns: Sequence[Turn]) -> np.ndarray:
    """int64 [N], the trained tokens of turns on the row's axis, in sampling order."""
    parts = [turn.token_N[turn.is_trained_N] for turn in turns]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
