"""Token ids <-> chains of deltas.

    run        base    base_length  ids                what it spells
    prompt 0   -       0            1 2 3              1 2 3
    answer 0   prompt 0     3       4 5                1 2 3 4 5
    prompt 1   answer 0     5       6 7                1 2 3 4 5 6 7

A prompt is based on the answer it continues, at their longest common prefix, so a conversation of n calls
costs its tokens once. A run whose beginning is not known (`num_tokens` NULL) is nobody's base.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from tracestore.graph.runs import TokenRun
from tracestore.store import tables as t
from tracestore.store.chunks import chunks
from tracestore.store.codec import Compressor, decompress, decompress_all
from tracestore.store.dictionary import Dictionaries, NewRows, ProjectDictionary
from tracestore.store.lookup import look_up
from tracestore.wire.arrays import Logprobs

Ids = NDArray[np.int32]
_CACHED_BYTES = 64 * 2**20
_WIDTHS = {"float32": 4, "float64": 8}


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
    columns = ("key", "ids", "packed_ids", "num_ids", "dictionary_key")
    dictionaries = Dictionaries(connection, project_id)
    # All rows first: a dictionary is read through the same connection.
    rows = list(look_up(connection, t.token_run, columns, by="key", values=keys, project_id=project_id))
    for key, ids, packed, count, dictionary in rows:
        found[key] = _own_ids(ids, packed, count, dictionaries.get(dictionary))
    return found


def _own_ids(ids: bytes, packed: bytes | None, count: int | None, dictionary: bytes | None) -> Ids:
    if count is None:
        return np.frombuffer(ids, dtype="<i4")
    assert packed is not None
    return unpack_ids(packed, count, dictionary=dictionary)


class Unpacked(NamedTuple):
    """What a row of token_run is to hold, and that row."""

    row: dict[str, Any]
    ids: bytes
    """Little-endian int32."""
    logprobs: Logprobs | None


class RunCodec:
    """Packs the token runs of one project, better once there were some. For the committer's thread."""

    def __init__(self, project_id: int) -> None:
        self._plain = Compressor()
        self._of_ids = ProjectDictionary(project_id, "ids")
        self._of_logprobs = ProjectDictionary(project_id, "logprobs")

    def pack(
        self,
        runs: Sequence[Unpacked],
        rows: NewRows,
    ) -> None:
        """Write into the rows what they are to hold."""
        packed_halves = [halves(run.ids) for run in runs]
        trained = self._of_ids.trained(packed_halves, rows)
        if trained is None:
            packed = self._plain.compress_all([planes(run.ids) for run in runs])
        else:
            packed = trained.compressor.compress_all(packed_halves)
        for run, (_, data) in zip(runs, packed, strict=True):
            run.row.update(
                ids=b"",
                num_ids=len(run.ids) // 4,
                packed_ids=data,
                dictionary_key=None if trained is None else trained.key,
            )
        self.pack_logprobs([(run.row, run.logprobs) for run in runs if run.logprobs is not None], rows)

    def pack_logprobs(
        self,
        runs: Sequence[tuple[dict[str, Any], Logprobs]],
        rows: NewRows,
    ) -> None:
        """Write into rows the logprobs of their own ids."""
        fronts = [front(logprobs) for _, logprobs in runs]
        trained = self._of_logprobs.trained(fronts, rows)
        compressor, key = (self._plain, None) if trained is None else (trained.compressor, trained.key)
        for (row, logprobs), packed in zip(runs, compressor.compress_all(fronts), strict=True):
            nulls = logprobs.nulls
            row |= {
                "logprobs": with_front(logprobs, *packed),
                "logprobs_dtype": None if logprobs.dtype == "float32" else logprobs.dtype,
                "logprobs_nulls": np.asarray(nulls, dtype="<i4").tobytes() if nulls else b"",
                "logprobs_dictionary_key": key,
            }


def planes(ids: bytes) -> bytes:
    """Token ids with their first bytes side by side, then their second ones, and so on.

    The upper bytes of ids repeat: compressed so, 160 ids take half of what they take as
    integers, 460 a third.

    Args:
        ids: little-endian int32.
    """
    # Slices: for a few hundred ids, numpy takes longer to begin than these take.
    return ids[0::4] + ids[1::4] + ids[2::4] + ids[3::4]


def halves(ids: bytes) -> bytes:
    """The lower halves of token ids, then the third bytes, then the fourth.

    Ids that often follow each other lie side by side, for a dictionary to know them: with one they take two
    thirds of what they take without.
    """
    return np.frombuffer(ids, dtype="<u2")[0::2].tobytes() + ids[2::4] + ids[3::4]


def unpack_ids(data: bytes, count: int, *, dictionary: bytes | None = None) -> Ids:
    """int32 [count].

    Args:
        dictionary: that the ids were compressed with, in halves; None: they were not, and by their bytes.
    """
    plain = data if len(data) == 4 * count else decompress(data, codec="zstd", dictionary=dictionary)
    if dictionary is None:
        by_id = np.ascontiguousarray(np.frombuffer(plain, dtype=np.uint8).reshape(4, -1).T)
        return by_id.view("<i4").reshape(-1)
    lower = np.frombuffer(plain, dtype="<u2", count=count).astype(np.int32)
    third, fourth = np.frombuffer(plain, dtype=np.uint8, offset=2 * count).reshape(2, -1).astype(np.int32)
    return lower | third << 16 | fourth << 24


def with_front(logprobs: Logprobs, codec: str, packed: bytes) -> bytes:
    """Logprobs with their upper bytes, sign and exponent, in front as they were packed, then all others.

    Those repeat and the others do not. What did not get smaller is left as it was, which its length tells.
    `unpack_logprobs` is the inverse.
    """
    data, width = logprobs.data, _WIDTHS[logprobs.dtype]
    if codec == "raw":
        return data
    return packed + b"".join([data[place::width] for place in range(width - width // 4)])


def front(logprobs: Logprobs) -> bytes:
    """The upper byte of every float32, the upper two of every float64."""
    data, width = logprobs.data, _WIDTHS[logprobs.dtype]
    return b"".join(data[place::width] for place in range(width - width // 4, width))


def unpack_logprobs(data: bytes, count: int, *, dtype: Any, dictionary: bytes | None = None) -> bytes:
    """Little-endian values of a dtype."""
    width = _WIDTHS[dtype]
    if len(data) == width * count:
        return data
    rest = (width - width // 4) * count
    planes = data[-rest:] + decompress(data[:-rest], codec="zstd", dictionary=dictionary)
    return np.frombuffer(planes, dtype=np.uint8).reshape(width, -1).T.tobytes()


class ReadRun(NamedTuple):
    """A row of token_run, unpacked."""

    own: Ids
    logprobs: Logprobs | None
    run: TokenRun | None
    """None: what comes before its own ids is not known."""


_OWN = ("key", "base_key", "base_length", "num_tokens", "ids", "packed_ids", "num_ids", "dictionary_key")
_OWN_LOGPROBS = ("logprobs", "logprobs_dtype", "logprobs_nulls", "logprobs_dictionary_key")


def read_runs(connection: Connection, project_id: int, keys: Iterable[int]) -> dict[int, ReadRun]:
    """Runs and all that they are based on, by key.

    Unpacked together: of one run, it takes longer to begin than to do.
    """
    rows: dict[int, tuple[Any, ...]] = {}
    missing = set(keys)
    while missing:
        found = look_up(
            connection,
            t.token_run,
            (*_OWN, *_OWN_LOGPROBS),
            by="key",
            values=sorted(missing),
            project_id=project_id,
        )
        new = {row[0]: row for row in found}
        rows |= new
        missing = {row[1] for row in new.values() if row[1] is not None} - rows.keys()
    dictionaries = Dictionaries(connection, project_id)
    ids = _all_ids(rows, dictionaries)
    logprobs = _all_logprobs(rows, {key: len(own) for key, own in ids.items()}, dictionaries)
    runs = {key: TokenRun(ids[key], None, row[2]) for key, row in rows.items() if row[3] is not None}
    for key, run in runs.items():
        base_key = rows[key][1]
        if base_key is not None:
            run.base = runs[base_key]
    return {key: ReadRun(ids[key], logprobs.get(key), runs.get(key)) for key in rows}


def _all_ids(rows: Mapping[int, tuple[Any, ...]], dictionaries: Dictionaries) -> dict[int, Ids]:
    found: dict[int, Ids] = {}
    by_dictionary: dict[int | None, list[int]] = {}
    for key, row in rows.items():
        if row[6] is None:
            found[key] = np.frombuffer(row[4], dtype="<i4")
        else:
            by_dictionary.setdefault(row[7], []).append(key)
    for dictionary_key, own in by_dictionary.items():
        counts = [rows[key][6] for key in own]
        dictionary = dictionaries.get(dictionary_key)
        plain = _unpacked(
            [rows[key][5] for key in own], [4 * count for count in counts], dictionary=dictionary
        )
        spelled = _of_planes(plain, counts) if dictionary is None else _of_halves(plain, counts)
        found.update(zip(own, _cut(spelled, counts), strict=True))
    return found


def _unpacked(packed: Sequence[bytes], sizes: Sequence[int], *, dictionary: bytes | None) -> list[bytes]:
    """What was compressed with one dictionary, if any; bytes of their full size were left as they are."""
    frames = [data for data, size in zip(packed, sizes, strict=True) if len(data) != size]
    plain = iter(decompress_all(frames, dictionary=dictionary) if frames else ())
    return [
        data if len(data) == size else next(plain).tobytes() for data, size in zip(packed, sizes, strict=True)
    ]


def _of_planes(plain: Sequence[bytes], counts: Sequence[int]) -> Ids:
    """int32 [sum of counts]."""
    return _interleaved(plain, counts, width=4).view("<i4").reshape(-1)


def _of_halves(plain: Sequence[bytes], counts: Sequence[int]) -> Ids:
    pairs = list(zip(plain, counts, strict=True))
    lower = np.frombuffer(b"".join([data[: 2 * n] for data, n in pairs]), "<u2").astype(np.int32)
    third, fourth = (
        np.frombuffer(b"".join([data[at * n : (at + 1) * n] for data, n in pairs]), np.uint8).astype(np.int32)
        for at in (2, 3)
    )
    return lower | third << 16 | fourth << 24


def _interleaved(plain: Sequence[bytes], counts: Sequence[int], *, width: int) -> NDArray[np.uint8]:
    """uint8 [sum of counts, width] of planes: of each, all first bytes, then all second ones, and so on."""
    pairs = list(zip(plain, counts, strict=True))
    planes = [b"".join([data[at * n : (at + 1) * n] for data, n in pairs]) for at in range(width)]
    return np.ascontiguousarray(np.frombuffer(b"".join(planes), np.uint8).reshape(width, -1).T)


def _cut(values: Ids, counts: Sequence[int]) -> list[Ids]:
    end = 0
    return [values[end - count : end] for count in counts if (end := end + count) >= 0]


def _all_logprobs(
    rows: Mapping[int, tuple[Any, ...]], counts: Mapping[int, int], dictionaries: Dictionaries
) -> dict[int, Logprobs]:
    found: dict[int, Logprobs] = {}
    packed: dict[int | None, list[int]] = {}
    for key, row in rows.items():
        *_, data, dtype, nulls, dictionary_key = row
        if data is None:
            continue
        if (dtype or "float32") == "float32" and len(data) != 4 * counts[key]:
            packed.setdefault(dictionary_key, []).append(key)
        else:
            dictionary = dictionaries.get(dictionary_key)
            read = _logprobs(data, dtype, nulls, count=counts[key], dictionary=dictionary)
            assert read is not None
            found[key] = read
    for dictionary_key, own in packed.items():
        lengths = [counts[key] for key in own]
        stored = [rows[key][-4] for key in own]
        fronts = _unpacked(
            [data[: -3 * n] for data, n in zip(stored, lengths, strict=True)],
            lengths,
            dictionary=dictionaries.get(dictionary_key),
        )
        planes = [data[-3 * n :] + top for data, n, top in zip(stored, lengths, fronts, strict=True)]
        values = _interleaved(planes, lengths, width=4).tobytes()
        end = 0
        for key, length in zip(own, lengths, strict=True):
            nulls = rows[key][-2]
            positions = tuple(np.frombuffer(nulls, dtype="<i4").tolist()) if nulls else ()
            found[key] = Logprobs(values[end : end + 4 * length], "float32", positions)
            end += 4 * length
    return found


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
    dictionaries = Dictionaries(connection, project_id)
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
                *(run.c.dictionary_key, run.c.logprobs_dictionary_key),
                *(run.c.logprobs, run.c.logprobs_dtype, run.c.logprobs_nulls),
            ).where(run.c.project_id == project_id, run.c.key.in_(select(chain.c.key)))
        ).all()
        for key, base_key, base_length, ids, packed, count, of_ids, of_logprobs, *logprobs in rows:
            own = _own_ids(ids, packed, count, dictionaries.get(of_ids))
            read = _logprobs(*logprobs, count=len(own), dictionary=dictionaries.get(of_logprobs))
            found[key] = RunRow(base_key, base_length, own.tobytes(), read)
    return found


def _logprobs(
    data: bytes | None, dtype: Any, nulls: bytes | None, *, count: int, dictionary: bytes | None
) -> Logprobs | None:
    if data is None:
        return None
    dtype = dtype or "float32"
    positions = tuple(np.frombuffer(nulls or b"", dtype="<i4").tolist())
    return Logprobs(unpack_logprobs(data, count, dtype=dtype, dictionary=dictionary), dtype, positions)


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
