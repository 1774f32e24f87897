"""`tracestore export --render`, and what `verify` and `train` say to its exports."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.stores import stored
from tests.factories import answer, call, episode, user
from tests.tokens.folders import CHATML, folder
from tracestore.cli import export, train, verify
from tracestore.cli.common import MissingExtra, UsageError
from tracestore_exporters.rendering import NothingToRender, NoTokenizer, RenderedForRl


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A database with two answers of one character and no ids, and a tokenizer."""
    work = tmp_path_factory.mktemp("render")
    events = [
        episode(status="ok"),
        call("c0", [user("u")], answer("a")),
        call("c1", [user("v")], answer("b"), parent="c0", delta=True),
    ]
    with stored(work, events):
        return f"sqlite:///{work}/t.db", str(folder(work / "tokenizer", CHATML))


def run(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers(dest="verb")
    verbs = {"export": export, "verify": verify, "train": train}
    for verb in verbs.values():
        verb.add_parser(subparsers)
    args = parser.parse_args(argv)
    return verbs[args.verb].run(args)


def last_json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return value


def test_text_becomes_an_export_that_verifies_and_that_train_asks_about(
    made: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, tokenizer = made
    out, store = str(tmp_path / "out"), ["--db", url, "--project", "p"]
    render = ["--render", "--tokenizer", tokenizer, "--objective", "sft"]
    assert run("export", "--json", *store, "--out", out, *render) == 0
    facts = last_json(capsys)
    # Two answers of a character and an end token, in one sample.
    assert (facts["trained_tokens"], facts["samples"], facts["rendered_completions"]) == (2 * 2, 1, 2)
    assert run("verify", "--json", *store, out, "--tokenizer", tokenizer) == 0
    assert last_json(capsys)["findings"] == 0
    with pytest.raises(NoTokenizer, match="as when it was exported"):
        run("verify", *store, out)
    with pytest.raises(train.RenderedExport, match="--old-logprobs recomputed"):
        run("train", out, "--model", str(tmp_path))


def test_the_tables_count_what_was_rendered(
    made: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, tokenizer = made
    template = tmp_path / "own.jinja"
    template.write_text(
        CHATML + "{% if messages[0].content == 'u' %}{{ raise_exception('not u') }}{% endif %}"
    )
    argv = ["export", "--db", url, "--project", "p", "--out", str(tmp_path / "out"), "--objective", "sft"]
    assert run(*argv, "--render", "--tokenizer", tokenizer, "--template", str(template)) == 0
    printed, said = capsys.readouterr()
    assert "not rendered: template_refused            2" in printed
    assert "calls without token ids: 2" in printed
    assert "2 completions are not rendered: template_refused, the first: not u" in said


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["--render"], RenderedForRl),
        (["--render", "--objective", "sft"], NoTokenizer),
        (["--objective", "sft", "--tokenizer", "TOKENIZER"], NothingToRender),
        (["--render", "--objective", "sft", "--template", "t.jinja"], UsageError),
    ],
)
def test_flags_that_do_not_go_together_are_wrong_use(
    made: tuple[str, str], tmp_path: Path, argv: list[str], error: type[Any]
) -> None:
    url, tokenizer = made
    named = [tokenizer if one == "TOKENIZER" else one for one in argv]
    with pytest.raises(error) as wrong:
        run("export", "--db", url, "--project", "p", "--out", str(tmp_path / "out"), *named)
    assert wrong.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_it_says_what_to_install(
    made: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, tokenizer = made
    for name in [name for name in sys.modules if name.startswith(("tokenizers", "tracestore.tokens."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    argv = ["--out", str(tmp_path / "out"), "--render", "--objective", "sft", "--tokenizer", tokenizer]
    with pytest.raises(MissingExtra, match=r"tracestore\[render\]"):
        run("export", "--db", url, "--project", "p", *argv)
