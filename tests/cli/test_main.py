from __future__ import annotations

import argparse
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from sqlalchemy.exc import DBAPIError

from tracestore import __version__
from tracestore.cli import common, main
from tracestore.errors import TracestoreError
from tracestore.importers.formats import UnknownFormat
from tracestore.shards.manifest import NotAnExport
from tracestore.store.engine import BadUrl
from tracestore.store.sql_guard import SqlRefused
from tracestore.train.credit import UnknownRule
from tracestore.train.losses.base import UnknownLoss
from tracestore_api.errors import NotLoopback

SURFACE = {
    "serve": {
        *("--blobs", "--db", "--exports", "--host", "--inject", "--json", "--port", "--retain"),
        *("--upstream", "--workers"),
        *("--max-event-bytes", "--max-depth", "--max-body-bytes", "--max-events"),
        *("--max-offloaded-event-bytes", "--max-blob-bytes"),
        *("--max-requests-in-hand", "--max-bytes-in-hand", "--max-threads"),
        *("--max-sql-queries", "--max-sql-waiting", "--max-sql-s", "--max-sql-rows", "--max-sql-mb"),
        *("--max-requests-per-s", "--max-bytes-per-s", "--allow-host", "--allow-origin"),
    },
    "keys": {"action"},
    "keys create": {"--db", "--expires", "--json", "--name", "--project", "--scope"},
    "keys list": {"--db", "--json", "--project"},
    "keys revoke": {"--db", "--json", "--project", "prefix"},
    "keys rotate": {"--db", "--grace", "--json", "--project", "prefix"},
    "demo": {"--dir", "--json", "--scripted", "--system", "--traces"},
    "import": {"--db", "--format", "--json", "--list-formats", "--project", "--url", "paths"},
    "diff": {"--context", "--db", "--json", "--project", "one", "other"},
    "forks": {"--db", "--json", "--project", "episode"},
    "show": {"--context", "--db", "--json", "--picture", "--project", "id"},
    "sql": {
        *("--db", "--format", "--json", "--max-rows", "--memory", "--output", "--parquet", "--project"),
        *("--shards", "--timeout", "query"),
    },
    "export": {
        *("--blobs", "--db", "--json", "--objective", "--out", "--project", "--snapshot", "--spec"),
        *("--engine", "--format", "--render", "--template", "--tokenizer", "--workers"),
        *("--follow", "--interval", "--until-idle", "--settle", "--silence", "--lag", "--run"),
    },
    "convert": {"export", "--to", "--out", "--advantages", "--reward-term", "--json"},
    "replay": {
        *("--check", "--db", "--episode", "--inject", "--json", "--live-after", "--mcp", "--mode", "--port"),
        *("--project", "--times", "--tools", "--upstream"),
    },
    "credit": {"export", "--rule", "--reward-term", "--step", "--out", "--db", "--json"},
    "rescore": {
        *("--db", "--dry-run", "--episode", "--group", "--json", "--limit", "--name", "--project"),
        *("--scorer", "--scorer-version", "--status", "--url", "--weight"),
    },
    "train": {
        *("export", "--model", "--credit", "--loss", "--old-logprobs", "--steps", "--lr", "--dtype"),
        *("--max-tokens", "--micro-batch-tokens", "--seed", "--run", "--out", "--db", "--json"),
        *("--reward-term", "--epochs", "--groups-per-step", "--refill", "--replacement", "--max-reuse"),
        *("--follow", "--idle", "--policy-version", "--max-staleness", "--schedule", "--warmup"),
        *("--weight-decay", "--grad-clip", "--stop-at-drift", "--checkpoint-every", "--resume"),
        *("--clip-low", "--clip-high", "--importance-cap", "--denominator", "--denominator-length"),
        *("--critic", "--critic-lr", "--critic-clip", "--critic-epochs", "--critic-pretrain"),
        *("--reference", "--kl-weight", "--kl", "--entropy-weight", "--beta", "--label-smoothing"),
        *("--gradient-checkpointing", "--lora", "--tensorboard"),
    },
    "train-links": {
        *("latents", "--model", "--links", "--answer", "--inner-steps", "--outer-steps", "--lr", "--batch"),
        *("--seed", "--out", "--checkpoint-every", "--resume", "--json"),
    },
    "verify": {
        *("--blobs", "--db", "--json", "--project", "--state", "--template", "--tokenizer"),
        "exports",
    },
    "spool": {"action"},
    "spool list": {"--folder", "--json", "--project"},
    "spool show": {"--folder", "--json", "--project"},
    "spool drain": {"--folder", "--json", "--project", "--url"},
    "db": {"action"},
    "db upgrade": {"--db", "--json"},
    "db check": {"--db", "--json"},
    "db stats": {"--db", "--json"},
    "db backup": {"--blobs", "--db", "--json", "file"},
    "db restore": {"--blobs", "--db", "--json", "file"},
    "db parquet": {"--db", "--json", "--project", "folder"},
    "db delete": {
        *("--all", "--blobs", "--db", "--episode", "--json", "--keep-graded", "--older-than", "--project"),
        *("--reason", "--vacuum"),
    },
    "db retain": {"--blobs", "--db", "--dry-run", "--json", "rules"},
    "db redact": {"--db", "--end", "--json", "--list", "--project", "--reason", "--rules"},
}
"""Every verb and its flags. People's scripts depend on them: a change here belongs into the changelog."""


class GroupTornError(TracestoreError):
    """A part of the group is missing."""


def answer_with(monkeypatch: pytest.MonkeyPatch, run: Callable[[argparse.Namespace], int]) -> None:
    """Make `tracestore fake` the only verb, doing `run`."""

    def add_parser(subparsers: common.Subparsers) -> None:
        common.verb_parser(subparsers, "fake", help="A verb.", example="tracestore fake")

    monkeypatch.setattr(main, "VERBS", (("fake", SimpleNamespace(add_parser=add_parser, run=run)),))


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def parsers(parser: argparse.ArgumentParser, *, path: str = "") -> dict[str, argparse.ArgumentParser]:
    """Every command below a parser, by its words."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                words = f"{path} {name}".strip()
                found |= {words: sub} | parsers(sub, path=words)
    return found


COMMANDS = parsers(main.build_parser())


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_the_verbs(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    answer_with(monkeypatch, lambda args: code)
    assert main.main(["fake"]) == code


def test_an_error_the_caller_can_fix_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, raising(GroupTornError(group_id="g1", hint="export the group\nagain")))
    assert main.main(["fake"]) == 1
    assert capsys.readouterr() == (
        "",
        "tracestore: A part of the group is missing: group_id='g1'; export the group again\n",
    )


def test_with_json_an_error_is_one_object_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, raising(GroupTornError(group_id="g1", hint="export again")))
    assert main.main(["fake", "--json"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err) == {
        "error": "GroupTornError",
        "message": "A part of the group is missing: group_id='g1'; export again",
        "hint": "export again",
        "values": {"group_id": "'g1'"},
    }


def test_a_file_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_with(monkeypatch, raising(FileNotFoundError(2, "No such file or directory", "gone.json")))
    assert main.main(["fake"]) == 1
    assert capsys.readouterr().err == "tracestore: [Errno 2] No such file or directory: 'gone.json'\n"


@pytest.mark.parametrize("argv", [["fake"], ["fake", "--json"]])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), DBAPIError("SELECT", {}, Exception("gone"))]
)
def test_what_the_machine_refuses_is_one_line_too(
    error: Exception,
    argv: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer_with(monkeypatch, raising(error))
    assert main.main(argv) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert ("No space left" in err) or ("gone" in err)


def test_a_promise_broken_in_our_own_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, raising(AssertionError("segments overlap")))
    with pytest.raises(AssertionError, match="segments overlap"):
        main.main(["fake"])


def test_asking_wrongly_is_exit_code_2(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, raising(common.UsageError(hint="name a call")))
    assert main.main(["fake"]) == 2
    for argv in ([], ["fake", "--no-such-flag"], ["no-such-verb"]):
        with pytest.raises(SystemExit) as stopped:
            main.main(argv)
        assert stopped.value.code == 2


@pytest.mark.parametrize("words", ["show --bogus --json", "db upgrade --json --bogus", "no-such-verb --json"])
def test_with_json_asking_wrongly_is_one_object_on_stderr(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(words.split())
    assert stopped.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    facts = json.loads(err)
    assert facts["error"] == "UsageError"
    assert words.split()[0] in facts["hint"] or "--bogus" in facts["hint"]


@pytest.mark.parametrize(
    "words",
    [
        "serve --port 99999999",
        "serve --port -1",
        "sql SELECT --timeout nan",
        "sql SELECT --timeout -1",
        "sql SELECT --max-rows -1",
        "sql SELECT --max-rows many",
        "import x --url nonsense",
        "import x --url http://",
        "train x --model m --lr -1",
        "train x --model m --lr nan",
        "train x --model m --steps 0",
    ],
)
def test_a_value_out_of_its_range_is_asked_for_wrongly(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(words.split())
    assert stopped.value.code == 2
    assert f"argument {words.split()[-2]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [BadUrl, NotLoopback, UnknownRule, UnknownLoss, SqlRefused, UnknownFormat, NotAnExport]
)
def test_an_error_says_itself_that_it_was_asked_for_wrongly(
    error: type[TracestoreError], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_with(monkeypatch, raising(error()))
    assert main.main(["fake"]) == 2


def test_ctrl_c_is_128_plus_sigint(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, raising(KeyboardInterrupt()))
    assert main.main(["fake"]) == 128 + signal.SIGINT


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    """`tracestore --help | true`, made certain: the pipe is closed before the command writes."""
    script = (
        "import sys; from types import SimpleNamespace; from tracestore.cli import common, main\n"
        "add = lambda sub: common.verb_parser(sub, 'fake', help='A verb.', example='tracestore fake')\n"
        "run = lambda args: common.print_line('x' * 100_000) or 0\n"
        "main.VERBS = (('fake', SimpleNamespace(add_parser=add, run=run)),)\n"
        "sys.exit(main.main(['fake']))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"tracestore {__version__}\n"


def test_the_verbs_and_their_flags_are_these() -> None:
    flags = {
        words: {option for action in parser._actions for option in action.option_strings or [action.dest]}
        - {"-h", "--help"}
        for words, parser in COMMANDS.items()
    }
    assert flags == SURFACE


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_every_command_ends_with_an_example(words: str) -> None:
    example = COMMANDS[words].format_help().partition("example:\n  ")[2]
    assert example.startswith(f"tracestore {words}")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_speaks_json(words: str) -> None:
    takes_subcommands = any(other.startswith(f"{words} ") for other in COMMANDS)
    assert takes_subcommands or "--json" in COMMANDS[words].format_help()


def test_help_loads_no_heavy_package() -> None:
    script = (
        "import sys; from tracestore.cli import main; main.build_parser().format_help()\n"
        "print([name for name in ('torch', 'fastapi', 'sqlalchemy', 'pyarrow', 'duckdb', 'pydantic', 'numpy')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
