"""The README is checked: its commands run, and every verb, route, file and test that it names is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from tests.cli.test_main import COMMANDS
from tests.serving import running_server
from tracestore.importers.formats import formats
from tracestore.settings import Settings, variable
from tracestore.store.schema import view_statements
from tracestore_api.app import create_app
from tracestore_migrations import open_store

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCKS if found == language]


def layout() -> dict[str, str]:
    """Path -> its line in the layout, folders ending in "/"."""
    (tree,) = blocks("text")
    found, folders = {}, [""]
    for line in tree.splitlines():
        name, _, what = line.strip().partition(" ")
        depth = (len(line) - len(line.lstrip())) // 2
        folders = [*folders[: depth + 1], folders[depth] + name]
        found[folders[-1]] = what.strip()
    return found


def test_the_first_screen_has_the_two_commands() -> None:
    first = README.splitlines()[:15]
    commands = [line.partition("#")[0].strip() for line in first]
    assert "make demo" in commands
    assert "make test" in commands


def test_the_quick_start_runs_and_what_it_recorded_can_be_exported(tmp_path: Path) -> None:
    (python,) = blocks("python")
    assert 10 <= sum(1 for line in python.splitlines() if line.strip()) <= 30
    database = tmp_path / "tracestore.db"
    with running_server(database) as server:
        script = python.replace("http://127.0.0.1:8421", server.url)
        assert script != python
        for _ in range(2):  # a second rollout of the same group
            run(sys.executable, "-c", script, folder=tmp_path)
    shell = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("tracestore ")]
    printed = {}
    for line in shell:
        command = shlex.split(line, comments=True)
        if "MODEL_FOLDER" not in command:
            printed[command[1]] = run(
                sys.executable, "-m", "tracestore.cli.main", *command[1:], folder=tmp_path, database=database
            )
    assert list(printed) == ["show", "sql", "export", "verify"]
    assert re.search(r"^sampled +14 ", printed["export"], flags=re.MULTILINE), printed["export"]
    assert "14 sampled tokens, 14 trained tokens, 0 findings" in printed["verify"]


def run(*command: str, folder: Path, database: Path | None = None) -> str:
    environment = dict(os.environ, TRACESTORE_DB=f"sqlite:///{database}")
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_named(words: str) -> None:
    verb, _, action = words.partition(" ")
    (row,) = [line for line in README.splitlines() if line.startswith(f"| `tracestore {verb}` |")]
    assert not action or f"`{action}`" in row


def test_the_routes_named_are_the_routes_served(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'tracestore.db'}")
    try:
        app = create_app(store)
    finally:
        store.close()
    paths = app.openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    rows = r"^\| `((?:DELETE|GET|HEAD|PATCH|POST|PUT) /v1/[^`]*)` \|"
    named = set(re.findall(rows, README, flags=re.MULTILINE))
    assert named == served | {f"GET {app.openapi_url}"}


def test_every_setting_is_named_with_its_default_and_what_it_is() -> None:
    rows = []
    for one in fields(Settings):
        flag = f"--{one.name.replace('_', '-')}"
        default = "none" if one.default in (None, ()) else f"{one.default:,}"
        rows.append(f"| `{flag}` | `{variable(one.name)}` | {default} | {one.metadata['what']} |")
    assert [row for row in rows if row not in README] == []


def test_every_view_is_named() -> None:
    paragraph = README.partition("The views of")[2].partition("## ")[0]
    assert set(re.findall(r"`(\w+)`", paragraph)) == set(view_statements())


def source_files() -> Iterator[str]:
    for folder in ("tracestore", "api", "exporters", "migrations"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".sql"} and path.name != "__init__.py":
                yield path.relative_to(ROOT).as_posix()


def test_every_format_is_named_with_what_it_is() -> None:
    lines = [f"| `{one.name}` | {one.title} |" for one in formats().values()]
    assert [line for line in lines if line not in README] == []


def test_the_layout_has_a_line_for_every_source_file() -> None:
    named = {path for path in layout() if path.endswith((".py", ".sql"))}
    assert named == set(source_files())
    assert [path for path, what in layout().items() if not what] == []
    assert [path for path in layout() if not (ROOT / path).exists()] == []


def test_the_tests_it_names_as_proofs_exist() -> None:
    proofs = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", README)
    assert proofs
    for path, name in proofs:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in text, f"{path} has no {name}"


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target
