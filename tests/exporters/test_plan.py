from __future__ import annotations

from typing import Any

import pytest

from tests import factories as make
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore_exporters.plan import PlannedGroup, closed_by, shard_plan


def ended(number: int, *, status: str | None = "ok", phase: str = "whole") -> Graph:
    return build([make.episode(f"e{number}", status=status, phase=phase)])


def running(number: int) -> Graph:
    return build([make.episode(f"e{number}", phase="start")])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "episodes"),
        ({"phase": "end"}, "event"),
        ({"closed_by": "timeout"}, "timeout"),
        ({"phase": "end", "closed_by": "size"}, "size"),
        ({"size": 2}, "size"),
        ({"size": 3}, None),
        ({"size": 3, "ended_at": 5}, "event"),
        ({"phase": "start", "size": 2}, "size"),
        ({"phase": "start", "size": 3}, None),
        ({"phase": "start"}, None),
    ],
)
def test_a_group_is_closed_by_its_end_its_size_or_a_timeout(
    fields: dict[str, Any], expected: str | None
) -> None:
    assert closed_by(make.group("g", **fields), [ended(0), ended(1)]) == expected


@pytest.mark.parametrize(
    ("episodes", "expected"), [((ended(0), running(1)), None), ((ended(0), ended(1)), "episodes")]
)
def test_a_group_posted_whole_that_says_neither_its_size_nor_its_end_waits_for_its_episodes(
    episodes: tuple[Graph, ...], expected: str | None
) -> None:
    assert closed_by(make.group("g"), episodes) == expected


def test_an_end_event_closes_a_group_of_any_size_although_its_halves_merge_into_a_whole() -> None:
    halves = [make.group("g", size=4, phase="start"), make.group("g", phase="end")]
    merged = build([*halves, make.episode("e0", group_id="g")]).group
    assert merged is not None
    assert merged.phase == "whole"
    assert closed_by(merged, [ended(0)], ended=True) == "event"
    assert closed_by(merged, [ended(0)]) is None


def test_only_ended_episodes_count_towards_the_size() -> None:
    group = make.group("g", size=2)
    assert closed_by(group, [ended(0), running(1)]) is None
    assert closed_by(group, [ended(0), running(1), ended(2)]) == "size"


def test_a_group_of_which_nothing_was_posted_closes_with_its_episodes() -> None:
    assert closed_by(None, [ended(0), running(1)]) is None
    assert closed_by(None, [ended(0), ended(1, status=None)]) == "episodes"


def test_an_episode_on_its_own_is_closed_unless_it_has_begun_and_not_ended() -> None:
    assert closed_by(None, [running(0)]) is None
    assert closed_by(None, [ended(0, phase="start")]) == "episodes"
    assert closed_by(None, [build([make.call("c", None, "a")])]) == "episodes"


def test_groups_go_into_files_by_id_whatever_their_order() -> None:
    groups = [PlannedGroup(f"g{n}", (f"e{n}",)) for n in range(3)] + [PlannedGroup(None, ("a",))]
    plan = shard_plan(groups, shard_rows=2)
    assert plan == shard_plan(groups[::-1], shard_rows=2)
    assert [(shard.file, [g.group_id for g in shard.groups]) for shard in plan] == [
        ("shard-00000.arrow", ["g0", "g1"]),
        ("shard-00001.arrow", ["g2", None]),
    ]


def test_no_groups_make_no_shards() -> None:
    assert shard_plan([], shard_rows=2) == ()
