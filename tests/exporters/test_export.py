from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.stores import all_scenarios, flip_a_bit, grouped, rows_of, shard_of, stored
from tests.scenarios import SCENARIOS
from tracestore.graph.model import Graph
from tracestore.shards.manifest import Manifest, NotAnExport, read_manifest
from tracestore.shards.read import open_export
from tracestore.shards.row import Row
from tracestore.store.delete import carry_out, delete_episode
from tracestore.store.load import SnapshotGone
from tracestore.store.store import Store
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import NotEmpty, OtherExport, Task, export, in_process
from tracestore_exporters.parts import Part
from tracestore_exporters.place import BadOut, InUse
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export


def episode(name: str, *, group_id: str | None = "g", status: str | None = "ok") -> list[AnyEvent]:
    """One call of two sampled tokens."""
    return [
        make.episode(name, group_id=group_id, status=status, phase="whole" if status else "start"),
        make.call(
            f"{name}c", None, make.answer(None, ids=[4, 5]), prompt_ids=[1], episode=name, agent=f"{name}a"
        ),
        make.reward(f"{name}r", 1.0, episode=name),
    ]


def test_every_scenario_from_a_real_store_is_conserved(tmp_path: Path) -> None:
    with stored(tmp_path, all_scenarios()) as store:
        manifest = export(store, "p", tmp_path / "out", Spec(shard_rows=4))
    expected = {name: make() for name, make in SCENARIOS.items()}
    sampled = sum(scenario.sampled_tokens for scenario in expected.values())
    table = manifest.conservation
    assert (table.sampled_tokens, table.trained_tokens, table.excluded) == (sampled, sampled, {})
    assert manifest.samples == sum(scenario.num_samples for scenario in expected.values())
    assert manifest.causes["compaction"] == manifest.causes["template_drift"] == 1
    assert [shard.rows for shard in manifest.shards] == [4, 4, 2]
    assert read_manifest(tmp_path / "out") == manifest
    rows = rows_of(tmp_path / "out")
    assert [row.episodes[0].episode_id for row in rows] == sorted(f"{name}/e" for name in expected)


def test_one_row_holds_one_group(tmp_path: Path) -> None:
    events = [make.group("g"), *episode("e1"), *episode("e2"), *episode("alone", group_id=None)]
    with stored(tmp_path, events) as store:
        manifest = export(store, "p", tmp_path / "out", Spec())
    first, second = rows_of(tmp_path / "out")
    assert (first.group_id, [e.episode_id for e in first.episodes], first.closed_by) == (
        "g",
        ["e1", "e2"],
        "episodes",
    )
    assert (second.group_id, second.closed_by) == (None, "episodes")
    assert (manifest.groups, manifest.rows, manifest.samples) == (2, 2, 3)


def test_open_groups_wait_and_are_counted(tmp_path: Path) -> None:
    events = [make.group("g", size=3), *episode("e1"), *episode("e2"), *episode("x", group_id=None)]
    with stored(tmp_path, events) as store:
        manifest = export(store, "p", tmp_path / "out", Spec())
    assert manifest.conservation.excluded == {"group_open": 4}
    assert (manifest.conservation.sampled_tokens, manifest.conservation.trained_tokens) == (6, 2)
    assert [row.group_id for row in rows_of(tmp_path / "out")] == [None]


def test_a_group_that_ended_short_of_its_size_is_exported_from_the_snapshot_of_its_end_on(
    tmp_path: Path,
) -> None:
    started = make.group("g", size=4, phase="start")
    with stored(tmp_path, [started, *episode("e1"), *episode("e2"), *episode("e3")]) as store:
        before = store.snapshot("p")
        store.ingest("p", [make.posted(make.group("g", phase="end"))])
        export(store, "p", tmp_path / "out", Spec())
        assert export(store, "p", tmp_path / "open", Spec(), snapshot=before).rows == 0
        assert verify_export(store, "p", tmp_path / "out").findings == []
        assert verify_export(store, "p", tmp_path / "open").findings == []
    (row,) = rows_of(tmp_path / "out")
    assert (row.closed_by, len(row.episodes)) == ("event", 3)


def test_a_group_whose_last_episode_runs_is_not_exported(tmp_path: Path) -> None:
    events = [make.group("g"), *episode("e1"), *episode("e2", status=None)]
    manifest = export(MemorySource(events), "p", tmp_path / "out", Spec())
    assert manifest.conservation.excluded == {"group_open": 4}


def candidates_of(name: str) -> list[AnyEvent]:
    """An episode out of the statistics, of whose two candidates one was chosen."""
    return [
        make.episode(name, status="infra_error"),
        make.call(
            f"{name}c",
            None,
            make.answer(None, ids=[4, 5]),
            make.answer(None, ids=[6]),
            prompt_ids=[1],
            episode=name,
        ),
        make.candidate_set("set", make.member(f"{name}c", 0), make.member(f"{name}c", 1), episode=name),
        make.selection("s", "set", 0, episode=name, treatment="exclude"),
    ]


def test_rejected_candidates_stay_in_the_shard_even_where_nothing_trains(tmp_path: Path) -> None:
    source = MemorySource(candidates_of("e"))
    manifest = export(source, "p", tmp_path / "out", Spec())
    (row,) = rows_of(tmp_path / "out")
    assert (row.num_trained, len(row.candidate_sets), row.token_ids.tolist()) == (0, 1, [1, 4, 5, 6])
    assert manifest.conservation.excluded == {"infra_error": 3}
    assert manifest.notes == ("3 of 3 sampled tokens are excluded as infra_error",)
    assert verify_export(source, "p", tmp_path / "out").findings == []


def test_candidates_without_token_ids_make_no_row(tmp_path: Path) -> None:
    events = [
        make.episode("e"),
        make.call("c", [make.user("u")], "only text", episode="e"),
        make.candidate_set("set", make.member("c"), episode="e"),
    ]
    assert export(MemorySource(events), "p", tmp_path / "out", Spec()).rows == 0


def test_a_group_in_which_nothing_trains_is_counted_and_makes_no_row(tmp_path: Path) -> None:
    events = [*episode("e1", group_id=None, status="infra_error"), *episode("e2", group_id=None)]
    with stored(tmp_path, events) as store:
        manifest = export(store, "p", tmp_path / "out", Spec())
    assert manifest.conservation.excluded == {"infra_error": 2}
    assert manifest.rows == 1


def test_an_infra_error_stays_in_its_groups_row_outside_the_statistics(tmp_path: Path) -> None:
    events = [make.group("g"), *episode("e1", status="infra_error"), *episode("e2")]
    with stored(tmp_path, events) as store:
        export(store, "p", tmp_path / "out", Spec())
    (row,) = rows_of(tmp_path / "out")
    assert [(e.status, e.in_statistics) for e in row.episodes] == [("infra_error", False), ("ok", True)]
    assert row.num_trained == 2


def test_a_snapshot_is_exported_as_it_was(tmp_path: Path) -> None:
    with stored(tmp_path, episode("e1", group_id=None)) as store:
        at = store.snapshot("p")
        before = export(store, "p", tmp_path / "before", Spec())
        store.ingest("p", [make.posted(event) for event in episode("e2", group_id=None)])
        store.ingest("p", [make.posted(make.reward("late", 2.0, episode="e1"))])
        then = export(store, "p", tmp_path / "then", Spec(), snapshot=at)
        now = export(store, "p", tmp_path / "now", Spec())
    assert then.manifest_hash == before.manifest_hash
    assert (then.rows, now.rows) == (1, 2)


def test_a_zero_row_export_explains_itself(tmp_path: Path) -> None:
    def notes(name: str, *events: AnyEvent) -> str:
        manifest = export(MemorySource(events), "p", tmp_path / name, Spec())
        assert (manifest.rows, manifest.shards) == (0, ())
        return "\n".join(manifest.notes)

    assert notes("nothing") == "project 'p' has no episodes at this snapshot"
    text = make.call("c", [make.user("u")], "only text")
    assert "no call has token ids (1 answered calls without)" in notes("text", make.episode(), text)
    assert "1 of 1 groups are still open" in notes("open", *episode("e", group_id=None, status=None))
    failed = episode("e", group_id=None, status="infra_error")
    assert "2 of 2 sampled tokens are excluded as infra_error" in notes("failed", *failed)


def test_calls_without_ids_are_a_line_of_the_table(tmp_path: Path) -> None:
    events = [
        *episode("e", group_id=None),
        make.call("t1", [make.user("u")], "text", episode="e", usage={"completion_tokens": 7}),
        make.call("t2", [make.user("u")], "text", episode="e", usage={"completion_tokens": 5}),
        make.call("t3", [make.user("u")], "text", episode="e"),
        make.call("failed", [make.user("u")], episode="e", status="failed"),
    ]
    table = export(MemorySource(events), "p", tmp_path / "out", Spec()).conservation
    assert (table.no_token_ids_calls, table.no_token_ids_tokens) == (3, 12)
    assert (table.sampled_tokens, table.trained_tokens, table.completions) == (2, 2, 1)


def test_a_completion_whose_call_never_came_is_counted_as_incomplete(tmp_path: Path) -> None:
    stray = make.completion("gone", body=make.answer("a", ids=[7, 8, 9]), episode="e")
    table = export(
        MemorySource([*episode("e", group_id=None), stray]), "p", tmp_path / "out", Spec()
    ).conservation
    assert (table.sampled_tokens, table.trained_tokens) == (5, 2)
    assert table.excluded == {"call_incomplete": 3}


def test_nothing_is_written_into_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(NotEmpty, match="never changed or mixed"):
        export(MemorySource(episode("e")), "p", tmp_path / "out", Spec())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export(MemorySource(episode("e", group_id=None)), "p", tmp_path / "out", Spec())
    assert names(tmp_path / "out") == ["manifest.json", shard_of(tmp_path / "out").name]


class Failing(MemorySource):
    """A store that breaks at the n-th episode that is loaded."""

    def __init__(self, events: Iterable[AnyEvent], *, at: int) -> None:
        super().__init__(events)
        self.left = at

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph:
        self.left -= 1
        if self.left == 0:
            raise OSError("disk gone")
        return super().load_graph(project, episode_id, snapshot=snapshot)


THREE = [event for name in ("e1", "e2", "e3") for event in episode(name, group_id=None)]
ONE_EACH = Spec(shard_rows=1)


def begun(out: Path, events: Iterable[AnyEvent] = THREE, spec: Spec = ONE_EACH) -> Path:
    """An export that failed at its third shard; where its first two lie."""
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(events, at=3), "p", out, spec)
    assert not out.exists()
    return out.with_name(f".{out.name}.partial")


def test_an_export_that_fails_in_its_first_shard_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=1), "p", tmp_path / "out", ONE_EACH)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_failed_later_goes_on_with_the_shards_that_are_missing(tmp_path: Path) -> None:
    notes: list[str] = []
    whole = export(MemorySource(THREE), "p", tmp_path / "whole", ONE_EACH)
    begun(tmp_path / "out")
    only_one_more = Failing(THREE, at=2)
    progress: list[tuple[int, int]] = []
    manifest = export(
        *(only_one_more, "p", tmp_path / "out", ONE_EACH),
        progress=lambda *done: progress.append(done),
        note=notes.append,
    )
    assert manifest == whole
    assert progress == [(2, 3), (3, 3)]
    assert notes == [f"going on with the export of snapshot {len(THREE)}: 2 of 3 shards are there"]
    assert names(tmp_path) == ["out", "whole"]
    assert names(tmp_path / "out") == names(tmp_path / "whole")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_whoever_is_broken_off_hears_what_goes_on(tmp_path: Path) -> None:
    notes: list[str] = []
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(THREE, at=3), "p", tmp_path / "out", ONE_EACH, note=notes.append)
    where = tmp_path / ".out.partial"
    assert notes == [f"2 of 3 shards are finished in {where}: the same command goes on from there"]


@pytest.mark.parametrize("what", ["export/shard-00001-*.arrow", "parts/shard-00001.arrow.json"])
@pytest.mark.parametrize("harm", [flip_a_bit, Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_finished_shard_that_was_harmed_is_made_again(
    what: str, harm: Callable[[Path], object], tmp_path: Path
) -> None:
    whole = export(MemorySource(THREE), "p", tmp_path / "whole", ONE_EACH)
    (found,) = begun(tmp_path / "out").rglob(what)
    harm(found)
    assert export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH) == whole
    assert verify_export(MemorySource(THREE), "p", tmp_path / "out").findings == []


def test_what_was_begun_stays_at_its_snapshot(tmp_path: Path) -> None:
    with stored(tmp_path, THREE) as store:
        at = store.snapshot("p")
        whole = export(store, "p", tmp_path / "whole", ONE_EACH)
        with pytest.raises(KeyboardInterrupt):
            export(store, "p", tmp_path / "out", ONE_EACH, progress=interrupts_at(2))
        store.ingest("p", [make.posted(event) for event in episode("e0", group_id=None)])
        assert export(store, "p", tmp_path / "out", ONE_EACH) == whole
        assert export(store, "p", tmp_path / "now", ONE_EACH).snapshot > whole.snapshot == at


def interrupts_at(groups: int) -> Callable[[int, int], None]:
    def progress(done: int, _total: int) -> None:
        if done == groups:
            raise KeyboardInterrupt

    return progress


def test_another_export_is_not_mixed_with_what_was_begun(tmp_path: Path) -> None:
    partial = begun(tmp_path / "out")
    others: list[tuple[dict[str, Any], list[str]]] = [
        ({"spec": Spec(shard_rows=1, objective="sft", max_tokens=9)}, ["max_tokens", "objective"]),
        ({"project": "q"}, ["project"]),
        ({"snapshot": 1}, ["snapshot"]),
    ]
    for change, differences in others:
        asked = {"project": "p", "out": tmp_path / "out", "spec": ONE_EACH} | change
        with pytest.raises(OtherExport, match="give its command again to finish it, remove it") as error:
            export(MemorySource(THREE), **asked)
        assert error.value.values == {"path": str(partial), "differs": differences}
    assert export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH, snapshot=len(THREE)).rows == 3


def test_what_was_begun_beside_is_named_where_there_is_no_export_yet(tmp_path: Path) -> None:
    partial = begun(tmp_path / "out")
    with pytest.raises(NotAnExport, match="the command that began it goes on with it") as error:
        open_export(tmp_path / "out")
    assert str(partial) in str(error.value)
    with pytest.raises(NotAnExport, match="export again into an empty folder"):
        open_export(tmp_path / "other")


def test_what_was_deleted_since_is_not_in_what_goes_on(tmp_path: Path) -> None:
    notes: list[str] = []
    with stored(tmp_path, THREE) as store:
        with pytest.raises(KeyboardInterrupt):
            export(store, "p", tmp_path / "out", ONE_EACH, progress=interrupts_at(3))
        carry_out(store, "p", delete_episode(store, "p", "e1").id)
        manifest = export(store, "p", tmp_path / "out", ONE_EACH, note=notes.append)
        assert manifest.manifest_hash == export(store, "p", tmp_path / "new", ONE_EACH).manifest_hash
    assert [row.episodes[0].episode_id for row in rows_of(tmp_path / "out")] == ["e2", "e3"]
    assert ["is begun anew: what it reads was replaced or deleted since" in note for note in notes] == [True]


def test_what_other_versions_began_is_begun_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("tracestore.__version__", "0.0.0.dev0")
        begun(tmp_path / "out")
    manifest = export(MemorySource(THREE), "p", tmp_path / "out", ONE_EACH, note=notes.append)
    assert manifest.libraries["tracestore"] != "0.0.0.dev0"
    assert ["is begun anew: versions have changed" in note for note in notes] == [True]


def test_an_export_whose_registration_was_killed_is_registered_by_the_same_command(tmp_path: Path) -> None:
    registered: list[str] = []

    def killed(_manifest: Manifest) -> None:
        raise KeyboardInterrupt

    source = MemorySource(THREE)
    with pytest.raises(KeyboardInterrupt):
        export(source, "p", tmp_path / "out", Spec(), register=killed)
    made = export(
        source, "p", tmp_path / "out", Spec(), register=lambda one: registered.append(one.manifest_hash)
    )
    assert registered == [made.manifest_hash] == [read_manifest(tmp_path / "out").manifest_hash]
    assert names(tmp_path) == ["out"]
    with pytest.raises(NotEmpty):
        export(source, "p", tmp_path / "out", Spec())


def test_two_exporters_do_not_write_one_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracestore_exporters.staging._PATIENCE_S", 0)

    def try_it_too(_done: int, _total: int) -> None:
        with pytest.raises(InUse, match=r"\.out\.partial"):
            export(MemorySource(THREE), "p", tmp_path / "out", Spec())

    assert export(MemorySource(THREE), "p", tmp_path / "out", Spec(), progress=try_it_too).rows == 3
    assert names(tmp_path) == ["out"]


def test_a_place_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in ("gs://bucket/prefix", tmp_path / "file" / "out"):
        with pytest.raises(BadOut):
            export(MemorySource(THREE), "p", out, Spec())


def test_progress_counts_groups(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    events = [*episode("e1", group_id=None), *episode("e2", group_id=None)]
    export(
        MemorySource(events), "p", tmp_path / "out", Spec(), progress=lambda done, n: seen.append((done, n))
    )
    assert seen == [(1, 2), (2, 2)]


def test_two_rollouts_of_one_prompt_share_it(tmp_path: Path) -> None:
    events = [make.group("g")]
    for name in ("one", "two"):
        events += grouped(SCENARIOS["linear"](), prefix=name, group_id="g")
    export(MemorySource(events), "p", tmp_path / "out", Spec())
    (row,) = rows_of(tmp_path / "out")
    # Scenario linear holds 104 tokens, 26 of them in the first prompt.
    assert len(row.token_ids) == 104 + 104 - 26


def test_what_was_deleted_while_the_shards_were_made_is_not_published(tmp_path: Path) -> None:
    with stored(tmp_path, [*episode("e1"), *episode("e2")]) as store:

        def then_deleted(task: Task, shards: Any, **how: Any) -> Iterator[Part]:
            yield from in_process(store)(task, shards, **how)
            carry_out(store, "p", delete_episode(store, "p", "e1").id)

        with pytest.raises(SnapshotGone):
            export(store, "p", tmp_path / "out", Spec(), engine=then_deleted)
        assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
        assert [row.episodes[0].episode_id for row in _exported(store, tmp_path / "out")] == ["e2"]


def _exported(store: Store, out: Path) -> list[Row]:
    export(store, "p", out, Spec())
    return rows_of(out)
