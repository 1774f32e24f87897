"""FoldGRPO: group-relative advantages with penalties on how the context was kept.

    A_it = (clip(R_i + Q_it, 0, 1) - mean(R)) / std(R)

    Q_it = -1    main agent, the turn read more than `over` of `context_limit` tokens, and creates no branch
         + -0.2  an agent below the main one whose branch a judge found out of scope
         + -1    a turn with a failed tool call

Source: Context-Folding (arXiv 2510.11967) [V]. Not in the paper, ours [D]: what a turn read is its prompt
(tokens before the completion on its path); penalties of one turn add up (with -1 among them the clip makes
that the same); ddof, which the paper leaves open, is 1 as torch.std has it.

Facts: which turns create a branch, from the agents' spawn; failed tool calls, from the status of tool_call
events; `in_scope`, a reward on each branch (`facts`). An episode without the outcome of any tool call is an
error unless `unsaid_tools=ok`.

Defaults (paper): context_limit 32768, over .5, penalties -1, -.2, -1.

Worked: R = [1, 0, 0, 1, 0, 0, 0, 0]: mean 2/8 = .25, sum of squares 2 * .5625 + 6 * .0625 = 1.5; std ddof 0
sqrt(1.5/8) = .4330, ddof 1 sqrt(1.5/7) = .4629. R = 1: normal .75/std = 1.7321 / 1.6202; over half of the
context (0 - .25)/std = -.5774 / -.5401; out of scope (.8 - .25)/std = 1.2702 / 1.1881. R = 0: -.5774 /
-.5401, with or without a penalty.

Known traps: the clip makes every penalty a no-op on a failed episode. Penalties are float64: FoldAgent casts
them to int8, where -.2 is 0 and the scope penalty is gone [V]. It also has a bonus of +.2 for good branches
that no paper mentions, and penalises the main agent only where it succeeded; neither is here. With all R = 1
and Q = -1 the std is 0: a group without spread gets exactly 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from tracestore.shards.row import Row
from tracestore.shards.views import segment_positions
from tracestore.train.credit.base import (
    Advantages,
    Context,
    MissingFact,
    finite,
    graded_groups,
    mean,
    note_spread,
    std,
)
from tracestore.train.credit.facts import IN_SCOPE, agent_of, depths, in_scope, spawns, stated
from tracestore.train.credit.options import Options


class Fold(Options):
    """Options of foldgrpo."""

    context_limit: int = Field(32_768, ge=1)
    """Tokens of the active context."""
    over: float = Field(0.5, ge=0, le=1)
    """Share of the limit beyond which the main agent should have folded."""
    unfolded: float = Field(-1.0, le=0)
    out_of_scope: float = Field(-0.2, le=0)
    failed_tool: float = Field(-1.0, le=0)
    ddof: int = Field(1, ge=0, le=1)
    unsaid_tools: Literal["refuse", "ok"] = "refuse"
    """What an episode without the outcome of any tool call means: an error, or that none failed."""


def credit(row: Row, context: Context, options: Fold) -> Advantages:
    """A = (clip(R + Q, 0, 1) - mean) / std, see the module.

    Raises:
        MissingFact: a branch without a verdict, or an episode that says nothing of its tool calls.
        NonFiniteCredit: a composed reward or an advantage is no finite number.
    """
    groups, notes = graded_groups(row)
    penalty = penalties(row, {episode for rewards in groups for episode in rewards}, options)
    values: dict[tuple[int, int], float] = {}
    for rewards in groups:
        numbers = list(rewards.values())
        has_spread = note_spread(numbers, notes)
        center = mean(numbers)
        unit = std(numbers, ddof=options.ddof) if has_spread else 1.0

        def standard(clipped: Sequence[float], center: float = center, unit: float = unit) -> list[float]:
            return [(value - center) / unit for value in clipped]

        for index, sample in enumerate(row.samples):
            if sample.episode not in rewards:
                continue
            clipped = [
                min(max(rewards[sample.episode] + penalty.get(one, 0.0), 0.0), 1.0)
                for one in sample.completions
            ]
            shares = [0.0] * len(clipped)
            if has_spread:
                shares = finite(standard, clipped, group_id=row.group_id, hint="scale the rewards down")
            values.update(
                {(index, one): share for one, share in zip(sample.completions, shares, strict=True)}
            )
    return Advantages("foldgrpo", values, {name: count for name, count in notes.items() if count})


def penalties(row: Row, episodes: set[int], options: Fold) -> dict[int, float]:
    """Completion -> Q, for every completion of a chain of these episodes whose agent may train."""
    creating = spawns(row)
    at = depths(row)
    read = _tokens_read(row)
    chains = {(s.episode, one) for s in row.samples if s.episode in episodes for one in s.completions}
    if options.unsaid_tools == "refuse":
        _check_tools(row, {episode for episode, _ in chains})
    verdicts = stated(row, IN_SCOPE)
    found: dict[int, float] = {}
    for _, completion in sorted(chains):
        agent = agent_of(row, completion)
        if row.agents[agent].trainable is False:
            continue  # the judge itself is judged by nobody
        parts = []
        if at[agent] == 0:
            is_over = read.get(completion, 0) > options.over * options.context_limit
            if is_over and completion not in creating:
                parts.append(options.unfolded)
        elif not in_scope(row, agent, verdicts, rule="foldgrpo"):
            parts.append(options.out_of_scope)
        if row.completions[completion].tool_failed:
            parts.append(options.failed_tool)
        found[completion] = math.fsum(parts)
    return found


def _check_tools(row: Row, episodes: set[int]) -> None:
    """Raises MissingFact for an episode of which no tool call has an outcome."""
    said = {
        row.calls[completion.call].episode
        for completion in row.completions
        if completion.tool_failed is not None
    }
    for episode in sorted(episodes - said):
        raise MissingFact(
            rule="foldgrpo",
            fact="outcomes of tool calls",
            episode_id=row.episodes[episode].episode_id,
            hint="post its tool_call events with their status, or say unsaid_tools=ok",
        )


def _tokens_read(row: Row) -> dict[int, int]:
    """Completion -> tokens before it on its path, which is the length of its prompt."""
    before: np.ndarray = segment_positions(row.segments)
    found: dict[int, int] = {}
    for completion, position in zip(row.segments.completion.tolist(), before.tolist(), strict=True):
        if completion >= 0:
            found.setdefault(completion, position)
    return found
