"""A scripted upstream, and a proxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.api.proxy.scripted import Running, Upstream, running_proxy, scripted_upstream
from tracestore.store.store import Store
from tracestore_api.proxy import recorder


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits to be recorded together with what comes after it."""
    monkeypatch.setattr(recorder, "LINGER_S", 0.0)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with scripted_upstream() as upstream:
        yield upstream


@pytest.fixture
def proxy(store: Store, upstream: Upstream) -> Iterator[Running]:
    with running_proxy(store, upstream.url) as running:
        yield running


@pytest.fixture
def injecting(store: Store, upstream: Upstream) -> Iterator[Running]:
    with running_proxy(store, upstream.url, inject=True) as running:
        yield running
