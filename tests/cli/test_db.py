from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests import factories as make
from tracestore.cli.main import main
from tracestore.store.tables import REVISION
from tracestore_migrations import open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tracestore.db"


def answered(capsys: pytest.CaptureFixture[str], action: str, path: Path) -> tuple[int, dict[str, object]]:
    code = main(["db", action, "--db", f"sqlite:///{path}", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_upgrade_makes_a_database_and_then_has_nothing_to_do(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answered(capsys, "upgrade", path) == (0, {"revision_before": None, "revision": REVISION})
    assert answered(capsys, "upgrade", path) == (0, {"revision_before": REVISION, "revision": REVISION})


def test_check_finds_a_table_that_was_changed_by_hand(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["db", "upgrade", "--db", f"sqlite:///{path}"])
    capsys.readouterr()
    assert answered(capsys, "check", path) == (0, {"revision": REVISION, "differences": []})
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE episode ADD COLUMN mood TEXT")
    connection.close()
    code, found = answered(capsys, "check", path)
    assert code == 1
    assert "mood" in str(found["differences"])


def test_stats_count_each_content_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """16 calls with one system message of 1,000 letters: stored once, compressed."""
    store = open_store(f"sqlite:///{path}")
    prompt = make.system("a" * 1000)
    calls = [make.call(f"c{n}", [prompt], f"answer {n}", ordinal=n) for n in range(16)]
    store.ingest("default", [make.posted(event) for event in [make.episode(), make.agent(), *calls]])
    store.close()
    code, facts = answered(capsys, "stats", path)
    assert (code, facts["episodes"], facts["calls"], facts["completions"]) == (0, 1, 16, 16)
    assert 1000 < int(str(facts["content_bytes"])) < 16 * 1000
    assert int(str(facts["stored_content_bytes"])) < int(str(facts["content_bytes"]))
    assert facts["database_bytes"] == path.stat().st_size


@pytest.mark.parametrize("action", ["check", "stats"])
def test_a_database_that_is_not_there_is_not_made(
    action: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", action, "--db", f"sqlite:///{path}"]) == 1
    assert "There is no tracestore in this database" in capsys.readouterr().err
    assert not path.exists()
