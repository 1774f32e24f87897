"""`tracestore keys` makes keys that a server takes, shows each once, and ends them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from tests.databases import empty_store
from tracestore.cli.keys import duration_s
from tracestore.cli.main import main
from tracestore.store import Store
from tracestore.store.keys import find_key, hash_of


@pytest.fixture
def db(tmp_path: Path) -> str:
    return empty_store(tmp_path / "t.db")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["keys", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def made(capsys: pytest.CaptureFixture[str], db: str, *words: str) -> dict[str, Any]:
    flags = ("--db", db, "--project", "tau", "--name", "rollouts", "--scope", "write", "--json")
    code, out, _ = run(capsys, "create", *flags, *words)
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def listed(capsys: pytest.CaptureFixture[str], db: str) -> list[dict[str, Any]]:
    _, out, _ = run(capsys, "list", "--db", db, "--project", "tau", "--json")
    return [json.loads(line) for line in out.splitlines()]


def test_a_key_is_shown_once_and_is_the_one_in_the_database(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = made(capsys, db, "--scope", "read", "--expires", "30d")
    with Store.open(db) as store, store.read() as connection:
        found = find_key(connection, hash_of(key["key"]))
    assert found is not None
    assert (found.project, found.name, found.scopes) == ("tau", "rollouts", ("read", "write"))
    assert found.expires_at == found.created_at + 30 * 86_400 * 10**9
    [shown] = listed(capsys, db)
    assert shown == {name: value for name, value in key.items() if name != "key"}
    _, table, _ = run(capsys, "list", "--db", db, "--project", "tau")
    assert key["prefix"] in table
    assert key["key"] not in table


def test_the_key_alone_stands_on_stdout_for_a_script_to_take(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "create", "--db", db, "--name", "n", "--scope", "admin")
    assert code == 0
    assert out.startswith("ts_")
    assert out.count("\n") == 1
    assert "only time" in err
    assert out.strip() not in err


def test_a_revoked_key_is_listed_as_such(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    prefix = made(capsys, db)["prefix"]
    code, out, _ = run(capsys, "revoke", prefix, "--db", db, "--project", "tau")
    assert (code, prefix in out) == (0, True)
    assert [key["state"] for key in listed(capsys, db)] == ["revoked"]


def test_a_rotation_shows_the_new_key_and_gives_the_old_one_its_grace(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = made(capsys, db)
    _, out, _ = run(
        capsys, "rotate", old["prefix"], "--grace", "2h", "--db", db, "--project", "tau", "--json"
    )
    new = json.loads(out)
    assert new["key"] != old["key"]
    before, after = listed(capsys, db)
    assert (before["prefix"], after["prefix"]) == (old["prefix"], new["prefix"])
    assert before["expires_at"] == new["created_at"] + 2 * 3600 * 10**9
    assert (after["expires_at"], after["scopes"], after["state"]) == (None, ["write"], "live")


def test_what_cannot_be_done_is_told_with_an_exit_code(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(capsys, db)
    assert run(capsys, "revoke", "nothing", "--db", db, "--project", "tau")[0] == 1
    assert run(capsys, "list", "--db", db, "--project", "nobody")[0] == 1
    assert run(capsys, "create", "--db", db, "--name", "", "--scope", "read")[0] == 2
    missing = f"sqlite:///{tmp_path}/missing.db"
    assert run(capsys, "list", "--db", missing)[0] == 1
    assert not (tmp_path / "missing.db").exists()


def test_a_key_may_be_the_first_thing_in_a_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = f"sqlite:///{tmp_path / 'new.db'}"
    assert made(capsys, db)["project"] == "tau"
    assert len(listed(capsys, db)) == 1


def test_a_time_is_a_number_and_a_unit() -> None:
    # 30 * 24 * 60 * 60
    assert [duration_s(text) for text in ("90s", "30m", "12h", "30d")] == [90, 1_800, 43_200, 2_592_000]
    for wrong in ("", "30", "0d", "1w", "1.5h", "-1d"):
        with pytest.raises(argparse.ArgumentTypeError):
            duration_s(wrong)
