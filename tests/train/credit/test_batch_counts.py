"""Depth weights are over the groups of one optimizer step, however they lie in rows and micro-batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.train.credit.agents import Agent, agents_row
from tracestore.shards.log import GroupName
from tracestore.shards.row import Row
from tracestore.train.credit.base import Context
from tracestore.train.filling import Grown, credited, grow
from tracestore.train.loader import BEGIN, Group


def two_trees(children: int, *, group_id: str) -> Row:
    """A success with so many children of score 1, and a failure alone."""
    below = [Agent(0, parent=0, fields={"score": 1.0}) for _ in range(children)]
    made = agents_row([Agent(0), *below, Agent(1)], rewards=[1, 0])
    return replace(made, group_id=group_id)


def group(*rows: Row) -> Grown:
    name = GroupName("group", rows[0].group_id or "")
    return grow(Group(name, tuple((f"s{i}", row) for i, row in enumerate(rows)), BEGIN, {}))


def plus(*groups: Grown) -> list[float]:
    """Positive advantages of the trained tokens of a step, in order."""
    batch = credited(groups, rule="rao", context=Context(), ownership="train_once")
    return [float(value) for _, targets in batch.work for value in targets.plus_N]


def test_a_step_counts_its_own_groups() -> None:
    # N_0 = 2, N_1 = 2: alpha 4/2 = 2, weights 1 and 1; R = 1.4, a child 1, the failure -1.4
    one, other = (group(two_trees(2, group_id=name)) for name in ("a", "b"))
    assert plus(one) == pytest.approx([1.4, 1, 1, 0])
    # N_0 = 4, N_1 = 8: alpha 12/2 = 6, weights 1.5 and .75
    more = group(two_trees(6, group_id="c"))
    assert plus(one, more)[:4] == pytest.approx([1.5 * 1.4, 0.75, 0.75, 0])
    assert plus(one, other) == pytest.approx(plus(one) * 2)


def test_parts_of_a_group_count_once() -> None:
    whole = two_trees(2, group_id="a")
    first = [i for i, sample in enumerate(whole.samples) if sample.episode == 0]
    parts = [
        part_of(whole, first, part=0),
        part_of(whole, [i for i in range(len(whole.samples)) if i not in first], part=1),
    ]
    assert plus(group(*parts)) == pytest.approx(plus(group(whole)))


def part_of(whole: Row, samples: list[int], *, part: int) -> Row:
    """A part with the whole header and these samples; the tokens of the others do not train there."""
    own = {one for i in samples for one in whole.samples[i].completions}
    completion_T = np.repeat(whole.segments.completion, whole.segments.length)
    reason = np.where(np.isin(completion_T, list(own)), whole.reason, 1).astype(np.uint8)
    kept = tuple(whole.samples[i] for i in samples)
    return replace(whole, part=part, num_parts=2, samples=kept, reason=reason)
