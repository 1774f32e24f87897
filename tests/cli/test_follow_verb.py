"""`tracestore export --follow`, `--lag` and `tracestore verify` on what they wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.cli.test_export_verb import run
from tests.exporters.stores import stored
from tests.factories import answer, call, posted, user
from tracestore.cli.common import UsageError
from tracestore.cli.main import main
from tracestore.shards.log import Log
from tracestore.store import Store
from tracestore.store.delete import carry_out, delete_episode
from tracestore.store.exports import exports
from tracestore.wire.events import AnyEvent

EVENTS: list[AnyEvent] = [
    call("c0", [user("u")], answer("a", ids=[1, 2]), episode="e", prompt_ids=[9]),
    make.episode("e", status="ok"),
    call("c1", [user("u")], answer("b", ids=[3]), episode="f", agent="f-main", prompt_ids=[9]),
    make.episode("f", status="ok"),
]
IDLE = ("--interval", "0.001", "--until-idle", "0.001")


@pytest.fixture
def db(tmp_path: Path) -> str:
    with stored(tmp_path, EVENTS):
        return f"sqlite:///{tmp_path}/t.db"


def follow(db: str, out: Path, *argv: str) -> int:
    return run("export", "--follow", "--db", db, "--project", "p", "--out", str(out), *IDLE, *argv)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_a_spec_names_and_nothing_has_is_told_once_while_it_is_followed(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"policies": ["actr"]}')
    assert follow(db, tmp_path / "out", "--spec", str(spec)) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "policies" in line]
    assert told == ["note: so far policies: 'actr' is not there; there are 'policy' (2 calls)"]
    assert follow(db, tmp_path / "right") == 0
    assert "so far" not in capsys.readouterr().err


def test_follow_prints_each_entry_and_then_what_an_export_prints(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow(db, tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "entry 1, snapshot 4, groups 2, rows 2, trained tokens 3, late tokens 0" in printed
    assert "trained      3  100.0 %" in printed
    with Store.open(db) as store:
        store.ingest("p", [posted(make.reward("r", episode="e"))])
    assert follow(db, tmp_path / "out", "--json") == 0
    entry, facts = lines(capsys)
    assert (entry["entry"], entry["replaced"], entry["shards"]) == (2, 1, ["shard-00000002-0000.arrow"])
    assert (facts["rows"], facts["trained_tokens"]) == (2, 3)


def test_the_store_knows_of_every_entry_those_of_one_snapshot_too(db: str, tmp_path: Path) -> None:
    """Nobody said that `g` has ended: it comes with the last look, and nothing since the first entry."""
    with Store.open(db) as store:
        unsaid = call("c2", [user("u")], answer("c", ids=[4, 5]), episode="g", agent="g-main", prompt_ids=[9])
        store.ingest("p", [posted(unsaid)])
        assert follow(db, tmp_path / "out") == 0
        log = Log.open(tmp_path / "out")
        assert log.number == 2
        [found] = exports(store, "p")
        assert (found.manifest_hash, found.snapshot, found.trained_tokens) == (log.first_hash, 5, 5)
        with store.read() as connection:
            files = connection.exec_driver_sql("SELECT file FROM shard").scalars()
            assert set(files) == set(log.shards)


def test_lag_says_what_is_not_trained(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    follow(db, out)
    with Store.open(db) as store:
        used = make.consumption("u", "c0", episode="e", run="mine")
        store.ingest("p", [posted(used)])
    capsys.readouterr()
    asked = ("export", "--lag", "--db", db, "--project", "p", "--out", str(out), "--json")
    assert run(*asked) == run(*asked, "--run", "other") == 0
    first, second = lines(capsys)
    assert (first["groups"], first["unconsumed_groups"], first["unconsumed_tokens"]) == (2, 1, 1)
    assert (first["snapshot"], first["followed"], first["behind"]) == (5, 4, 1)
    assert second["unconsumed_groups"] == 2


def test_a_deletion_names_the_folder_and_verify_asks_to_follow_on(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    follow(db, out)
    assert run("verify", "--db", db, "--project", "p", str(out)) == 0
    with Store.open(db) as store:
        found = carry_out(store, "p", delete_episode(store, "p", "e").id)
    assert found.export_locations == (str(out),)
    assert run("verify", "--db", db, "--project", "p", str(out)) == 1
    assert "episode e was deleted after the last entry: follow on" in capsys.readouterr().out
    [left] = out.glob("*.arrow")
    data = left.read_bytes()
    follow(db, out)
    assert run("verify", "--db", db, "--project", "p", str(out)) == 0
    assert "1 rows, 1 samples, 1 sampled tokens, 1 trained tokens, 0 findings" in capsys.readouterr().out
    left.write_bytes(data)
    assert run("verify", "--db", db, "--project", "p", str(out)) == 1
    assert "shard_not_removed" in capsys.readouterr().out
    follow(db, out)
    assert run("verify", "--db", db, "--project", "p", str(out)) == 0


def test_sql_reads_no_rows_that_count_no_more(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(db, tmp_path / "out")
    assert main(["sql", "SELECT 1 FROM samples", "--shards", str(tmp_path / "out")]) == 2
    assert "export the snapshot without --follow" in capsys.readouterr().err


def test_a_project_that_has_not_begun_is_followed(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("--follow", "--db", db, "--project", "new", "--out", str(tmp_path / "out"), *IDLE)
    assert run("export", *argv) == 0
    assert "nothing has come to project 'new' yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["--interval", "1"],
        ["--until-idle", "1"],
        ["--settle", "1"],
        ["--silence", "1"],
        ["--run", "r"],
        ["--follow", "--lag"],
        ["--follow", "--snapshot", "1"],
        ["--follow", "--format", "atif"],
    ],
)
def test_flags_that_do_not_go_together_are_refused(db: str, tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(UsageError):
        run("export", "--db", db, "--out", str(tmp_path / "out"), *argv)
