"""CompactionRL: advantages inside each segment, faded by how much the agent had still to sample after it.

    A_si = (gamma * lambda_s)^N_after(s) * A_local_si         lambda_s = 1 - 1 / (1.5 L_s)

A segment is what an agent sampled between two rewrites of its context, or one summary: an execution, a
summary, the next execution, ... A_local is GAE over the segment's trained tokens alone with lambda_s, the
episode's reward on its last; every segment gets that reward, a summary too. L_s are the trained tokens of
segment s, N_after(s) those of the segments after it.

Source: CompactionRL (arXiv 2607.05378) [R]: three independent reproductions agree, there is no official code.
Which target the critic gets is open: the local return (`critic_target=local`, Comp_Rubric) or A + V with the
faded A (`faded`, the default, ArkaZhuo). Each agent of an episode with several is a sequence of its own [D].

A summary is a call of the purpose `summarize`, or the author of a compaction. Group size is 1: there is no
baseline but the critic, whose values come with the context; V = 0 only where `critic=zero` says so.

Worked (gamma 1, V 0, R 1), L = (2, 1): lambda = (1 - 1/3, 1 - 2/3) = (2/3, 1/3); local [2/3, 1] and [1];
N_after (1, 0) -> [2/3 * 2/3, 2/3 * 1] = [.4444, .6667] and [1]. With equal L, the factor by the number k of
later segments, lambda^(kL): L = 10: 1, .5016, .2516, .1262; L = 1000: 1, .5133, .2635, .1352 (towards
e^(-2k/3)).

Known traps: the exponent counts trained tokens alone, not tool results or copied tails. A segment without a
trained token has no lambda and is skipped. Segments as members of a group would weigh a compacted episode
several times. An episode that ran out of its budget has R = 0 and trains."""

from __future__ import annotations

from typing import Literal

import numpy as np

from tracestore.shards.row import Row
from tracestore.train.credit.base import Advantages, Context, graded_groups
from tracestore.train.credit.gae import Critic, Turn, gae, sequences, spread, trained_tokens, values_of


class Compaction(Critic):
    """Options of compaction-rl."""

    critic_target: Literal["faded", "local"] = "faded"


def credit(row: Row, context: Context, options: Compaction) -> Advantages:
    """Faded GAE of each segment, see the module.

    Raises:
        MissingValues, MissingFact, NoSequence: see `tracestore.train.credit.gae`.
        NonFiniteCredit: a composed reward is no finite number.
    """
    value_T = values_of(row, context, options, rule="compaction-rl")
    groups, notes = graded_groups(row)
    rewards = {episode: reward for group in groups for episode, reward in group.items()}
    summaries = _summaries(row)
    values: dict[tuple[int, int], float | np.ndarray] = {}
    returns: dict[tuple[int, int], np.ndarray] = {}
    for agent, turns in sequences(row):
        reward = rewards.get(row.agents[agent].episode)
        if reward is None:
            continue
        after = 0
        for segment in reversed(segments(turns, summaries)):
            token_N = trained_tokens(segment)
            value_N = value_T[token_N]
            reward_N = np.zeros(len(token_N))
            reward_N[-1] = reward
            lambda_ = lambda_of(len(token_N))
            local_N = gae(reward_N, value_N, gamma=options.gamma, lambda_=lambda_)
            faded_N = (options.gamma * lambda_) ** after * local_N
            values.update(spread(segment, faded_N))
            target_N = local_N if options.critic_target == "local" else faded_N
            returns.update(spread(segment, target_N + value_N))
            after += len(token_N)
    return Advantages(
        "compaction-rl", values, {name: count for name, count in notes.items() if count}, returns
    )


def lambda_of(trained: int) -> float:
    """lambda_s of a segment of so many trained tokens, at least 1."""
    assert trained >= 1, "a segment without a trained token has no lambda"
    return 1.0 - 1.0 / (1.5 * trained)


def segments(turns: list[Turn], summaries: set[int]) -> list[list[Turn]]:
    """Turns in sampling order, cut where the context was rewritten and around every summary."""
    found: list[list[Turn]] = []
    for turn in turns:
        last = found[-1][-1] if found else None
        goes_on = (
            last is not None
            and bool(set(last.samples) & set(turn.samples))
            and last.completion not in summaries
            and turn.completion not in summaries
        )
        if goes_on:
            found[-1].append(turn)
        else:
            found.append([turn])
    return found


def _summaries(row: Row) -> set[int]:
    authors = {
        edit.author_completion
        for edit in row.edits
        if edit.edit == "compaction" and edit.author_completion is not None
    }
    return authors | {
        index
        for index, completion in enumerate(row.completions)
        if row.calls[completion.call].purpose == "summarize"
    }
