"""Real SQLite files, one for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.databases import empty_store
from tracestore.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(empty_store(tmp_path / "store.db")) as opened:
        yield opened
