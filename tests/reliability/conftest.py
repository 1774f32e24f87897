"""A store in a real SQLite file, and the service over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.databases import empty_store
from tracestore.store import Store
from tracestore_api.app import create_app


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(empty_store(tmp_path / "t.db")) as opened:
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store), base_url="http://127.0.0.1") as client:
        yield client
