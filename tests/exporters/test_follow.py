"""Following a store: what is written when, what counts no more, what is late."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.exporters.stores import flip_a_bit
from tests.factories import POLICY, answer, call, posted, user
from tracestore.graph.model import Graph
from tracestore.shards.batch import content_hash, from_batch, to_batch
from tracestore.shards.log import Entry, GroupName, Log, LogCorrupt
from tracestore.shards.manifest import NotAnExport
from tracestore.shards.read import ShardMissing, open_export
from tracestore.store import Store, delete, redact
from tracestore.wire.events import AnyEvent
from tracestore_exporters import follow as follow_module
from tracestore_exporters.export import NotEmpty, export
from tracestore_exporters.follow import (
    Follower,
    following,
    looks,
)
from tracestore_exporters.lag import Lag, Untrained, lag
from tracestore_exporters.place import InUse, OtherExport
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(empty_store(tmp_path / "t.db")) as opened:
        yield opened


@pytest.fixture
def follower(store: Store, tmp_path: Path) -> Iterator[Follower]:
    with following(store, "p", tmp_path / "out", Spec()) as begun:
        yield begun


def answered(id_: str, episode: str, *ids: int, version: int = 1) -> AnyEvent:
    policy = POLICY.model_copy(update={"version": version})
    asked = [user(f"of {episode}")]
    return call(
        id_,
        asked,
        answer(id_, ids=ids),
        episode=episode,
        agent=f"{episode}-main",
        prompt_ids=[9],
        policy=policy,
    )


def rollout(episode: str, group: str | None = None, *, version: int = 1) -> list[AnyEvent]:
    """An episode of one call with two tokens, which ends with its last event."""
    return [answered(f"{episode}-c", episode, 1, 2, version=version), ended(episode, group)]


def ended(episode: str, group: str | None = None) -> AnyEvent:
    return make.episode(episode, group_id=group, status="ok")


def post(store: Store, *events: AnyEvent) -> None:
    assert {one.status for one in store.ingest("p", [posted(event) for event in events])} == {"stored"}


def step(follower: Follower) -> Entry:
    entry = follower.step().entry
    assert entry is not None
    return entry


def written(entry: Entry) -> list[tuple[str, int, tuple[str, ...]]]:
    return [(group.name.id, group.revision, group.episode_ids) for group in entry.groups]


def stones(entry: Entry) -> list[tuple[str, int, str]]:
    return [(stone.name.id, stone.revision, stone.why) for stone in entry.tombstones]


def contents(folder: Path) -> list[str]:
    return sorted(content_hash([to_batch(row)]) for row in open_export(folder).rows())


def same_as_batch(store: Store, folder: Path) -> bool:
    """Whether the live rows are those of a batch export of now, and `verify` finds nothing."""
    batch = folder.with_name(f"batch-{len(list(folder.parent.iterdir()))}")
    export(store, "p", batch, Spec())
    assert verify_export(store, "p", folder).findings == []
    return contents(folder) == contents(batch)


def test_a_group_is_written_once_it_is_closed_and_then_no_more(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, make.group("g", size=2), *rollout("a", "g"))
    assert follower.step().entry is None
    post(store, *rollout("b", "g"), *rollout("alone"))
    entry = step(follower)
    assert written(entry) == [("alone", 0, ("alone",)), ("g", 0, ("a", "b"))]
    assert [(shard.rows, shard.trained_tokens) for shard in entry.shards] == [(2, 6)]
    assert (entry.adds.trained_tokens, entry.conservation.sampled_tokens) == (6, 6)
    assert follower.step().entry is None
    assert same_as_batch(store, tmp_path / "out")


def test_what_is_open_is_counted_and_waits(store: Store, follower: Follower) -> None:
    start = make.episode("a", group_id="g", phase="start")
    post(store, start, answered("a-c", "a", 1, 2), *rollout("alone"))
    entry = step(follower)
    assert written(entry) == [("alone", 0, ("alone",))]
    assert entry.conservation.excluded == {"group_open": 2}
    assert entry.num_groups == 2


def test_a_late_reward_writes_the_group_again_in_place_of_its_row(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    post(store, make.reward("r", 0.5, episode="a"))
    entry = step(follower)
    assert (written(entry), stones(entry)) == ([("a", 1, ("a",))], [("a", 0, "revised")])
    rows = list(open_export(tmp_path / "out").rows())
    assert sorted((row.episodes[0].episode_id, [one.value for one in row.rewards]) for row in rows) == [
        ("a", [0.5]),
        ("b", []),
    ]
    assert entry.conservation.sampled_tokens == entry.conservation.trained_tokens == 4
    assert same_as_batch(store, tmp_path / "out")


def test_a_reward_that_the_spec_leaves_out_changes_nothing(store: Store, tmp_path: Path) -> None:
    spec = Spec(rewards={"correct": 1.0})
    with following(store, "p", tmp_path / "out", spec) as follower:
        post(store, *rollout("a"))
        step(follower)
        post(store, make.reward("r", 0.5, name="style", episode="a"))
        assert follower.step().entry is None


def test_a_selection_that_comes_late_goes_into_the_row(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    two = [answer("x", ids=[1]), answer("y", ids=[2])]
    tries = call("t", [user("u")], *two, episode="a", agent="m", prompt_ids=[9])
    members = make.candidate_set("s", make.member("t", 0), make.member("t", 1), episode="a", agent="m")
    post(store, tries, members, ended("a"))
    step(follower)
    post(store, make.selection("sel", "s", 1, episode="a", selector="judge"))
    assert stones(step(follower)) == [("a", 0, "revised")]
    (row,) = open_export(tmp_path / "out").rows()
    assert [one.selected for one in row.candidate_sets[0].members] == [False, True]
    assert same_as_batch(store, tmp_path / "out")


def test_a_late_call_is_counted_and_changes_no_row(store: Store, follower: Follower, tmp_path: Path) -> None:
    post(store, *rollout("a"))
    step(follower)
    before = contents(tmp_path / "out")
    post(store, answered("a-late", "a", 3, 4, 5))
    entry = step(follower)
    assert (written(entry), stones(entry), entry.shards) == ([], [], ())
    assert entry.adds.excluded == {"late": 3}
    assert entry.conservation.model_dump(include={"sampled_tokens", "trained_tokens", "excluded"}) == {
        "sampled_tokens": 5,
        "trained_tokens": 2,
        "excluded": {"late": 3},
    }
    assert contents(tmp_path / "out") == before
    assert verify_export(store, "p", tmp_path / "out").findings == []


def test_a_completion_that_comes_late_is_counted(store: Store, follower: Follower) -> None:
    post(store, call("c", [user("u")], episode="a", agent="m", prompt_ids=[9]), ended("a"))
    step(follower)
    post(store, make.completion("c", 0, answer("x", ids=[1, 2]), episode="a"))
    assert step(follower).conservation.excluded == {"late": 2}


def test_an_episode_that_joins_a_written_group_is_late_and_so_is_its_reward(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a", "g"))
    step(follower)
    post(store, *rollout("b", "g"), make.reward("r", 1.0, episode="b"))
    entry = step(follower)
    assert (written(entry), entry.conservation.excluded) == ([], {"late": 2})
    assert [late.episode_ids for late in entry.late] == [("b",)]
    post(store, make.reward("r2", 1.0, episode="a"))
    entry = step(follower)
    assert written(entry) == [("g", 1, ("a",))]
    assert entry.conservation.excluded == {"late": 2}
    assert verify_export(store, "p", tmp_path / "out").findings == []


def test_an_episode_that_was_written_alone_is_in_no_other_row(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    """2 tokens of `a`, alone before it named its group, and 2 of `b`."""
    post(store, answered("a-c", "a", 1, 2))
    assert written(follower.step(is_last=True).entry or step(follower)) == [("a", 0, ("a",))]
    post(store, ended("a", "g"), *rollout("b", "g"))
    entry = step(follower)
    assert written(entry) == [("g", 0, ("b",))]
    assert entry.conservation.trained_tokens == entry.conservation.sampled_tokens == 4
    assert verify_export(store, "p", tmp_path / "out").findings == []


def test_consumption_is_no_news(store: Store, follower: Follower) -> None:
    post(store, *rollout("a"))
    step(follower)
    post(store, make.consumption("u", "a-c", episode="a"))
    assert follower.step() == follow_module.Step(None, False)


def test_a_deleted_episode_takes_the_rows_of_its_group_and_the_others_come_again(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a", "g"), *rollout("b", "g"), *rollout("alone"))
    step(follower)
    delete.delete_episode(store, "p", "a")
    entry = step(follower)
    assert (written(entry), stones(entry)) == ([("g", 1, ("b",))], [("g", 0, "deleted")])
    assert [stone["id"] for stone in entry.deleted] == ["a"]
    assert entry.conservation.sampled_tokens == entry.conservation.trained_tokens == 4
    assert same_as_batch(store, tmp_path / "out")
    found = delete.delete_episode(store, "p", "alone")
    assert delete.carry_out(store, "p", found.id).state == "done"
    entry = step(follower)
    assert (written(entry), stones(entry)) == ([], [("alone", 0, "deleted")])
    assert same_as_batch(store, tmp_path / "out")
    assert [one["id"] for one in open_export(tmp_path / "out").manifest.tombstones] == ["a", "alone"]


def test_a_group_that_is_too_small_after_a_deletion_is_open_again(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, make.group("g", size=2), *rollout("a", "g"), *rollout("b", "g"))
    step(follower)
    delete.delete_episode(store, "p", "a")
    entry = step(follower)
    assert (written(entry), stones(entry)) == ([], [("g", 0, "deleted")])
    assert entry.conservation.excluded == {"group_open": 2}
    post(store, *rollout("c", "g"))
    assert written(step(follower)) == [("g", 1, ("b", "c"))]
    assert same_as_batch(store, tmp_path / "out")


def test_a_deleted_project_leaves_no_row_that_counts(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    delete.delete_project(store, "p")
    assert stones(step(follower)) == [("a", 0, "deleted"), ("b", 0, "deleted")]
    assert follower.step().entry is None
    assert list(open_export(tmp_path / "out").rows()) == []


def test_a_group_whose_content_was_deleted_has_no_row(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a"))
    step(follower)
    found = delete.delete_contents(store, "p", ["a"], name="a rule")
    assert (written(step(follower)), follower.step().entry) == ([], None)  # asked for, and not done
    delete.carry_out(store, "p", found.id)
    entry = step(follower)
    assert [(group.rows, group.revision) for group in entry.groups] == [(0, 1)]
    assert follower.step().entry is None
    assert same_as_batch(store, tmp_path / "out")


def test_content_that_was_deleted_while_nobody_followed_is_in_no_row(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    post(store, *rollout("a"))
    with following(store, "p", out, Spec()) as follower:
        step(follower)
        found = delete.delete_contents(store, "p", ["a"], name="a rule")
        step(follower)
    delete.carry_out(store, "p", found.id)
    with following(store, "p", out, Spec()) as follower:
        assert stones(step(follower)) == [("a", 0, "deleted")]
    assert same_as_batch(store, out)


def test_a_group_that_changes_while_it_is_read_is_read_again(
    store: Store, follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(store, *rollout("a", "g"), *rollout("b", "g"), *rollout("c"))
    step(follower)
    post(store, make.reward("r", 1.0, episode="a"), make.reward("r2", 1.0, episode="c"))
    load = Store.load

    def deleted_before(self: Store, project: str, episode_id: str, **more: Any) -> list[AnyEvent]:
        if episode_id == "b":
            delete.delete_episode(store, "p", "b")
        return load(self, project, episode_id, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "load", deleted_before)
        assert written(step(follower)) == [("c", 1, ("c",))]
    assert (written(step(follower)), follower.step().entry) == ([("g", 1, ("a",))], None)
    (row,) = [row for row in open_export(tmp_path / "out").rows() if row.group_id == "g"]
    assert [one.reward_id for one in row.rewards] == ["r"]
    assert same_as_batch(store, tmp_path / "out")


def test_a_group_that_loses_episodes_while_it_is_read_goes_on_without_them(
    store: Store, follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(store, *(event for id_ in "abc" for event in rollout(id_, "g")))
    step(follower)
    delete.delete_episode(store, "p", "a")
    load = Store.load

    def deleted_before(self: Store, project: str, episode_id: str, **more: Any) -> list[AnyEvent]:
        if episode_id == "b":
            delete.delete_episode(store, "p", "b")
        return load(self, project, episode_id, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "load", deleted_before)
        assert stones(step(follower)) == []
    assert written(step(follower)) == [("g", 1, ("c",))]
    assert same_as_batch(store, tmp_path / "out")


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_group_whose_late_episode_goes_while_it_is_read_keeps_its_rows_until_there_are_others(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    out = tmp_path / "out"
    graphs = Store.training_graphs

    def deleted_before(self: Store, project: str, ids: Sequence[str], **more: Any) -> list[Graph]:
        if "x" in ids:
            delete.delete_episode(store, "p", "x")
        return graphs(self, project, ids, **more)

    with ExitStack() as stack:
        follower = stack.enter_context(following(store, "p", out, Spec()))
        post(store, *rollout("a", "g"))
        step(follower)
        post(store, make.reward("r", 1.0, episode="a"), *rollout("x", "g"), *rollout("other"))
        with monkeypatch.context() as patched:
            patched.setattr(Store, "training_graphs", deleted_before)
            entry = step(follower)
        assert (written(entry), stones(entry)) == ([("other", 0, ("other",))], [])
        assert len(list(open_export(out).rows())) == 2
        if is_killed:
            stack.close()
            follower = stack.enter_context(following(store, "p", out, Spec()))
        assert written(step(follower)) == [("g", 1, ("a",))]
    assert same_as_batch(store, out)


def test_a_redaction_writes_again_what_it_changed(store: Store, follower: Follower, tmp_path: Path) -> None:
    secret = call("s-c", [user("u")], answer("sk-ABC", ids=[5]), episode="s", agent="m", prompt_ids=[9])
    post(store, secret, ended("s"), *rollout("a"))
    step(follower)
    found = redact.add_rules(store, "p", json.dumps([{"name": "key", "pattern": "sk-[A-Z]+"}]))
    redact.carry_out(store, "p", found.id)
    assert stones(step(follower)) == [("s", 0, "redacted")]
    assert follower.step().entry is None
    assert same_as_batch(store, tmp_path / "out")


def test_a_redaction_of_what_came_after_a_group_was_written_reaches_its_rows_and_its_tables(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    secret = [user("u")], answer("sk-ABC", ids=[5])
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    late = call("b-late", *secret, episode="b", agent="b-main", prompt_ids=[9])
    open_ = make.episode("o", phase="start"), call("o-c", *secret, episode="o", agent="m", prompt_ids=[9])
    post(store, make.reward("r", 1.0, episode="a", scorer="sk-ABC"), late, *open_)
    assert step(follower).conservation.excluded == {"late": 1, "group_open": 1}
    found = redact.add_rules(store, "p", json.dumps([{"name": "key", "pattern": "sk-[A-Z]+"}]))
    redact.carry_out(store, "p", found.id)
    entry = step(follower)
    assert stones(entry) == [("a", 1, "redacted")]
    assert entry.conservation.excluded == {}
    assert [one.scorer for row in open_export(out).rows() for one in row.rewards] == ["[redacted:key]"]
    assert verify_export(store, "p", out).findings == []


def test_a_source_that_grew_writes_its_group_anew(store: Store, follower: Follower, tmp_path: Path) -> None:
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    more = answered("a-c", "a", 1, 2, 3).model_copy(update={"revision": 1})
    assert [one.status for one in store.ingest("p", [posted(more)])] == ["stored"]
    entry = step(follower)
    assert (written(entry), stones(entry)) == ([("a", 1, ("a",))], [("a", 0, "replaced")])
    assert same_as_batch(store, tmp_path / "out")


@pytest.mark.parametrize(("given", "silence_s"), [({}, 1800), ({"unstated_s": 60}, 60)])
def test_what_nobody_said_has_ended_is_left_until_nothing_more_comes(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, float], silence_s: int
) -> None:
    now = 0.0
    monkeypatch.setattr(follow_module.time, "monotonic", lambda: now)
    with following(store, "p", tmp_path / "out", Spec(), settle_s=5, **given) as follower:  # type: ignore[arg-type]
        post(store, answered("a-0", "a", 1), *rollout("b"))
        assert follower.step().entry is None
        now = 5
        entry = step(follower)
        assert (written(entry), entry.waiting) == ([("b", 0, ("b",))], (GroupName("episode", "a"),))
        assert verify_export(store, "p", tmp_path / "out").findings == []
        assert lag(store, "p", Log.open(tmp_path / "out")).waiting_groups == 1
        now = silence_s - 1
        post(store, answered("a-1", "a", 2))
        assert follower.step().entry is None
        now = 2 * silence_s - 2
        assert follower.step().entry is None
        now = 2 * silence_s - 1
        entry = step(follower)
        assert (written(entry), entry.conservation.excluded) == ([("a", 0, ("a",))], {})


def test_an_episode_that_said_it_began_waits_for_its_end_however_long_it_is_silent(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(follow_module.time, "monotonic", lambda: now)
    with following(store, "p", tmp_path / "out", Spec(), unstated_s=1) as follower:
        post(store, make.episode("a", phase="start"), answered("a-0", "a", 1))
        assert follower.step().entry is None
        now = 10_000
        assert follower.step().entry is None
        post(store, answered("a-1", "a", 2), make.episode("a", phase="end", status="ok"))
        entry = step(follower)
        assert (written(entry), entry.conservation.excluded) == ([("a", 0, ("a",))], {})


@pytest.mark.parametrize("most", [1, 2, 5])
def test_what_was_there_before_is_followed_a_bounded_part_at_a_time_and_none_of_it_is_late(
    store: Store, tmp_path: Path, most: int
) -> None:
    """`g` would be closed after its first episode, and `a` before its reward, if only that had come."""
    out = tmp_path / "out"
    post(store, *rollout("a"), *rollout("b", "g"), answered("unsaid", "u", 1))
    post(store, *rollout("c", "g"), make.reward("r", 0.5, episode="a"), answered("more", "u", 2))
    with following(store, "p", out, Spec(), most=most) as follower:
        entries = list(looks(follower, interval_s=0.001, until_idle_s=0.001))
    groups = [one for entry in entries for one in written(entry)]
    assert sorted(groups) == [("a", 0, ("a",)), ("g", 0, ("b", "c")), ("u", 0, ("u",))]
    assert entries[-1].conservation.excluded == {}
    assert [entry.snapshot for entry in entries] == sorted(entry.snapshot for entry in entries)
    assert len(entries) > 1
    assert same_as_batch(store, out)


def test_a_killed_process_has_lost_no_more_than_one_look(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    post(store, *(event for number in range(6) for event in rollout(f"e{number}")))
    groups = []
    for _ in range(3):
        with following(store, "p", out, Spec(), most=4) as follower:
            entry = step(follower)
            groups += written(entry)
            assert verify_export(store, "p", out).findings == []
    assert groups == [(f"e{number}", 0, (f"e{number}",)) for number in range(6)]
    assert same_as_batch(store, out)


def test_a_deletion_behind_what_one_look_takes_is_followed(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    post(store, *rollout("a", "g"), *rollout("b", "g"))
    with following(store, "p", out, Spec(), most=2) as follower:
        list(looks(follower, interval_s=0.001, until_idle_s=0.001))
        post(store, make.reward("r", 0.5, episode="a"), *rollout("c"), *rollout("d"))
        delete.delete_episode(store, "p", "b")
        list(looks(follower, interval_s=0.001, until_idle_s=0.001))
    assert same_as_batch(store, out)


def test_looks_do_not_end_while_a_group_is_to_be_read_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody said that `u` has ended, so the last look takes it; an event of it is replaced just then."""
    out = tmp_path / "out"
    post(store, answered("c", "u", 1))
    graphs, more = Store.training_graphs, answered("c", "u", 1, 2).model_copy(update={"revision": 1})
    num_reads = 0

    def replaced_before(self: Store, *asked: Any, **how: Any) -> list[Graph]:
        nonlocal num_reads
        num_reads += 1
        if num_reads == 2:
            post(store, more)
        return graphs(self, *asked, **how)

    monkeypatch.setattr(Store, "training_graphs", replaced_before)
    with following(store, "p", out, Spec()) as follower:
        entries = list(looks(follower, interval_s=0.001, until_idle_s=0.05))
    assert [one for entry in entries for one in written(entry)] == [("u", 0, ("u",))]
    assert same_as_batch(store, out)


def test_groups_of_the_spec_may_come_later_and_no_other_is_followed(store: Store, tmp_path: Path) -> None:
    with following(store, "p", tmp_path / "out", Spec(groups=("g",))) as follower:
        post(store, *rollout("a", "other"), *rollout("b"))
        assert follower.step().entry is None
        post(store, *rollout("c", "g"))
        assert written(step(follower)) == [("g", 0, ("c",))]
    assert verify_export(store, "p", tmp_path / "out").findings == []


def test_only_groups_of_which_something_came_are_read(
    store: Store, follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    post(store, *(event for number in range(6) for event in rollout(f"e{number}")))
    step(follower)
    read: set[str] = set()
    load, training_graphs = Store.load, Store.training_graphs

    def one(self: Store, project: str, episode_id: str, **more: Any) -> Any:
        read.add(episode_id)
        return load(self, project, episode_id, **more)

    def some(self: Store, project: str, episode_ids: Sequence[str], **more: Any) -> Any:
        read.update(episode_ids)
        return training_graphs(self, project, episode_ids, **more)

    monkeypatch.setattr(Store, "load", one)
    monkeypatch.setattr(Store, "training_graphs", some)
    post(store, make.reward("r", 1.0, episode="e3"), *rollout("new"))
    step(follower)
    assert read == {"e3", "new"}


# --- What was deleted -------------------------------------------------------------------------------


def held(folder: Path) -> list[str]:
    """The episodes in the files of a folder, one for each row of whatever revision that holds them."""
    export = open_export(folder)
    assert export.log is not None
    assert {path.name for path in folder.glob("*shard*")} == set(export.log.shards)
    batches = (batch for shard in export.log.shards.values() for batch in export.all_batches(shard))
    return sorted(one.episode_id for row in map(from_batch, batches) for one in row.episodes)


def test_a_deleted_episode_leaves_the_files_in_whatever_revision_it_was_written(
    store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with following(store, "p", out, Spec(shard_rows=2)) as follower:
        post(store, *rollout("a", "g"), *rollout("b", "g"), *rollout("c"), *rollout("d"), *rollout("e"))
        step(follower)
        post(store, make.reward("r", 0.5, episode="a"), make.reward("r2", 0.5, episode="d"))
        step(follower)
        assert held(out) == ["a", "a", "b", "b", "c", "d", "d", "e"]
        delete.delete_episode(store, "p", "a")
        entry = step(follower)
        assert (written(entry), stones(entry)) == ([("g", 2, ("b",))], [("g", 1, "deleted")])
        # c, d | e, g 0 and d 1, g 1: the first file has the old row of d and stays, two are written again.
        moved = {one.file: one.shard and (one.shard.file, one.shard.rows) for one in entry.rewritten}
        assert moved == {
            "shard-00000001-0001.arrow": ("shard-00000003-0001.arrow", 1),
            "shard-00000002-0000.arrow": ("shard-00000003-0002.arrow", 1),
        }
        assert held(out) == ["b", "c", "d", "d", "e"]
        assert Log.open(out) == follower.log
        assert same_as_batch(store, out)
        post(store, make.reward("r3", 1.0, episode="d"), make.reward("r4", 1.0, episode="e"))
        assert stones(step(follower)) == [("d", 1, "revised"), ("e", 0, "revised")]
        assert same_as_batch(store, out)
        for id_ in "bcde":
            delete.delete_episode(store, "p", id_)
        entry = step(follower)
    assert {one.shard for one in entry.rewritten} == {None}
    assert held(out) == []
    assert Log.open(out) == follower.log
    assert verify_export(store, "p", out).findings == []


def test_an_episode_that_is_deleted_once_its_rows_count_no_more_leaves_the_files_too(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, make.group("g", size=2), *rollout("a", "g"), *rollout("b", "g"))
    step(follower)
    delete.delete_episode(store, "p", "a")
    assert step(follower).conservation.excluded == {"group_open": 2}
    assert held(tmp_path / "out") == []
    post(store, answered("x-c", "x", 1, 2))
    assert written(follower.step(is_last=True).entry or step(follower)) == [("x", 0, ("x",))]
    more = answered("x-c", "x", 1, 2, 3).model_copy(update={"revision": 1})
    post(store, make.group("h", size=2), more, make.episode("x", group_id="h", status="ok"))
    assert stones(step(follower)) == [("x", 0, "replaced")]
    assert held(tmp_path / "out") == ["x"]
    delete.delete_episode(store, "p", "x")
    assert step(follower).tombstones == ()
    assert held(tmp_path / "out") == []


def test_a_deleted_project_leaves_no_file(store: Store, follower: Follower, tmp_path: Path) -> None:
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    delete.delete_project(store, "p")
    assert [one.file for one in step(follower).rewritten] == ["shard-00000001-0000.arrow"]
    assert list((tmp_path / "out").glob("*shard*")) == []


def test_what_was_redacted_leaves_the_files_too(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with following(store, "p", out, Spec(compression="none")) as follower:
        post(store, *rollout("a"), *rollout("b"))
        step(follower)
        post(store, make.reward("r", 1.0, episode="a", scorer="sk-ABC"))
        step(follower)
        post(store, make.reward("r2", 1.0, episode="a"))
        step(follower)
        assert holding(out, b"sk-ABC") == ["shard-00000002-0000.arrow", "shard-00000003-0000.arrow"]
        found = redact.add_rules(store, "p", json.dumps([{"name": "key", "pattern": "sk-[A-Z]+"}]))
        redact.carry_out(store, "p", found.id)
        step(follower)
    assert holding(out, b"sk-ABC") == []
    assert verify_export(store, "p", out).findings == []


def holding(folder: Path, what: bytes) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and what in path.read_bytes())


def test_a_reader_goes_on_where_shards_were_written_again(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    """It has the news of an entry in hand while the file goes; later ones hand no row out again."""
    out = tmp_path / "out"
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    old = open_export(out)
    news = old.follow(poll_s=0.001)
    first = next(news)
    delete.delete_episode(store, "p", "a")
    step(follower)
    assert [row.episodes[0].episode_id for row in first.rows()] == ["b"]
    second = next(news)
    assert (stones(second.entry), list(second.rows())) == ([("a", 0, "deleted")], [])
    again = list(open_export(out).follow(idle_s=0))
    assert [[row.episodes[0].episode_id for row in one.rows()] for one in again] == [["b"], []]
    with pytest.raises(ShardMissing, match="open the export again"):
        list(old.rows())
    (out / "shard-00000002-0000.arrow").unlink()
    with pytest.raises(ShardMissing):
        list(first.rows())


def test_killed_at_any_sync_or_rename_of_a_deletion_it_is_carried_out_by_the_next(
    store: Store, tmp_path: Path
) -> None:
    """A shard of 3 such points, two that are written again of as many, an entry of 4, a removal of 1."""
    url = f"sqlite:///{tmp_path / 't.db'}"
    out = tmp_path / "out"
    post(store, *rollout("a", "g"), *rollout("b", "g"), *rollout("c"))
    with following(store, "p", out, Spec(shard_rows=2)) as follower:
        step(follower)
        post(store, make.reward("r", 0.5, episode="a"), make.reward("r2", 0.5, episode="c"))
        step(follower)
    delete.delete_episode(store, "p", "a")
    exit_codes = []
    while not exit_codes or exit_codes[-1]:
        child = FORK.Process(target=_follow_until_killed, args=(url, out, len(exit_codes), 2))
        child.start()
        child.join(60)
        exit_codes.append(child.exitcode)
        assert len(list(open_export(out).rows())) == 2
        if Log.open(out).number == 3:
            break
    assert exit_codes.count(-signal.SIGKILL) >= 8
    with following(store, "p", out, Spec(shard_rows=2)) as follower:
        assert follower.step().entry is None
    assert held(out) == ["b", "c"]
    assert same_as_batch(store, out)


# --- Folders and processes --------------------------------------------------------------------------


def test_another_process_goes_on_where_one_was(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with following(store, "p", out, Spec(shard_rows=1)) as follower:
        open_one = make.episode("open", phase="start")
        post(store, *rollout("a"), *rollout("b"), open_one, answered("o", "open", 7))
        assert len(step(follower).shards) == 2
    (out / "shard-00000002-0000.arrow").write_bytes(b"of a process that was killed")
    (out / ".shard-00000002-0001.arrow.partial").write_bytes(b"the same")
    with following(store, "p", out, Spec(shard_rows=1)) as follower:
        assert {path.name for path in out.glob("*shard*")} == {
            "shard-00000001-0000.arrow",
            "shard-00000001-0001.arrow",
        }
        assert follower.step().entry is None
        post(store, *rollout("c"))
        entry = step(follower)
        assert entry.number == 2
        assert written(entry) == [("c", 0, ("c",))]
        assert entry.conservation.excluded == {"group_open": 1}
    assert same_as_batch(store, out)


def test_one_process_follows_into_a_folder(store: Store, follower: Follower, tmp_path: Path) -> None:
    with pytest.raises(InUse), following(store, "p", tmp_path / "out", Spec()):
        pass


@pytest.mark.parametrize(("project", "spec"), [("q", Spec()), ("p", Spec(objective="sft"))])
def test_a_folder_follows_one_thing(store: Store, tmp_path: Path, project: str, spec: Spec) -> None:
    with following(store, "p", tmp_path / "out", Spec()):
        pass
    with pytest.raises(OtherExport), following(store, project, tmp_path / "out", spec):
        pass


def test_a_folder_with_something_else_in_it_is_refused(store: Store, tmp_path: Path) -> None:
    post(store, *rollout("a"))
    export(store, "p", tmp_path / "batch", Spec())
    with pytest.raises(NotEmpty), following(store, "p", tmp_path / "batch", Spec()):
        pass


def _follow_until_killed(url: str, out: Path, left: int, shard_rows: int) -> None:
    def counted(name: str) -> None:
        whole = getattr(os, name)

        def wrapped(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(*args)

        setattr(os, name, wrapped)

    spec = Spec(shard_rows=shard_rows)
    with Store.open(url) as store, following(store, "p", out, spec) as follower:
        for name in ("replace", "fsync"):
            counted(name)
        follower.step()
    os._exit(0)


def test_killed_at_any_sync_or_rename_nothing_is_lost_and_nothing_doubled(
    store: Store, tmp_path: Path
) -> None:
    """Two shards of 3 such points each, an entry of 4: 10 kills, each of them right after the last."""
    url = f"sqlite:///{tmp_path / 't.db'}"
    out = tmp_path / "out"
    post(store, *rollout("a"), *rollout("b"))
    exit_codes = []
    while not exit_codes or exit_codes[-1]:
        child = FORK.Process(target=_follow_until_killed, args=(url, out, len(exit_codes), 1))
        child.start()
        child.join(60)
        exit_codes.append(child.exitcode)
        assert len(list(open_export(out).rows())) in (0, 2)
        if open_export(out).log is not None and Log.open(out).number:
            break
    assert exit_codes.count(-signal.SIGKILL) >= 8
    with following(store, "p", out, Spec(shard_rows=1)) as follower:
        assert follower.step().entry is None
    assert {path.name for path in out.glob("*shard*")} == set(Log.open(out).shards)
    assert same_as_batch(store, out)


def test_looks_go_on_until_nothing_comes_and_leave_no_closed_group(store: Store, tmp_path: Path) -> None:
    post(store, answered("a-c", "a", 1, 2), *rollout("b"))
    with following(store, "p", tmp_path / "out", Spec()) as follower:
        entries = list(looks(follower, interval_s=0.001, until_idle_s=0.002))
    assert [written(entry) for entry in entries] == [[("b", 0, ("b",))], [("a", 0, ("a",))]]
    assert same_as_batch(store, tmp_path / "out")


# --- Readers ----------------------------------------------------------------------------------------


def test_a_reader_gets_each_entry_once_and_no_row_that_was_replaced(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a"), *rollout("b"))
    step(follower)
    news = open_export(tmp_path / "out").follow(poll_s=0.001)
    first = next(news)
    assert sorted(row.episodes[0].episode_id for row in first.rows()) == ["a", "b"]
    post(store, make.reward("r", 1.0, episode="b"))
    step(follower)
    second = next(news)
    assert (second.entry.number, stones(second.entry)) == (2, [("b", 0, "revised")])
    assert [len(row.rewards) for row in second.rows()] == [1]
    again = list(open_export(tmp_path / "out").follow(idle_s=0))
    assert [[row.episodes[0].episode_id for row in one.rows()] for one in again] == [["a"], ["b"]]
    assert [one.entry.number for one in open_export(tmp_path / "out").follow(after=1, idle_s=0)] == [2]


def test_a_batch_export_does_not_go_on(store: Store, tmp_path: Path) -> None:
    export(store, "p", tmp_path / "batch", Spec())
    with pytest.raises(NotAnExport):
        next(open_export(tmp_path / "batch").follow())


def test_verify_finds_a_damaged_shard_and_a_damaged_log(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a"))
    step(follower)
    out = tmp_path / "out"
    path = out / "log" / "00000001.json"
    text = path.read_text()
    path.write_text(text.replace('"trained_tokens": 2', '"trained_tokens": 3'))
    with pytest.raises(LogCorrupt):
        verify_export(store, "p", out)
    path.write_text(text)
    flip_a_bit(out / "shard-00000001-0000.arrow")
    assert {"shard_checksum"} <= {one.name for one in verify_export(store, "p", out).findings}


@pytest.mark.parametrize(
    ("events", "finding"),
    [
        ([*rollout("new")], "group_missing"),
        ([make.reward("r", 1.0, episode="a")], "rewards_differ"),
        ([answered("more", "a", 5)], "late_differs"),
    ],
)
def test_verify_finds_what_a_follower_left_out(
    store: Store, follower: Follower, tmp_path: Path, events: Sequence[AnyEvent], finding: str
) -> None:
    """An entry that says it has seen what it has not."""
    post(store, *rollout("a"))
    first = step(follower)
    post(store, *events)
    at = store.snapshot("p")
    empty = {"shards": (), "groups": (), "tombstones": (), "late": ()}
    log = Log.open(tmp_path / "out")
    log.append(first.model_copy(update={"number": 2, "previous": log.hash, "snapshot": at, **empty}))
    assert finding in {one.name for one in verify_export(store, "p", tmp_path / "out").findings}


# --- Lag --------------------------------------------------------------------------------------------


def test_lag_counts_what_is_not_trained_and_what_is_not_followed(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a", version=3), *rollout("b", version=5), *rollout("c", version=4))
    step(follower)
    post(store, make.consumption("u", "b-c", episode="b", run="r1"))
    log = Log.open(tmp_path / "out")
    expected = Lag(
        manifest_hash=log.first_hash,
        groups=3,
        unconsumed_groups=2,
        unconsumed_tokens=4,
        oldest_version=3,
        newest_version=4,
        late_tokens=0,
        waiting_groups=0,
        snapshot=7,
        followed=6,
        runs={"r1": Untrained(2, 4, 3, 4)},
    )
    assert lag(store, "p", log) == lag(store, "p", log, run="r1") == expected
    assert expected.behind == 1
    assert lag(store, "p", log, run="r2").unconsumed_groups == 3
    post(store, *rollout("d"), make.episode("e", phase="start"))
    assert lag(store, "p", log).waiting_groups == 1
    step(follower)
    found = lag(store, "p", Log.open(tmp_path / "out"))
    assert (found.groups, found.unconsumed_groups, found.waiting_groups) == (4, 3, 0)


def test_lag_tells_training_runs_apart_and_counts_what_came_late(
    store: Store, follower: Follower, tmp_path: Path
) -> None:
    post(store, *rollout("a", version=3), *rollout("b", version=5), *rollout("c", version=4))
    step(follower)
    post(store, make.consumption("u", "b-c", episode="b", run="r1"))
    post(store, *(make.consumption(f"u{id_}", f"{id_}-c", episode=id_, run="r2") for id_ in "ab"))
    post(store, answered("a-late", "a", 7, 8, 9))
    step(follower)
    found = lag(store, "p", Log.open(tmp_path / "out"))
    assert found.late_tokens == 3
    assert found.runs == {"r1": Untrained(2, 4, 3, 4), "r2": Untrained(1, 2, 4, 4)}
    assert (found.unconsumed_groups, found.oldest_version) == (1, 4)


def test_nothing_followed_is_no_lag_and_no_version(store: Store, follower: Follower, tmp_path: Path) -> None:
    found = lag(store, "p", Log.open(tmp_path / "out"))
    numbers = {"groups": 0, "late_tokens": 0, "waiting_groups": 0, "snapshot": 0, "followed": 0}
    assert found == Lag(0, 0, None, None, manifest_hash=follower.log.first_hash, **numbers, runs={})


def test_many_processes_may_come_and_go(store: Store, tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number in range(3):
            follower = stack.enter_context(following(store, "p", tmp_path / "out", Spec()))
            post(store, *rollout(f"e{number}"))
            assert step(follower).number == number + 1
            stack.close()
