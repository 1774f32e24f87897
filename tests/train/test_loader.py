from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.exports import add_entry, delete_group, export_of, followed
from tests.train.rows import episodes_of_one_call
from tracestore.shards.log import GroupName
from tracestore.shards.read import Export, ShardCorrupt, open_export
from tracestore.shards.row import Row
from tracestore.train.loader import BEGIN, Group, Loader, PartMissing, Place, Reading, ahead

NUM_GROUPS = 11


def rows() -> list[Row]:
    """Eleven groups; of the third there are three parts, of which the first two end the first shard."""
    made = []
    for index in range(NUM_GROUPS):
        group = episodes_of_one_call([1.0, 0.0], group_id=f"g{index}" if index % 4 else None)
        group = replace(
            group, episodes=tuple(replace(e, episode_id=f"{index}-{e.episode_id}") for e in group.episodes)
        )
        parts = 3 if index == 2 else 1
        made += [replace(group, part=part, num_parts=parts) for part in range(parts)]
    return made


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    return export_of(rows(), tmp_path_factory.mktemp("loader") / "export", rows_per_shard=4)


def names(groups: list[Group]) -> list[str]:
    return [group.name.id for group in groups]


def given_of(
    export: Export, reading: Reading, place: Place = BEGIN, uses: Counter[GroupName] | None = None
) -> list[Group]:
    return list(Loader(export, reading, place, uses or Counter()).groups())


def test_an_epoch_gives_every_group_once_and_whole(export: Export) -> None:
    groups = given_of(export, Reading(seed=3))
    assert sorted(names(groups)) == sorted(f"g{i}" if i % 4 else f"{i}-episode-0" for i in range(NUM_GROUPS))
    assert {group.name.id: [row.part for _, row in group.rows] for group in groups}["g2"] == [0, 1, 2]
    assert [len(group.rows) for group in groups].count(1) == NUM_GROUPS - 1
    assert groups[-1].after == Place(0, NUM_GROUPS)


def test_the_shard_is_said_of_each_part(export: Export) -> None:
    [whole] = [group for group in given_of(export, Reading()) if group.name.id == "g2"]
    assert [file for file, _ in whole.rows] == ["shard-00000.arrow", "shard-00000.arrow", "shard-00004.arrow"]


def test_seeds_and_epochs_differ_in_order_and_each_is_repeatable(export: Export) -> None:
    once = names(given_of(export, Reading(seed=1, epochs=2)))
    assert once == names(given_of(export, Reading(seed=1, epochs=2, ahead=0)))
    assert once[:NUM_GROUPS] != once[NUM_GROUPS:]
    assert sorted(once[:NUM_GROUPS]) == sorted(once[NUM_GROUPS:])
    assert once != names(given_of(export, Reading(seed=2, epochs=2)))


@settings(max_examples=25)
@given(
    cut=st.integers(0, 3 * NUM_GROUPS),
    seed=st.integers(0, 5),
    replacement=st.booleans(),
    max_reuse=st.one_of(st.none(), st.integers(1, 3)),
)
def test_going_on_from_a_place_gives_what_would_have_come(
    export: Export, cut: int, seed: int, replacement: bool, max_reuse: int | None
) -> None:
    reading = Reading(seed=seed, epochs=3, replacement=replacement, max_reuse=max_reuse)
    whole = given_of(export, reading)
    cut = min(cut, len(whole))
    uses = Counter(group.name for group in whole[:cut])
    rest = given_of(export, reading, whole[cut - 1].after if cut else BEGIN, uses=uses)
    assert names(rest) == names(whole[cut:])
    assert [group.after for group in rest] == [group.after for group in whole[cut:]]


def test_with_replacement_a_shard_gives_as_many_as_it_has_and_some_several_times(export: Export) -> None:
    counts: Counter[str] = Counter()
    for seed in range(30):
        groups = names(given_of(export, Reading(seed=seed, replacement=True)))
        assert len(groups) == NUM_GROUPS
        counts.update(groups)
    assert len(counts) == NUM_GROUPS
    assert max(counts.values()) > 30 > min(counts.values())


def test_no_group_is_given_more_often_than_the_limit_and_what_it_holds_back_is_counted(
    export: Export,
) -> None:
    loader = Loader(export, Reading(epochs=None, max_reuse=2))
    groups = list(loader.groups())  # an epoch that gives nothing ends the stream
    assert set(Counter(names(groups)).values()) == {2}
    assert loader.notes == {"groups_at_reuse_limit": NUM_GROUPS}


def test_a_group_of_which_a_part_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    lacking = [row for row in rows() if row.part != 1]
    with pytest.raises(PartMissing, match=r"g2.*0, 2"):
        given_of(export_of(lacking, tmp_path / "export"), Reading())


def test_a_damaged_shard_is_refused_after_the_groups_of_the_others(tmp_path: Path) -> None:
    export = export_of(rows(), tmp_path / "export", rows_per_shard=4)
    damaged = export.path / export.manifest.shards[1].file
    damaged.write_bytes(damaged.read_bytes()[:-8] + b"\0" * 8)
    found: list[Group] = []
    with pytest.raises(ShardCorrupt, match=damaged.name):
        found.extend(Loader(export, Reading(seed=1)).groups())
    order = np.random.default_rng([1, 0]).permutation(len(export.manifest.shards)).tolist()
    assert bool(found) == (order.index(1) > 0)


def test_what_is_read_ahead_keeps_its_order_and_its_error() -> None:
    def numbers() -> Iterator[int]:
        yield from range(5)
        raise ValueError("six")

    found: list[int] = []
    with pytest.raises(ValueError, match="six"):
        found.extend(ahead(numbers(), 3))
    assert found == [0, 1, 2, 3, 4]


def test_no_thread_is_left_when_the_reader_stops_early(export: Export) -> None:
    groups = Loader(export, Reading(epochs=None)).groups()
    next(groups)
    assert any(t.name.startswith("tracestore-loader") for t in threading.enumerate())
    groups.close()
    assert not any(t.name.startswith("tracestore-loader") for t in threading.enumerate())


def group_of(name: str) -> Row:
    made = episodes_of_one_call([1.0, 0.0], group_id=name)
    return replace(
        made, episodes=tuple(replace(e, episode_id=f"{name}-{e.episode_id}") for e in made.episodes)
    )


def test_a_followed_export_gives_what_each_entry_adds_as_it_comes(tmp_path: Path) -> None:
    log = followed(tmp_path / "export")
    add_entry(log, [group_of("a"), group_of("b")])
    export = open_export(log.folder)
    groups = Loader(export, Reading(follow=True, poll_s=0.01, ahead=0)).groups()
    assert sorted(names([next(groups), next(groups)])) == ["a", "b"]
    add_entry(log, [group_of("c")])
    came = next(groups)
    assert (came.name.id, came.after) == ("c", Place(2, 1))
    groups.close()


def test_rows_that_a_later_entry_replaced_are_passed_over_and_counted(tmp_path: Path) -> None:
    log = followed(tmp_path / "export")
    add_entry(log, [group_of("a"), group_of("b")])
    add_entry(log, [group_of("a")], replaces=["a"])
    loader = Loader(open_export(log.folder), Reading(follow=True, idle_s=0))
    assert [(g.name.id, g.after.epoch) for g in loader.groups()] == [("b", 1), ("a", 2)]
    assert loader.notes == {"groups_replaced": 1}


def test_what_a_deletion_takes_from_the_files_is_not_given_and_the_rest_is(tmp_path: Path) -> None:
    """The shards of entries that the loader has not come to are written again while it reads."""
    log = followed(tmp_path / "export")
    for some in ("ab", "cd", "e"):
        add_entry(log, [group_of(name) for name in some])
    groups = Loader(open_export(log.folder), Reading(follow=True, idle_s=0, ahead=0)).groups()
    first = next(groups)
    delete_group(log, "c", left=[group_of("d")])
    delete_group(log, "e", left=[])
    assert sorted(names([first, *groups])) == ["a", "b", "d"]
    again = Loader(open_export(log.folder), Reading(follow=True, idle_s=0)).groups()
    assert sorted(names(list(again))) == ["a", "b", "d"]


@pytest.mark.parametrize("cut", range(6))
def test_following_goes_on_from_a_place_inside_an_entry(tmp_path: Path, cut: int) -> None:
    log = followed(tmp_path / "export")
    add_entry(log, [group_of("a"), group_of("b"), group_of("c")])
    add_entry(log, [group_of("d"), group_of("e")])
    export, reading = open_export(log.folder), Reading(follow=True, idle_s=0)
    whole = given_of(export, reading)
    rest = given_of(export, reading, whole[cut - 1].after if cut else BEGIN)
    assert names(rest) == names(whole[cut:])


def test_a_reader_that_waits_for_more_ends_when_it_is_closed(tmp_path: Path) -> None:
    log = followed(tmp_path / "export")
    add_entry(log, [group_of("a")])
    groups = Loader(open_export(log.folder), Reading(follow=True, poll_s=60.0)).groups()
    next(groups)
    groups.close()
    assert not any(t.name.startswith("tracestore-loader") for t in threading.enumerate())
