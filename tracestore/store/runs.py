"""Token ids <-> chains of deltas.

    run        base    base_length  ids                what it spells
    prompt 0   -       0            1 2 3              1 2 3
    answer 0   prompt 0     3       4 5                1 2 3 4 5
    prompt 1   answer 0     5       6 7                1 2 3 4 5 6 7

A prompt is based on the answer it continues, at their longest common prefix, so a conversation of n calls
costs its tokens once. A run whose beginning is not known (`num_tokens` NULL) is nobody's base.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.codec import Compressor, decompress
from tracestore.store.lookup import look_up
from tracestore.wire.arrays import Logprobs

Ids = NDArray[np.int32]
_CACHED_BYTES = 64 * 2**20


@dataclass(slots=True)
class Run:
    """A row of token_run, without its bytes."""

    key: int
    base: Run | None
    base_length: int
    num_tokens: int | None
    """None: what comes before its own ids is not known (yet)."""
    num_own: int


class RunIds:
    """The whole ids of the runs used last."""

    def __init__(self, project_id: int) -> None:
        self._project_id = project_id
        self._ids: OrderedDict[int, Ids] = OrderedDict()
        self._bytes = 0
        self.fresh: dict[int, bytes] = {}
        """Own ids of runs that are not written yet, little-endian int32."""

    def put(self, key: int, ids: Ids) -> None:
        self._ids[key] = ids
        self._bytes += ids.nbytes
        while self._bytes > _CACHED_BYTES and len(self._ids) > 1:
            _, oldest = self._ids.popitem(last=False)
            self._bytes -= oldest.nbytes

    def forget(self, keys: Iterable[int]) -> None:
        """The rows of these runs are about to spell something else."""
        for key in keys:
            ids = self._ids.pop(key, None)
            if ids is not None:
                self._bytes -= ids.nbytes

    def get(self, run: Run, *, connection: Connection) -> Ids:
        """Every id that a run spells; its beginning must be known."""
        found = self._ids.get(run.key)
        if found is not None:
            self._ids.move_to_end(run.key)
            return found
        chain = [run]
        while chain[-1].base is not None and chain[-1].base.key not in self._ids:
            chain.append(chain[-1].base)
        written = [one.key for one in chain if one.key not in self.fresh]
        own = read_ids(connection, self._project_id, written)
        base = chain[-1].base
        ids = self._ids[base.key] if base is not None else np.empty(0, np.int32)
        for one in reversed(chain):
            fresh = self.fresh.get(one.key)
            end = own[one.key] if fresh is None else np.frombuffer(fresh, dtype="<i4")
            ids = np.concatenate([ids[: one.base_length], end])
        self.put(run.key, ids)
        return ids


def read_ids(connection: Connection, project_id: int, keys: list[int]) -> dict[int, Ids]:
    """The own ids of runs, by key."""
    found: dict[int, Ids] = {}
    columns = ("key", "ids", "packed_ids", "num_ids")
    rows = look_up(connection, t.token_run, columns, by="key", values=keys, project_id=project_id)
    for key, ids, packed, count in rows:
        found[key] = np.frombuffer(ids, dtype="<i4") if count is None else unpack(packed, count)
    return found


def pack(ids: bytes) -> bytes:
    """Token ids with their first bytes side by side, then their second ones, and so on, compressed.

    The upper bytes of ids repeat, and 160 ids take half of what they take as integers, 460 a third. What
    does not get smaller is left as long as it was, which tells it apart. `unpack` is the inverse.

    Args:
        ids: little-endian int32.
    """
    # Slices: for a few hundred ids, numpy takes longer to begin than these take.
    planes = ids[0::4] + ids[1::4] + ids[2::4] + ids[3::4]
    _, data = _compressor.of_this_thread.compress(planes)
    return data


def unpack(data: bytes, count: int) -> Ids:
    """int32 [count]."""
    planes = data if len(data) == 4 * count else decompress(data, codec="zstd")
    by_id = np.ascontiguousarray(np.frombuffer(planes, dtype=np.uint8).reshape(4, -1).T)
    return by_id.view("<i4").reshape(-1)


class _PerThread(threading.local):
    def __init__(self) -> None:
        self.of_this_thread = Compressor()


_compressor = _PerThread()


def common_prefix(first: Ids, second: Ids) -> int:
    """Length of the longest common prefix."""
    length = min(len(first), len(second))
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


@dataclass(frozen=True, slots=True)
class RunRow:
    """A row of token_run with its bytes."""

    base_key: int | None
    base_length: int
    ids: bytes
    logprobs: Logprobs | None


def read_chains(connection: Connection, project_id: int, keys: Iterable[int]) -> dict[int, RunRow]:
    """The rows of runs and of everything they are based on, by key."""
    run = t.token_run
    found: dict[int, RunRow] = {}
    for chunk in chunks(sorted(keys)):
        here = select(run.c.key, run.c.base_key).where(run.c.project_id == project_id, run.c.key.in_(chunk))
        chain = here.cte("chain", recursive=True)
        above = select(run.c.key, run.c.base_key).where(
            run.c.project_id == project_id, run.c.key == chain.c.base_key
        )
        chain = chain.union(above)
        rows = connection.execute(
            select(
                *(run.c.key, run.c.base_key, run.c.base_length, run.c.ids, run.c.packed_ids, run.c.num_ids),
                *(run.c.logprobs, run.c.logprobs_dtype, run.c.logprobs_nulls),
            ).where(run.c.project_id == project_id, run.c.key.in_(select(chain.c.key)))
        )
        for key, base_key, base_length, ids, packed, count, logprobs, dtype, nulls in rows:
            own = ids if count is None else unpack(packed, count).tobytes()
            found[key] = RunRow(base_key, base_length, own, _logprobs(logprobs, dtype, nulls))
    return found


def _logprobs(data: bytes | None, dtype: Any, nulls: bytes | None) -> Logprobs | None:
    if data is None:
        return None
    return Logprobs(data, dtype, tuple(np.frombuffer(nulls or b"", dtype="<i4").tolist()))


def spell(rows: Mapping[int, RunRow], key: int) -> bytes:
    """The whole ids of a run, little-endian int32."""
    pieces: list[bytes] = []
    # From the end backwards: of each base only what the run above it uses.
    length: int | None = None
    current: int | None = key
    while current is not None:
        row = rows[current]
        start = row.base_length
        if length is None:
            pieces.append(row.ids)
            length = start
        elif length > start:
            pieces.append(row.ids[: 4 * (length - start)])
            length = start
        current = row.base_key if length else None
    return b"".join(reversed(pieces))
