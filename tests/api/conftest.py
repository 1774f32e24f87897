"""A service over a real SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.databases import empty_store
from tracestore.store.store import Store
from tracestore_api.app import create_app
from tracestore_migrations import open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(empty_store(tmp_path / "t.db"))
    yield store
    store.close()


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store), base_url="http://127.0.0.1") as client:
        yield client
