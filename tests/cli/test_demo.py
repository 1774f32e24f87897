from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures import REPO
from tracestore.cli import demo
from tracestore.cli.main import main
from tracestore.cli.serving import ServerDown


def test_it_runs_on_the_traces_of_the_repository() -> None:
    assert [path.parent.name for path in demo._traces(None)] == [
        "candidates",
        "compaction",
        "linear",
        "subagents",
    ]
    assert {*demo._traces(None)} <= {*demo._traces(REPO / "sample_traces")}


def test_a_script_is_that_of_a_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--scripted"]) == 2
    assert "--system" in capsys.readouterr().err


def test_a_system_that_is_not_there_is_told_with_those_that_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--system", "nothing"]) == 2
    assert "linear" in capsys.readouterr().err


def test_without_traces_it_says_where_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--traces", str(tmp_path)]) == 1
    assert "--traces" in capsys.readouterr().err


def test_a_server_that_cannot_start_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    with pytest.raises(ServerDown), demo.loopback_server(tmp_path / "no" / "such" / "folder.db"):
        pass
