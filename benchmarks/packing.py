"""Rows of token arrays -> packed batches of 32,768 tokens: the work that every reader is timed on."""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np

BATCH_TOKENS = 32_768

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Token ids int32 [T], logprobs float32 [T], reasons uint8 [T]."""


def packed_tokens_per_s(rows: Iterable[Arrays]) -> float:
    """Tokens a second from the first row asked for to the last batch made."""
    begin = time.perf_counter()
    waiting: list[Arrays] = []
    size = total = 0
    for row in rows:
        waiting.append(row)
        size += len(row[0])
        if size >= BATCH_TOKENS:
            total += _packed(waiting)
            waiting, size = [], 0
    if waiting:
        total += _packed(waiting)
    return total / (time.perf_counter() - begin)


def _packed(rows: list[Arrays]) -> int:
    ids, logprobs, reasons = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    assert len(ids) == len(logprobs) == len(reasons)
    return len(ids)
