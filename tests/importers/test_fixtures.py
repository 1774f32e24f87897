"""Every trace file beside the repository, imported: the facts that were counted by others come out.

One row per file of the manifest. A fact is answered by `tests/importers/facts/<format>.py`, or listed there
as none of a trace database's, or as read otherwise, with the reason. Nothing is passed over.
"""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures import SAMPLED_TOKENS, fixture, fixtures_root
from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    read_paths,
    same_events,
)
from tracestore.importers import formats
from tracestore.importers.notes import Notes
from tracestore.importers.sources import sources

_MANIFEST = fixtures_root() / "MANIFEST.jsonl"
ROWS: list[dict[str, Any]] = (
    [json.loads(line) for line in _MANIFEST.read_text().splitlines()] if _MANIFEST.is_file() else []
)
_ABSENT = pytest.mark.skip(reason="no fixtures: TRACESTORE_FIXTURES names their folder")
_CHANGED_LEAVES = 6
_CHANGED_BYTES = 200_000
"""Files above this are changed in fewer places: every change reads the whole file again."""


@dataclass(frozen=True)
class File:
    """A file of the manifest."""

    row: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.row["path"])

    @cached_property
    def imported(self) -> Imported:
        return read_paths(fixture(self.name))


# Of the module's scope, so that the tests of one file follow each other and it is read once.
@pytest.fixture(
    scope="module",
    params=[pytest.param(row, id=row["path"]) for row in ROWS] or [pytest.param(None, marks=_ABSENT)],
)
def file(request: pytest.FixtureRequest) -> File:
    return File(request.param)


def test_the_counted_facts_of_a_file_come_out(file: File) -> None:
    facts = importlib.import_module(f"tests.importers.facts.{file.row['format']}")
    ours = facts.facts(file.imported)
    wrong = {}
    for key, counted in file.row["facts"].items():
        if key in facts.NOT_OURS:
            continue
        expected = facts.DIFFERENT.get((file.name, key), (counted, ""))[0]
        if key not in ours or ours[key] != expected:
            wrong[key] = f"ours {ours.get(key, 'no answer')!r}, counted {expected!r}"
    assert not wrong
    assert_builds(file.imported)


def test_every_file_with_sampled_ids_is_one_whose_export_is_verified(file: File) -> None:
    # See tests/e2e/test_conserved_files.py.
    bodies = [body for call in file.imported.of("call") for body in call.completions or ()]
    sampled = sum(len(one.token_ids or ()) for one in (*bodies, *file.imported.of("completion")))
    assert sampled == SAMPLED_TOKENS.get(file.name, 0)


def test_a_file_and_its_copy_are_one(file: File, tmp_path: Path) -> None:
    # Under the same folders: their names may tell whose subagent a session is.
    twin = tmp_path / file.name
    twin.parent.mkdir(parents=True)
    shutil.copy(fixture(file.name), twin)
    assert same_events(file.imported, read_paths(fixture(file.name), twin))


def test_no_value_in_a_file_changes_without_a_trace(file: File) -> None:
    (source,) = list(sources([str(fixture(file.name))], notes=Notes()))[:1] or [None]
    form = None if source is None else formats.recognised(source)
    if form is None or source is None or source.head().lstrip()[:1] not in (b"{", b"["):
        return  # another spelling than JSON lines: changed in the tests of its importer
    limit = _CHANGED_LEAVES if file.row["bytes"] < _CHANGED_BYTES else 1
    with source.open() as stream:
        assert_perturbation(stream.read(), limit=limit, format=form.name)
