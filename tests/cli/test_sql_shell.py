"""The shell of `tracestore sql`: statements end at a semicolon, names are completed, errors do not end it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tracestore.cli.sql_shell import completions, shell
from tracestore.store.sql_guard import SqlRefused

VIEWS = {"calls": ["project", "call_id", "model"], "episodes": ["project", "episode_id"]}


@pytest.fixture(autouse=True)
def _history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def asked(lines: Iterable[str | type[BaseException]]) -> list[str]:
    """What the shell asks when these lines are typed."""
    found: list[str] = []
    typed = iter(lines)

    def read(prompt: str) -> str:
        line = next(typed, EOFError)
        if isinstance(line, str):
            return line
        raise line

    def answer(statement: str) -> int:
        found.append(statement)
        if "bad" in statement:
            raise SqlRefused(hint="no")
        return 0

    assert shell(VIEWS, answer=answer, read=read) == 0
    return found


def test_a_statement_may_take_several_lines_and_ends_at_a_semicolon() -> None:
    assert asked(["", "SELECT 1", "", "  + 1; ", "SELECT 2;", "SELECT 3"]) == [
        "SELECT 1\n\n  + 1; ",
        "SELECT 2;",
    ]


def test_an_error_is_told_and_the_shell_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(["bad;", "SELECT 1;"]) == ["bad;", "SELECT 1;"]
    assert "This SQL is not run; no" in capsys.readouterr().out


def test_an_interrupt_forgets_what_was_typed() -> None:
    assert asked(["SELECT", KeyboardInterrupt, "SELECT 1;"]) == ["SELECT 1;"]


def test_commands_begin_with_a_dot(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked([".help", ".views", ".views calls nope", ".quit", "SELECT 1;"]) == []
    out = capsys.readouterr().out
    assert ".quit" in out
    assert "episodes\n    project, episode_id\n" in out
    assert "nope\n    there is no such view\n" in out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("SELECT * FROM ep", ["episodes", "episode_id"]),
        ("sel", ["SELECT"]),
        ("FROM calls WHERE m", ["model"]),
        ("FROM calls WHERE e", ["ELSE", "END", "EXISTS", "episodes"]),
        ("FROM calls c JOIN episodes e WHERE c.", ["c.call_id", "c.episode_id", "c.model", "c.project"]),
        (".v", [".views"]),
        ("SELECT ''", None),
    ],
)
def test_the_last_word_is_completed(line: str, expected: list[str] | None) -> None:
    found = completions(line, VIEWS)
    assert expected is None or sorted(found) == sorted(expected)
