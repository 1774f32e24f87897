"""The package as people get it: what the wheel holds, what importing it loads."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_puts_four_names_on_the_path_and_no_other(wheel: zipfile.ZipFile) -> None:
    top_level = {name.split("/")[0] for name in wheel.namelist()}
    assert {name for name in top_level if not name.endswith(".dist-info")} == {
        "tracestore",
        "tracestore_api",
        "tracestore_exporters",
        "tracestore_migrations",
    }


def test_the_wheel_carries_the_types_the_views_and_the_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {
        "tracestore/py.typed",
        "tracestore_api/py.typed",
        "tracestore_exporters/py.typed",
        "tracestore_migrations/py.typed",
        "tracestore/store/views.sql",
    } <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_every_source_file(wheel: zipfile.ZipFile) -> None:
    """A file that the build leaves out works from a checkout and fails where it was installed."""
    packages = [ROOT / path for path in PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
    sources = {
        path.relative_to(package.parent).as_posix()
        for package in packages
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - set(wheel.namelist()) == set()


def test_the_client_needs_the_standard_library_alone() -> None:
    """-S leaves site-packages off the path: whatever the client imports comes with Python or from here."""
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tracestore.client"
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, timeout=60)


def test_importing_the_client_does_not_pull_in_what_happens_to_be_installed() -> None:
    script = (
        "import sys; before = set(sys.modules); import tracestore.client\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(names - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "['tracestore']\n"


def test_a_plain_install_brings_no_trainer_and_no_server() -> None:
    names = {requirement.split(">")[0].split("[")[0] for requirement in PYPROJECT["project"]["dependencies"]}
    assert (
        names & {"torch", "transformers", "accelerate", "safetensors", "fastapi", "uvicorn", "psycopg"}
        == set()
    )


def test_every_dependency_is_locked_to_one_version() -> None:
    lines = [
        line
        for name in ("requirements.lock", "requirements-nodeps.lock")
        for line in (ROOT / name).read_text().splitlines()
        if not line.startswith("#")
    ]
    locked = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    assert [line for line in lines if line.count("==") != 1 or "+" in line or "@" in line] == []
    project = PYPROJECT["project"]
    ranges = project["dependencies"] + [r for rs in project["optional-dependencies"].values() for r in rs]
    wanted = {r.split(">")[0].split("=")[0].split("[")[0].lower() for r in ranges} - {"tracestore"}
    assert wanted - locked == set()


@pytest.mark.parametrize(("required", "outcome"), [("", "1 skipped"), ("1", "1 failed")])
def test_where_trace_files_are_required_a_skip_is_a_failure(
    required: str, outcome: str, tmp_path: Path
) -> None:
    test = tmp_path / "test_reads_a_trace.py"
    test.write_text("from tests.fixtures import fixture\n\n\ndef test_it():\n    fixture('absent.json')\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", ROOT / "pyproject.toml", test]
    environment = {
        **os.environ,
        "TRACESTORE_REQUIRE_FIXTURES": required,
        "TRACESTORE_FIXTURES": str(tmp_path),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert outcome in done.stdout, done.stdout
