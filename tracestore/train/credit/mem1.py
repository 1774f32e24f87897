"""MEM1: one advantage estimate along all an agent sampled, turn after turn, with the reward at its very end.

    GAE (see `gae`) over the trained tokens of all turns in sampling order; the episode's reward on the last

Turns are exact samples of their own here (each prompt holds the state that the turn before it wrote), and the
estimate runs across them: what was dropped from the context still led to the reward.

Source: MEM1 (arXiv 2506.15841; MIT-MI/MEM1, train/train_ppo.sh: adv_estimator gae) [V code]. The script
states neither gamma nor lambda, so that verl's defaults hold: 1 and 1. An episode with several agents runs
each agent's tokens on their own, each with the episode's reward [D].

Worked [D]: lambda .95, gamma 1, V 0, r 1, two turns of two tokens: [.95^3, .95^2, .95, 1] =
[.8574, .9025, .95, 1].

Known traps: MEM1 trains one stitched sequence, in which a turn sees what it did not see when it was sampled
(its own mask code), so that the trained distribution is not the sampled one; separate samples are exact.
There is no group baseline: without a critic every token of a success is pushed up and a failure teaches
nothing. A critic's values come with the context, and V = 0 only where `critic=zero` says so."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, graded_groups
from tracestore.train.credit.gae import Critic, gae, sequences, spread, trained_tokens, values_of


class Mem1(Critic):
    """Options of mem1."""

    lambda_: float = Field(1.0, ge=0, le=1, alias="lambda")


def credit(row: Row, context: Context, options: Mem1) -> Advantages:
    """GAE across turns, see the module.

    Raises:
        MissingValues, MissingFact, NoSequence: see `tracestore.train.credit.gae`.
        NonFiniteCredit: a composed reward is no finite number.
    """
    value_T = values_of(row, context, options, rule="mem1")
    groups, notes = graded_groups(row)
    rewards = {episode: reward for group in groups for episode, reward in group.items()}
    values: dict[tuple[int, int], float | np.ndarray] = {}
    returns: dict[tuple[int, int], np.ndarray] = {}
    for agent, turns in sequences(row):
        token_N = trained_tokens(turns)
        reward = rewards.get(row.agents[agent].episode)
        if reward is None or not len(token_N):
            continue
        reward_N = np.zeros(len(token_N))
        reward_N[-1] = reward
        value_N = value_T[token_N]
        advantage_N = gae(reward_N, value_N, gamma=options.gamma, lambda_=options.lambda_)
        values.update(spread(turns, advantage_N))
        returns.update(spread(turns, advantage_N + value_N))
    return Advantages("mem1", values, {name: count for name, count in notes.items() if count}, returns)
