"""`tracestore verify --state`: a check that was broken off goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.databases import empty_store
from tests.factories import episode, posted
from tracestore.cli.main import INTERRUPTED, main
from tracestore.store import Store
from tracestore.store.verify import _Checker


def test_a_check_that_was_broken_off_goes_on_and_counts_what_it_had_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url, state = empty_store(tmp_path / "t.db"), tmp_path / "state.json"
    with Store.open(url) as store:
        store.ingest("default", [posted(episode(f"e{number}")) for number in range(4)])
        with store.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE project SET commit_seq = 9")
    command = ["verify", "--db", url, "--json", "--state", str(state)]
    checked: list[int] = []
    step = _Checker.episodes

    def broken_off(self: _Checker, after: int) -> Any:
        if len(checked) == 2:
            raise KeyboardInterrupt
        checked.append(after)
        return step(self, after)

    monkeypatch.setattr(_Checker, "episodes", broken_off)
    assert main(command) == INTERRUPTED
    (finding,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert finding["name"] == "commit_positions"
    kept = json.loads(state.read_text())
    assert (kept["step"], kept["findings"]) == ("episodes", 1)

    other = empty_store(tmp_path / "other.db")
    with Store.open(other) as store:
        store.ingest("default", [posted(episode("e"))])
    assert main([*command, "--db", other]) == 2
    assert "OtherState" in capsys.readouterr().err

    def counting(self: _Checker, after: int) -> Any:
        checked.append(after)
        return step(self, after)

    monkeypatch.setattr(_Checker, "episodes", counting)
    assert main(command) == 1
    (summary,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (summary["episodes"], summary["findings"]) == (4, 1)
    # Two before, the other two after, and then there was no further one.
    assert len(checked) == len(set(checked)) == 5
    assert not state.exists()


KILLED = """
import os, signal, sys
from tracestore.cli.main import main
from tracestore.store import verify, verify_state

verify_state._EVERY_S = 0.0
step, seen = verify._Checker.episodes, []

def killed(self, after):
    seen.append(after)
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, after)

verify._Checker.episodes = killed
main(sys.argv[1:])
"""


def test_a_check_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, state = empty_store(tmp_path / "t.db"), tmp_path / "state.json"
    with Store.open(url) as store:
        store.ingest("default", [posted(episode(f"e{number}")) for number in range(4)])
    command = ["verify", "--db", url, "--json", "--state", str(state)]
    killed = subprocess.run([sys.executable, "-c", KILLED, *command], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert json.loads(state.read_text())["step"] == "episodes"
    checked: list[int] = []
    step = _Checker.episodes

    def counting(self: _Checker, after: int) -> Any:
        checked.append(after)
        return step(self, after)

    monkeypatch.setattr(_Checker, "episodes", counting)
    assert main(command) == 0
    # Two of four were checked; then come the other two, and the end.
    assert len(checked) == 3
    assert not state.exists()


def test_a_state_without_a_folder_is_refused_before_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_store(tmp_path / "t.db")
    with Store.open(url) as store:
        store.ingest("default", [posted(episode("e"))])
    assert main(["verify", "--db", url, "--state", str(tmp_path / "none" / "state.json")]) == 2
    assert "cannot be kept there" in capsys.readouterr().err
