from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests import factories as make
from tests.shards.rows import tiny_row
from tracestore.cli.main import main
from tracestore.shards.write import write_shard
from tracestore_migrations import open_store


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two episodes, one with a task and a reward."""
    url = f"sqlite:///{tmp_path_factory.mktemp('sql') / 'tracestore.db'}"
    events = [
        make.episode("e1", task_id='a "quoted", one', status="ok"),
        make.agent(episode="e1"),
        make.call("c1", [make.user("hi")], "hello", episode="e1"),
        make.reward("r", 0.5, episode="e1"),
        make.episode("e2", status="failed"),
    ]
    store = open_store(url)
    store.ingest("default", [make.posted(event) for event in events])
    store.close()
    return url


def test_without_a_query_the_views_and_their_columns_are_listed(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", "--db", db, "--json"]) == 0
    views = json.loads(capsys.readouterr().out)
    assert {"episodes", "calls", "contexts", "branches", "critical_steps"} <= views.keys()
    assert main(["sql", f"SELECT * FROM calls WHERE {views['calls'][0]} IS NULL", "--db", db]) == 0
    assert main(["sql", "--db", db]) == 0
    assert "calls\n    project, episode_id" in capsys.readouterr().out


EPISODES = "SELECT episode_id, task_id, num_calls FROM episodes ORDER BY episode_id"


def test_a_table_for_people(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", EPISODES, "--db", db]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "episode_id  task_id          num_calls",
        "----------  ---------------  ---------",
        'e1          a "quoted", one          1',
        "e2          NULL                     0",
    ]


def test_one_object_for_machines(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", EPISODES, "--db", db, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "columns": ["episode_id", "task_id", "num_calls"],
        "rows": [["e1", 'a "quoted", one', 1], ["e2", None, 0]],
        "truncated": False,
    }


def test_csv_tells_null_from_the_empty_text(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT episode_id, task_id, '' AS nothing, 1.5 AS half FROM episodes ORDER BY episode_id"
    assert main(["sql", query, "--db", db, "--format", "csv"]) == 0
    out = capsys.readouterr().out
    assert out == 'episode_id,task_id,nothing,half\ne1,"a ""quoted"", one","",1.5\ne2,,"",1.5\n'
    assert next(csv.DictReader(out.splitlines()))["task_id"] == 'a "quoted", one'


def test_rows_beyond_the_limit_are_announced(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", EPISODES, "--db", db, "--format", "csv", "--max-rows", "1"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1 + 1
    assert err == "tracestore: only the first 1 rows; more with --max-rows\n"
    assert main(["sql", EPISODES, "--db", db, "--json", "--max-rows", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["truncated"] is True


@pytest.mark.parametrize(
    ("query", "code"),
    [("SELECT no_such_column FROM episodes", 1), ("DROP TABLE episode", 2), ("not sql", 2)],
)
def test_a_query_that_cannot_run_is_one_line(
    query: str, code: int, db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", query, "--db", db]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("tracestore: ")
    assert err.count("\n") == 1


def test_two_formats_at_once_are_asked_for_wrongly(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", EPISODES, "--db", db, "--json", "--format", "csv"]) == 2
    assert "not both" in capsys.readouterr().err


def test_another_project_sees_nothing(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", EPISODES, "--db", db, "--project", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", EPISODES, "--db", f"sqlite:///{tmp_path / 'none.db'}"]) == 1
    assert "There is no tracestore in this database" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_in_the_format_of_its_name(db: str, tmp_path: Path) -> None:
    tables = []
    for name in ("rows.parquet", "rows.arrow"):
        assert main(["sql", EPISODES, "--db", db, "--output", str(tmp_path / name)]) == 0
    tables.append(parquet.read_table(tmp_path / "rows.parquet"))
    with pa.ipc.open_stream(tmp_path / "rows.arrow") as reader:
        tables.append(reader.read_all())
    for table in tables:
        assert table.to_pydict() == {
            "episode_id": ["e1", "e2"],
            "task_id": ['a "quoted", one', None],
            "num_calls": [1, 0],
        }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.arrow", "rows.parquet"]


def test_a_parquet_export_is_asked_under_the_same_names_and_shows_one_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, project in (("0", "default"), ("1", "other"), ("2", "default")):
        folder = tmp_path / "episodes" / f"part={part}"
        folder.mkdir(parents=True)
        rows = pa.table({"project": [project], "episode_id": [f"e{part}"]})
        parquet.write_table(rows, folder / "0.parquet")
    assert main(["sql", "--parquet", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"episodes": ["project", "episode_id"]}
    query = "SELECT episode_id FROM episodes ORDER BY 1"
    assert main(["sql", query, "--parquet", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [["e0"], ["e2"]]
    refused = f"FROM read_parquet('{tmp_path}/episodes/part=1/0.parquet')"
    assert main(["sql", refused, "--parquet", str(tmp_path)]) == 2


def test_the_samples_of_an_export_are_a_view(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(tmp_path / "s.arrow", [tiny_row()])
    query = (
        "SELECT episode_id, agent_id, call_id, completion, num_segments, num_tokens, num_owned FROM samples"
    )
    assert main(["sql", f"{query} ORDER BY sample_id", "--shards", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == [
        ["e", "main", "c0", 1, 2, 4, 2],
        ["e", "main", "c1", 0, 4, 6, 3],
    ]
