from __future__ import annotations

import argparse
import json
import os

import pytest

from tracestore.cli import common


def args(*, as_json: bool) -> argparse.Namespace:
    return argparse.Namespace(json=as_json)


def test_a_table_aligns_numbers_to_the_right_and_shows_unknown_as_null() -> None:
    assert common.table(["name", "tokens"], [("plan", 1200), ("act", None)]) == (
        "name  tokens\n"
        "----  ------\n"
        "plan    1200\n"
        "act     NULL"
    )  # fmt: skip


def test_a_table_without_rows_still_names_its_columns() -> None:
    assert common.table(["name", "tokens"], []) == "name  tokens\n----  ------"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines", "two\\nlines"),
        ("\ud800", "\\ud800"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("é 漢 😀", "é 漢 😀"),
    ],
)
def test_recorded_text_cannot_move_the_cursor_of_its_reader(text: str, shown: str) -> None:
    assert common.printable(text) == shown


def test_facts_are_one_json_line_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_facts({"calls": 2, "excluded": {"unsampled": 5}}, args=args(as_json=True))
    assert json.loads(capsys.readouterr().out) == {"calls": 2, "excluded": {"unsampled": 5}}


def test_facts_are_two_columns_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    common.print_facts({"calls": 2, "excluded": {"unsampled": 5}}, args=args(as_json=False))
    assert capsys.readouterr().out == 'calls     2\nexcluded  {"unsampled": 5}\n'


def test_notes_for_people_are_silent_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    common.note("loading", args=args(as_json=True))
    common.note("loading", args=args(as_json=False))
    assert capsys.readouterr() == ("", "loading\n")


def test_progress_is_silent_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with common.progress("export", args=args(as_json=False), total=2) as advance:
        advance(1)
        advance(1)
    assert capsys.readouterr() == ("", "")


def test_a_missing_extra_says_what_to_install() -> None:
    with (
        pytest.raises(common.MissingExtra, match=r'pip install "tracestore\[serve\]"'),
        common.extra("serve"),
    ):
        raise ModuleNotFoundError("No module named 'fastapi.responses'", name="fastapi.responses")


def test_a_broken_import_of_our_own_is_not_blamed_on_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError, match="tracestore_api"), common.extra("serve"):
        raise ModuleNotFoundError("No module named 'tracestore_api.x'", name="tracestore_api.x")


@pytest.mark.parametrize(("given", "expected"), [(None, "passive"), ("active", "active")])
def test_threads_wait_without_spinning_unless_the_caller_says_otherwise(
    given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    common.share_cpus()
    assert os.environ["OMP_WAIT_POLICY"] == expected
