"""Real databases for each test: a SQLite file, and PostgreSQL unless the claim is about files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import DATABASES, emptied, empty_store
from tracestore.store import Store


@pytest.fixture(params=DATABASES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with Store.open(emptied(request.param, tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """For claims about SQLite: its settings, its plans, its file."""
    with Store.open(empty_store(tmp_path / "store.db")) as opened:
        yield opened
