"""Bytes -> sha256, without handing the interpreter to another thread in between."""

from __future__ import annotations

from hashlib import sha256

_SMALL_BYTES = 64 * 2**10
_STEP_BYTES = 2047
"""The most that hashlib hashes without giving up the interpreter's lock."""


def sha256_of(data: bytes) -> bytes:
    """The digest.

    With a busy thread beside it, whoever gives up the lock gets it back after 5 ms, which is three hundred
    times as long as 20 kB take to hash. So what is not large is hashed in steps that keep it.
    """
    if not _STEP_BYTES < len(data) <= _SMALL_BYTES:
        return sha256(data).digest()
    view = memoryview(data)
    hashed = sha256(view[:_STEP_BYTES])
    for start in range(_STEP_BYTES, len(data), _STEP_BYTES):
        hashed.update(view[start : start + _STEP_BYTES])
    return hashed.digest()
