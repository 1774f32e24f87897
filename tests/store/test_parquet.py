"""The Parquet files hold what the views show, and a run writes what has changed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from sqlalchemy import text

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, assistant, call, posted, subagent, user
from tests.store.credits import given, kept, rule
from tests.store.servers import postgresql
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.store.delete import delete_episode, delete_project
from tracestore.store.engine import writer
from tracestore.store.parquet import EpisodeState, ExportInHand, NotOurFolder, Part, export_parquet, plan
from tracestore.store.schema import view_statements


def events_of(name: str, **episode: Any) -> list[Any]:
    """Of each view a row: ids of their own for each episode."""
    of: dict[str, Any] = {"episode": name, "agent": f"main-{name}"}
    return [
        make.episode(name, **episode),
        make.agent(f"main-{name}", episode=name),
        call(f"{name}-c0", [user("héllo")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0, **of),
        call(f"{name}-c1", [user("héllo"), assistant("a"), user("v")], "b", "c", ordinal=1, **of),
        call(f"{name}-orphan", [user("w")], parent="gone", delta=True, **of),
        make.reward(f"r-{name}", episode=name, value=0.1),
        make.gap(f"g-{name}", episode=name),
    ]


def store_of(url: str) -> Store:
    store = Store.open(url)
    rich = [
        make.group("g"),
        make.episode(group_id="g", status="ok"),
        make.agent(),
        call("c0", [user("héllo\x00")], answer("a", ids=[3, 4]), prompt_ids=[1, 2], ordinal=0),
        call("c1", [user("héllo\x00"), assistant("a"), user("v")], "b", "c", ordinal=1),
        subagent("sub", spawned_by="c0", trainable=False),
        make.tool_call(),
        make.candidate_set("s", make.member("c1", 0), make.member("c1", 1)),
        make.selection("x", "s", 1),
        make.compaction(before_call_id="c0", after_call_id="c1", replaced_call_ids=("c0",)),
        make.reward(value=0.1),
        make.gap(),
        make.consumption(),
        make.snapshot(),
        make.blob(),
        *events_of("fork", forked_from_episode_id="e", forked_from_call_id="c0"),
    ]
    ingest(store, "p", rich)
    ingest(store, "a/b=c", events_of("secret"))
    kept(store, "p", rule(), [given()])
    return store


def ingest(store: Store, project: str, events: Iterable[Any]) -> None:
    outcomes = store.ingest(project, [posted(event) for event in events])
    assert {outcome.status for outcome in outcomes} == {"stored"}, outcomes


def in_files(folder: Path, view: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT * FROM '{folder}/{view}/**/*.parquet'").fetchall()
    return sorted(rows, key=repr)


def in_view(store: Store, view: str) -> list[tuple[Any, ...]]:
    with store.read() as connection:
        return sorted(map(tuple, connection.execute(text(f"SELECT * FROM {view}"))), key=repr)


def require_same(folder: Path, store: Store) -> None:
    for view in view_statements():
        found, expected = in_files(folder, view), in_view(store, view)
        assert found == expected, view
        assert found, view


def test_the_files_hold_the_rows_of_every_view_whatever_the_size_of_a_part(tmp_path: Path) -> None:
    with store_of(f"sqlite:///{tmp_path / 't.db'}") as store:
        whole = export_parquet(store, tmp_path / "whole")
        require_same(tmp_path / "whole", store)
        parts = export_parquet(store, tmp_path / "parts", events_per_part=1)
        require_same(tmp_path / "parts", store)
        assert (whole.parts_written, parts.parts_written) == (2, 3)
        assert whole.rows == parts.rows
        assert whole.positions == {"p": store.snapshot("p"), "a/b=c": 7}
    schemas = {ds.dataset(tmp_path / folder / "episodes").schema for folder in ("whole", "parts")}
    assert len({schema.to_string() for schema in schemas}) == 1


def test_a_blob_has_the_size_that_another_episode_states(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 't.db'}") as store:
        ingest(store, "p", [make.episode("e0"), make.blob("b0", episode="e0", size=7)])
        ingest(store, "p", [make.episode("e1"), make.blob("b1", episode="e1")])
        export_parquet(store, tmp_path / "out", events_per_part=1)
        found = in_files(tmp_path / "out", "blobs")
        assert found == in_view(store, "blobs")
    assert {7} == {value for row in found for value in row if isinstance(value, int)}


def test_a_run_writes_the_parts_in_which_something_has_changed_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Store.open(f"sqlite:///{tmp_path / 't.db'}") as store:
        for number in range(2):
            ingest(store, "p", events_of(f"e{number}", group_id="g"))
        assert counted(store, folder) == (2, 0, 0)
        before = files(folder)
        assert counted(store, folder) == (0, 2, 0)
        assert files(folder) == before

        ingest(store, "p", [make.reward("late", episode="e1"), *events_of("e2")])
        assert counted(store, folder) == (2, 1, 0)
        changed = {path.name for path, inode in files(folder).items() if before.get(path) != inode}
        assert len(changed) == 2
        assert [row[1] for row in in_files(folder, "rewards")].count("e1") == 2

        newer = [make.reward("late", episode="e1", revision=1, value=0.5)]
        ingest(store, "p", newer)
        assert counted(store, folder) == (1, 2, 0)

        ingest(store, "p", [make.group("g", task_id="named late")])
        assert counted(store, folder) == (2, 1, 0)
        assert in_files(folder, "episodes") == in_view(store, "episodes")

        kept(store, "p", rule(), [given("e1", "main-e1")])
        assert counted(store, folder) == (1, 2, 0)
        assert in_files(folder, "credit") == in_view(store, "credit")


def counted(store: Store, folder: Path) -> tuple[int, int, int]:
    written = export_parquet(store, folder, events_per_part=7)
    return (written.parts_written, written.parts_kept, written.parts_removed)


def files(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in folder.glob("*/*/*.parquet")}


def test_what_is_deleted_goes_with_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Store.open(f"sqlite:///{tmp_path / 't.db'}") as store:
        ingest(store, "p", events_of("e0"))
        ingest(store, "p", events_of("e1"))
        ingest(store, "q", events_of("e0"))
        assert counted(store, folder) == (3, 0, 0)
        with writer(store.engine).connect() as connection:
            connection.connection.execute("PRAGMA foreign_keys = OFF")  # type: ignore[attr-defined]
            with connection.begin():
                connection.execute(text("DELETE FROM project WHERE name = 'q'"))
                sql = "DELETE FROM raw_event WHERE episode_key = (SELECT key FROM episode WHERE id = 'e1')"
                connection.execute(text(sql))
        assert counted(store, folder) == (0, 1, 2)
        assert {row[:2] for row in in_files(folder, "calls")} == {("p", "e0")}
        assert {path.parent.name for path in files(folder)} == {"project-1"}


def test_what_was_asked_to_be_deleted_goes_at_the_next_run_before_its_rows_are_erased(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    with Store.open(empty_store(tmp_path / "t.db")) as store:
        ingest(store, "p", events_of("e0"))
        ingest(store, "p", events_of("e1"))
        ingest(store, "q", events_of("e0"))
        assert counted(store, folder) == (3, 0, 0)
        delete_episode(store, "p", "e1")
        delete_project(store, "q")
        assert counted(store, folder) == (0, 1, 2)
        assert {row[:2] for row in in_files(folder, "calls")} == {("p", "e0")}
        assert {path.parent.name for path in files(folder)} == {"project-1"}
        assert export_parquet(store, folder, projects=["q"]).parts_written == 0


def test_a_run_that_was_killed_is_made_good_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tracestore.store import parquet

    copied = []

    def killed(*args: Any) -> int:
        copied.append(args)
        if len(copied) == len(view_statements()) + 4:  # in the second of three parts
            (args[3].parent / f".{args[3].name}.partial").write_bytes(b"half of a file")
            raise KeyboardInterrupt
        return unhindered(*args)

    unhindered = parquet._copy_view
    with store_of(f"sqlite:///{tmp_path / 't.db'}") as store:
        monkeypatch.setattr(parquet, "_copy_view", killed)
        with pytest.raises(KeyboardInterrupt):
            export_parquet(store, tmp_path / "out", events_per_part=1)
        monkeypatch.undo()
        written = export_parquet(store, tmp_path / "out", events_per_part=1)
        assert (written.parts_written, written.parts_kept) == (2, 1)
        require_same(tmp_path / "out", store)
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.name.startswith(".")]
    assert left == [".lock"]


def test_only_one_writes_and_only_to_a_folder_of_ours(tmp_path: Path) -> None:
    from tracestore.store.parquet import _manifest

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with Store.open(f"sqlite:///{tmp_path / 't.db'}") as store:
        for taken in ("mine", "mine/thesis.txt", "mine/thesis.txt/below"):
            with pytest.raises(NotOurFolder):
                export_parquet(store, tmp_path / taken)
        with _manifest(tmp_path / "out"), pytest.raises(ExportInHand):
            export_parquet(store, tmp_path / "out")


def test_postgresql_gives_the_same_files(tmp_path: Path) -> None:
    with store_of(f"sqlite:///{tmp_path / 't.db'}") as store:
        export_parquet(store, tmp_path / "sqlite")
    with postgresql() as url, store_of(url) as store:
        export_parquet(store, tmp_path / "postgresql")
    for view in view_statements():
        assert in_files(tmp_path / "postgresql", view) == in_files(tmp_path / "sqlite", view), view


def states(*sizes: int) -> list[EpisodeState]:
    """Episodes with the keys 10, 20, ..."""
    return [EpisodeState(10 * (index + 1), size, 1, 0) for index, size in enumerate(sizes)]


def test_a_part_ends_before_the_episode_that_would_make_it_too_large() -> None:
    # 3 + 3 = 6; 3 + 9 > 6; 9 alone; 1 + 1 = 2
    assert plan(states(3, 3, 9, 1, 1), [], limit=6) == [Part(0, 30), Part(30, 40), Part(40, None)]
    assert plan([], [0, 7], limit=6) == []


def test_parts_stay_where_they_are_until_they_have_grown_to_twice_the_size() -> None:
    starts = [0, 30, 40]
    # 6 + 6 = 12 = 2 * 6: stays. The last one is divided above 6: 1 + 5 = 6, 5.
    assert [part.start for part in plan(states(6, 6, 9, 1, 5, 5), starts, limit=6)] == [0, 30, 40, 60]
    # 6 + 7 = 13 > 12
    assert [part.start for part in plan(states(6, 7, 9, 1), starts, limit=6)] == [0, 20, 30, 40]
    # The episodes at 30 were deleted: the part before now reaches to the next.
    without = [state for state in states(3, 3, 9, 1) if state.key != 30]
    assert plan(without, starts, limit=6) == [Part(0, 40), Part(40, None)]


def test_the_verb_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    store_of(url).close()
    command = ["db", "parquet", str(tmp_path / "out"), "--db", url, "--project", "p", "--json"]
    assert main(command) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["parts_written"], facts["rows"]["episodes"]) == (1, 2)
    assert main([*command[:-2], "nobody"]) == 1
