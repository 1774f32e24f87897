from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.exporters.round_trip import facts
from tests.exporters.stores import grouped, stored
from tests.factories import call, episode
from tests.importers.reading import read_paths
from tests.scenarios import SCENARIOS
from tracestore_exporters.export import BeyondLatest, NotEmpty
from tracestore_exporters.interchange import Format, file_name, write_episodes


@pytest.mark.parametrize("format_", ["atif", "otlp", "rlm"])
def test_every_episode_of_a_store_comes_back_from_its_file(format_: Format, tmp_path: Path) -> None:
    names = ("interleaved_subagents", "bestof4", "tools_change")
    events = [one for name in names for one in grouped(SCENARIOS[name](), prefix=name)]
    with stored(tmp_path, events) as store:
        steps: list[tuple[int, int]] = []
        episodes, report = write_episodes(
            store, "p", tmp_path / "out", format=format_, progress=lambda *step: steps.append(step)
        )
        files = sorted((tmp_path / "out").iterdir())
        assert len(files) == episodes == len(steps)
        assert report.written["agent"] > 0
        graphs = read_paths(tmp_path / "out").graphs
        assert len(graphs) == episodes
        for episode_id, graph in graphs.items():
            before, after = facts(store.load_graph("p", episode_id)), facts(graph)
            for what in ("contexts", "completions", "tokens", "links", "rewards", "agents"):
                assert after[what] == before[what], (episode_id, what)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("x")
    with stored(tmp_path, [episode(), call("c0")]) as store, pytest.raises(NotEmpty):
        write_episodes(store, "p", tmp_path / "out", format="atif")


def test_a_snapshot_that_has_not_come_is_refused_and_leaves_no_folder(tmp_path: Path) -> None:
    with stored(tmp_path, [episode(), call("c0")]) as store, pytest.raises(BeyondLatest):
        write_episodes(store, "p", tmp_path / "out", format="atif", snapshot=10**6)
    assert not (tmp_path / "out").exists()


def test_ids_that_are_no_file_names_get_names_of_their_own() -> None:
    names = [file_name(one) for one in ("a", "a/b", "a_b", "../x", ".hidden", "x" * 200, "é")]
    assert names[0] == "a"
    assert len(set(names)) == len(names)
    assert all("/" not in name and not name.startswith(".") and len(name) < 100 for name in names)


def test_a_file_is_one_json_document(tmp_path: Path) -> None:
    with stored(tmp_path, [episode(), call("c0")]) as store:
        write_episodes(store, "p", tmp_path / "out", format="atif")
    (file,) = (tmp_path / "out").iterdir()
    assert json.loads(file.read_text())["schema_version"] == "ATIF-v1.8"
