"""Digests are sha256, however much is hashed."""

from __future__ import annotations

from hashlib import sha256

import pytest

from tracestore.store.digest import sha256_of


@pytest.mark.parametrize("size", [0, 1, 2046, 2047, 2048, 4094, 4095, 65_535, 65_536, 65_537, 200_000])
def test_the_digest_is_sha256_at_every_edge_of_its_steps(size: int) -> None:
    data = bytes(number % 251 for number in range(size))
    assert sha256_of(data) == sha256(data).digest()
