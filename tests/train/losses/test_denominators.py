from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.train.rows import row
from tracestore.train.forest import Forest, Targets, forest
from tracestore.train.losses.denominators import Denominator, Kind, shared_out


def group(*lengths: int) -> tuple[Forest, Targets]:
    """Episodes of one sample with so many owned tokens each, every token's loss being a power of two."""
    segments = [(-1, [1], -1), *((0, list(range(n)), i) for i, n in enumerate(lengths))]
    made = row(segments, [(i, [0, i + 1], [i]) for i in range(len(lengths))], rewards=[0.0] * len(lengths))
    tokens = np.arange(1, 1 + sum(lengths))
    zero_N = np.zeros(len(tokens))
    return forest(made), Targets(tokens, zero_N, zero_N, zero_N)


def loss(groups: list[list[tuple[Forest, Targets]]], losses: list[float], denominator: Denominator) -> float:
    work, count = shared_out(groups, denominator)
    share_N = np.concatenate([t.more.get("share", np.ones(len(t))) for _, t in work])
    return float((share_N * losses).sum() / count)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("token", (4 + 1 + 1 + 1) / 4),
        ("sequence", (4 / 1 + 3 / 3) / 2),
        ("group", (4 + 1 + 1 + 1) / 4),
        ("constant", (4 + 1 + 1 + 1) / (2 * 2)),
    ],
)
def test_one_group_of_two_episodes(kind: Kind, wanted: float) -> None:
    assert loss([[group(1, 3)]], [4, 1, 1, 1], Denominator(kind, length=2)) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("token", 12 / 6),
        ("sequence", (4 / 1 + 3 / 3 + 5 / 2) / 3),
        ("group", (7 / 4 + 5 / 2) / 2),
        ("constant", 12 / (3 * 10)),
    ],
)
def test_two_groups(kind: Kind, wanted: float) -> None:
    found = loss([[group(1, 3)], [group(2)]], [4, 1, 1, 1, 2, 3], Denominator(kind, length=10))
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ["token", "sequence", "group", "constant"])
def test_a_group_in_parts_weighs_as_in_one_piece_and_one_without_targets_nothing(kind: Kind) -> None:
    whole, nothing = group(1, 3), group(2)
    parts = []
    for keep in ([0], [1, 2, 3]):
        grown, targets = group(1, 3)
        parts.append((grown, targets.where(np.isin(np.arange(4), keep))))
    empty = nothing[0], nothing[1].where(np.zeros(2, dtype=bool))
    denominator = Denominator(kind, length=2)
    losses = [4.0, 1.0, 1.0, 1.0]
    assert loss([parts, [empty]], losses, denominator) == loss([[whole]], losses, denominator)


def test_an_episode_in_two_samples_counts_once_in_a_constant_and_twice_in_a_sequence() -> None:
    grown, targets = group(1, 3)
    samples = tuple(replace(sample, episode=0) for sample in grown.row.samples)
    one = replace(grown, row=replace(grown.row, samples=samples)), targets
    assert shared_out([[one]], Denominator("constant"))[1] == 1
    assert shared_out([[one]], Denominator("sequence"))[1] == 2
