"""Tiny models run on one thread: handing their work to a second one costs more than it saves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.models import one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
