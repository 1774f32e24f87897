from __future__ import annotations

from pathlib import Path

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.stores import all_scenarios, grouped, rows_of, stored
from tests.scenarios import SCENARIOS
from tracestore.graph.model import Graph
from tracestore.shards.manifest import read_manifest
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import NotEmpty, export
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
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["manifest.json", "shard-00000.arrow"]


class Failing(MemorySource):
    """A store that breaks at the second episode."""

    loads = 0

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph:
        self.loads += 1
        if self.loads == 2:
            raise OSError("disk gone")
        return super().load_graph(project, episode_id, snapshot=snapshot)


def test_an_export_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    events = [*episode("e1", group_id=None), *episode("e2", group_id=None)]
    with pytest.raises(OSError, match="disk gone"):
        export(Failing(events), "p", tmp_path / "out", Spec(shard_rows=1))
    assert list(tmp_path.iterdir()) == []


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
