from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Said, scripted_upstream
from tests.factories import call, episode, posted, raw, tool_call
from tests.replay.conversations import events_of
from tracestore.cli.main import main
from tracestore.store.store import Store
from tracestore_api import serve as server
from tracestore_api.serve import Listening

HARNESS = """
import json, os, sys, urllib.request
for question in sys.argv[1:]:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data=body)
    request.add_header("Authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    try:
        urllib.request.urlopen(request).read()
    except urllib.error.HTTPError:
        pass
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('replay')}/t.db"
    with Store.open(url) as store:
        for place, question in enumerate(("one?", "two?")):
            request = {"model": "m", "messages": [{"role": "user", "content": question}]}
            events = events_of(
                "openai_chat", request, d.chat(question[:-1]), call_id=f"c{place}", ordinal=place
            )
            store.ingest("tau", [posted(event) for event in (episode("e"), *events)])
    return url


def check(
    database: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    *questions: str,
    flags: Sequence[str] = (),
) -> tuple[int, str]:
    harness = tmp_path / "harness.py"
    harness.write_text(HARNESS)
    command = shlex.join([sys.executable, str(harness), *questions])
    words = ["replay", "--db", database, "--project", "tau", "--episode", "e", *flags]
    return main([*words, "--check", command]), capfd.readouterr().out


def test_a_harness_that_asks_what_was_recorded_is_identical(
    database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out = check(database, tmp_path, capfd, "one?", "two?")
    assert (code, out) == (0, "identical: all 2 recorded calls were asked, and nothing else\n")


def test_one_that_has_changed_is_told_where(
    database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, out = check(database, tmp_path, capfd, "one?", "ten?")
    assert code == 1
    assert "diverged after 1 answered calls" in out
    assert "messages[0].content, byte 0" not in out  # "two?" and "ten?" begin alike
    assert "messages[0].content, byte 1" in out
    assert "never asked: c1 (1 in all)" in out


def test_one_that_goes_on_at_a_model_makes_a_fork(
    database: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    with scripted_upstream() as upstream:
        upstream.says(Said(d.chat("ten")))
        flags = ("--mode", "record-missing", "--upstream", upstream.url)
        code, out = check(database, tmp_path, capfd, "one?", "ten?", flags=flags)
    assert code == 0  # the harness's own: that it diverges is what was asked for
    assert upstream.seen[0].header("authorization") == "Bearer sk-mine"
    id_ = next(line.split()[2].rstrip(",") for line in out.splitlines() if line.startswith("recorded as"))
    assert f"recorded as {id_}, a fork after c0" in out
    with Store.open(database) as store:
        graph = store.load_graph("tau", id_)
    assert [one.message.value()["content"] for one in graph.completions.values() if one.message] == ["ten"]
    assert graph.episode is not None
    assert graph.episode.forked_from_call_id == "c0"


def test_the_environment_names_the_key_that_the_shell_has(
    database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ready(*args: Any, on_ready: Callable[[Listening], None], **names: Any) -> None:
        on_ready(Listening(url="http://127.0.0.1:1", are_keys_needed=False))

    monkeypatch.setattr(server, "serve", ready)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    words = ["--mode", "policy", "--upstream", "http://127.0.0.1:2", "--project", "tau", "--episode", "e"]
    assert main(["replay", "--db", database, *words]) == 0
    # zsh takes `$NAME:t` for the last part of a path, so the name stands in braces.
    [line] = [one for one in capsys.readouterr().out.splitlines() if "OPENAI_API_KEY" in one]
    assert line.strip() == "OPENAI_API_KEY=${OPENAI_API_KEY}:ts-project=tau"
    ran = subprocess.run(["sh", "-c", f"{line}; echo $OPENAI_API_KEY"], capture_output=True, text=True)
    assert ran.stdout == "sk-mine:ts-project=tau\n"


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (("--mode", "record-missing"), "name --upstream"),
        (("--upstream", "http://127.0.0.1:1"), "in which a model answers"),
        (("--mode", "strict", "--inject"), "in which a model answers"),
        (("--mode", "live-after", "--upstream", "http://127.0.0.1:1"), "stand together"),
        (("--mode", "policy", "--live-after", "1", "--upstream", "http://127.0.0.1:1"), "stand together"),
    ],
)
def test_modes_that_lack_something_say_what(
    flags: tuple[str, ...], hint: str, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["replay", "--db", database, "--project", "tau", "--episode", "e", *flags]
    assert main([*argv, "--check", "true"]) == 2
    assert hint in capsys.readouterr().err


TOOLS = """
from tracestore.client import NotReplayed, tool

@tool
def look(n):
    raise SystemExit("it ran")

assert look(1) == "found"
try:
    look(2)
except NotReplayed:
    pass
"""


def test_tools_give_what_was_recorded_and_one_that_differs_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    ran = tool_call("x", "c", name="look", arguments='{"n":1}', result=raw("found"))
    with Store.open(url) as store:
        store.ingest("tau", [posted(event) for event in (episode("e"), call("c", None), ran)])
    (tmp_path / "harness.py").write_text(TOOLS)

    command = shlex.join([sys.executable, str(tmp_path / "harness.py")])
    argv = ["replay", "--db", url, "--project", "tau", "--episode", "e", "--tools", "--check", command]
    assert main(argv) == 1
    out = capfd.readouterr().out
    assert "exit code" not in out  # the first run gave what was recorded
    assert "tool look diverged after 1 answered runs" in out
    assert "nearest recorded run   x" in out
    assert "arguments.n\n    recorded             1\n    asked                2\n" in out


def test_an_episode_that_is_not_there_is_told_before_anything_runs(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["replay", "--db", database, "--project", "tau", "--episode", "none", "--check", "false"]
    assert main(argv) == 1
    assert "tracestore show" in capsys.readouterr().err


def test_an_mcp_server_has_stdin_and_stdout_to_itself(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["replay", "--db", database, "--project", "tau", "--episode", "e", "--mcp", "--check", "true"]
    assert main(argv) == 2
    assert "goes without --check" in capsys.readouterr().err


def test_an_episode_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["replay", "--json"])
    assert "--episode" in json.loads(capsys.readouterr().err)["message"]
