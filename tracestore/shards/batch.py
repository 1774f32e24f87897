"""Row <-> Arrow record batch of one row, and a hash of its content that no compression changes.

Token columns are wrapped without a copy in both directions. Values under nulls are zero, so that equal rows
are equal bytes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from tracestore.shards import row as rows
from tracestore.shards.row import Row, Segments
from tracestore.shards.schema import SCHEMA

_ENTRIES: dict[str, type[Any]] = {
    "episodes": rows.EpisodeEntry,
    "agents": rows.AgentEntry,
    "calls": rows.CallEntry,
    "completions": rows.CompletionEntry,
    "policy_runs": rows.PolicyRun,
    "samples": rows.Sample,
    "candidate_sets": rows.CandidateSetEntry,
    "edits": rows.EditEntry,
    "rewards": rows.RewardEntry,
    "blobs": rows.BlobEntry,
}
_TUPLES = {"segments", "completions", "replaced", "shape"}
Entry = TypeVar("Entry")
_Listed = Callable[[pa.Array], list[Any]]
Update = Callable[[Any], object]
"""Takes bytes, or what holds them."""


def to_batch(row: Row) -> pa.RecordBatch:
    """One record batch with one row, in `SCHEMA`."""
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(row, name)], SCHEMA.field(name).type)
        for name in ("project", "group_id", "task_id", "part", "num_parts", "closed_by")
    }
    columns["token_ids"] = _large_list("token_ids", _plain(row.token_ids, pa.int32()))
    columns["reason"] = _large_list("reason", _plain(row.reason, pa.uint8()))
    for name, dtype in (("logprobs", np.float32), ("logprobs64", np.float64)):
        if row.logprobs is None or row.logprobs.dtype != dtype:
            columns[name] = pa.nulls(1, SCHEMA.field(name).type)
        else:
            kind = SCHEMA.field(name).type.value_type
            columns[name] = _large_list(name, _masked(row.logprobs, row.has_logprob, kind))
    columns["segments"] = _segments(row.segments)
    for name, table in _TABLES.items():
        columns[name] = table.array(getattr(row, name))
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> Row:
    """The inverse of `to_batch`. Token arrays are read-only views of the batch's memory."""
    assert batch.num_rows == 1, "one record batch holds one row"
    column = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
    scalars = {
        name: column[name][0].as_py()
        for name in ("project", "group_id", "task_id", "part", "num_parts", "closed_by")
    }
    token_ids = _numpy(_items(column["token_ids"]))
    logprobs, has_logprob = None, np.zeros(len(token_ids), dtype=bool)
    for name in ("logprobs", "logprobs64"):
        if column[name].null_count == 0:
            items = _items(column[name])
            logprobs, has_logprob = _values(items), _valid(items)
    headers: dict[str, Any] = {name: _entries(column[name], entry) for name, entry in _ENTRIES.items()}
    return Row(
        **scalars,
        token_ids=token_ids,
        logprobs=logprobs,
        has_logprob=has_logprob,
        reason=_numpy(_items(column["reason"])),
        segments=_read_segments(_items(column["segments"])),
        **headers,
    )


class ContentHash:
    """sha256 over the values of every column of every batch.

    Independent of compression, buffer padding, slicing and what lies under nulls.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, batch: pa.RecordBatch) -> None:
        self._digest.update(batch.num_rows.to_bytes(8, "little"))
        kinds = _KINDS if batch.schema == SCHEMA else tuple(_Kind.of(part.type) for part in batch.schema)
        for column, kind in zip(batch.columns, kinds, strict=True):
            _feed(self._digest.update, column, kind)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def content_hash(batches: Iterable[pa.RecordBatch]) -> str:
    """The content hash of a shard's batches, hex."""
    content = ContentHash()
    for batch in batches:
        content.add(batch)
    return content.hexdigest()


def _plain(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _masked(values: np.ndarray, valid: np.ndarray, kind: pa.DataType) -> pa.Array:
    if valid.all():
        return _plain(values, kind)
    bits = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    zeroed = np.where(valid, values, values.dtype.type(0))
    nulls = int(len(valid) - np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, len(values), [bits, pa.py_buffer(zeroed)], null_count=nulls)


def _large_list(name: str, values: pa.Array) -> pa.Array:
    offsets = pa.py_buffer(np.array([0, len(values)], dtype=np.int64))
    return pa.Array.from_buffers(SCHEMA.field(name).type, 1, [None, offsets], children=[values])


def _list(kind: pa.DataType, values: pa.Array) -> pa.Array:
    offsets = pa.py_buffer(np.array([0, len(values)], dtype=np.int32))
    return pa.Array.from_buffers(kind, 1, [None, offsets], children=[values])


def _segments(segments: Segments) -> pa.Array:
    kind = SCHEMA.field("segments").type
    children = [
        _masked(segments.parent, segments.parent >= 0, pa.int32()),
        _plain(segments.start, pa.int64()),
        _plain(segments.length, pa.int32()),
        _masked(segments.completion, segments.completion >= 0, pa.int32()),
    ]
    structs = pa.Array.from_buffers(kind.value_type, len(segments), [None], children=children)
    return _list(kind, structs)


class _Table:
    """Entries of one kind -> a list of structs, and what Arrow takes longer to say than to do."""

    def __init__(self, kind: pa.DataType, entry: type[Any]) -> None:
        declared = list(kind.value_type)
        names = [part.name for part in fields(entry)]
        assert names == [part.name for part in declared]
        self._kind, self._structs = kind, kind.value_type
        self._types = [part.type for part in declared]
        self._values_of = attrgetter(*names)
        self._members_at = names.index("members") if "members" in names else None
        self._empty = _list(kind, pa.array([], kind.value_type))

    def array(self, entries: Sequence[Any]) -> pa.Array:
        """Column by column, which is several times faster than a list of dicts."""
        if not entries:
            return self._empty
        columns = zip(*map(self._values_of, entries), strict=True)
        children = [
            _members(values, kind) if at == self._members_at else _column(values, kind)
            for at, (values, kind) in enumerate(zip(columns, self._types, strict=True))
        ]
        return _list(
            self._kind, pa.Array.from_buffers(self._structs, len(entries), [None], children=children)
        )


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if values[0] is None and values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:
        # Arrow text is UTF-8: a lone surrogate in a free text stands as its escape, \ud83d.
        escaped = [
            one.encode("utf-8", "backslashreplace").decode() if isinstance(one, str) else one
            for one in values
        ]
        return pa.array(escaped, kind)


def _members(values: Sequence[Sequence[rows.MemberEntry]], kind: pa.DataType) -> pa.Array:
    names = [part.name for part in fields(rows.MemberEntry)]
    return pa.array([[{name: getattr(one, name) for name in names} for one in row] for row in values], kind)


_TABLES = {name: _Table(SCHEMA.field(name).type, entry) for name, entry in _ENTRIES.items()}


def _items(column: pa.Array) -> pa.Array:
    """Items of the only row of a list column."""
    start, end = column.offsets[0].as_py(), column.offsets[1].as_py()
    return column.values.slice(start, end - start)


def _numpy(values: pa.Array) -> np.ndarray:
    """A view of the values; what stands under nulls is not looked at."""
    array: np.ndarray = values.to_numpy(zero_copy_only=True)
    return array


def _values(values: pa.Array) -> np.ndarray:
    """Values with the nulls' zeros, as a view of the buffer."""
    dtype = values.type.to_pandas_dtype()
    buffer = values.buffers()[1]
    if buffer is None:
        return np.zeros(0, dtype=dtype)
    return np.frombuffer(buffer, dtype=dtype)[values.offset : values.offset + len(values)]


def _valid(values: pa.Array) -> np.ndarray:
    """bool [n]: where a value stands."""
    buffer = values.buffers()[0]
    if buffer is None or values.null_count == 0:
        return np.ones(len(values), dtype=bool)
    return _bits(buffer, values)


def _bits(buffer: pa.Buffer, values: pa.Array) -> np.ndarray:
    """bool [n] of a bitmap of an array."""
    bits = np.unpackbits(np.frombuffer(buffer, dtype=np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)].astype(bool)


def _read_segments(structs: pa.Array) -> Segments:
    parent, start, length, completion = structs.flatten()
    return Segments(
        parent=np.where(_valid(parent), _values(parent), -1).astype(np.int32),
        start=_numpy(start),
        length=_numpy(length),
        completion=np.where(_valid(completion), _values(completion), -1).astype(np.int32),
    )


def _entries(column: pa.Array, entry: type[Entry]) -> tuple[Entry, ...]:
    """Filled column by column, past the constructor: that of a frozen class takes three times as long."""
    structs = _items(column)
    if not len(structs):
        return ()
    made = [entry.__new__(entry) for _ in range(len(structs))]
    for index, (listed, setter) in enumerate(_columns(entry)):  # type: ignore[arg-type]
        deque(map(setter, made, listed(structs.field(index))), maxlen=0)
    return tuple(made)


@cache
def _columns(entry: type[Any]) -> tuple[tuple[_Listed, Callable[[Any, Any], None]], ...]:
    """Of each field, in order: an Arrow array as a list of its values, and what sets the field."""
    return tuple((_listed(part.name), getattr(entry, part.name).__set__) for part in fields(entry))


def _listed(name: str) -> _Listed:
    if name == "members":
        return _member_lists
    if name in _TUPLES:
        return _tuples
    return _plain_list


def _member_lists(values: pa.Array) -> list[Any]:
    return [tuple(rows.MemberEntry(**one) for one in found) for found in values.to_pylist()]


def _plain_list(values: pa.Array) -> list[Any]:
    listed: list[Any] = values.to_pylist()
    return listed


def _tuples(values: pa.Array) -> list[Any]:
    return [None if one is None else tuple(one) for one in values.to_pylist()]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How arrays of a type are fed. To ask Arrow for a type takes longer than to feed a few values."""

    what: Literal["struct", "list", "text", "flag", "number"]
    dtype: Any
    """Of the offsets of lists and texts, of the values of numbers."""
    children: tuple[_Kind, ...]
    none: bytes
    """What an empty array feeds: a small row has more of them than of others."""

    @classmethod
    def of(cls, kind: pa.DataType) -> _Kind:
        length = bytes(8)
        if pa.types.is_struct(kind):
            children = tuple(cls.of(part.type) for part in kind)
            return cls("struct", None, children, length + b"".join(child.none for child in children))
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            item = cls.of(kind.value_type)
            dtype = np.int32 if pa.types.is_list(kind) else np.int64
            return cls("list", dtype, (item,), length + item.none)
        if pa.types.is_string(kind):
            return cls("text", np.int32, (), length)
        if pa.types.is_boolean(kind):
            return cls("flag", None, (), length)
        return cls("number", np.dtype(kind.to_pandas_dtype()), (), length)

    def of_nulls(self, length: int) -> bytes:
        """What nulls and nothing else feed after their number: no bit of them is set."""
        bits = bytes((length + 7) // 8)
        if self.what == "flag":
            return bits + bits
        width = self.dtype.itemsize if self.what == "number" else 8
        return bits + bytes(width * length) + b"".join(child.none for child in self.children)


_KINDS = tuple(_Kind.of(part.type) for part in SCHEMA)


def _feed(update: Update, values: pa.Array, kind: _Kind) -> None:
    """Length, validity and values of an array, its children after it.

    By their buffers: for a few values, Arrow's functions take longer to begin than to do.
    """
    length = len(values)
    if length == 0:
        update(kind.none)
        return
    update(length.to_bytes(8, "little"))
    if values.null_count == length and kind.what != "struct":
        update(kind.of_nulls(length))
        return
    valid = _valid(values) if values.null_count else None
    update(_ones(length) if valid is None else np.packbits(valid))
    if kind.what == "struct":
        # What lies in the children of a null is a null itself only once the structs are flattened.
        flat = map(values.field, range(len(kind.children))) if valid is None else values.flatten()
        for child, of_child in zip(flat, kind.children, strict=True):
            _feed(update, child, of_child)
    elif kind.what == "list":
        lengths, start, end = _extents(values, kind.dtype)
        items = values.values.slice(start, end - start)
        if valid is not None and lengths[~valid].any():
            lengths, items = np.where(valid, lengths, 0), values.flatten()
        update(lengths)
        _feed(update, items, *kind.children)
    elif kind.what == "text":
        texts, (lengths, start, end) = values, _extents(values, kind.dtype)
        if valid is not None and lengths[~valid].any():
            texts = values.fill_null("")
            lengths, start, end = _extents(texts, kind.dtype)
        update(lengths)
        data = texts.buffers()[2]
        update(b"" if data is None else memoryview(data)[start:end])
    elif kind.what == "flag":
        flags = _bits(values.buffers()[1], values)
        update(np.packbits(flags if valid is None else flags & valid))
    else:
        data = np.frombuffer(values.buffers()[1], kind.dtype)[values.offset : values.offset + length]
        update(data if valid is None else np.where(valid, data, data.dtype.type(0)))


def _extents(values: pa.Array, dtype: Any) -> tuple[np.ndarray, int, int]:
    """(int64 length of each list or text, where the first begins, where the last ends)."""
    offsets = np.frombuffer(values.buffers()[1], dtype)[values.offset : values.offset + len(values) + 1]
    lengths = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
    return lengths, int(offsets[0]), int(offsets[-1])


def _ones(length: int) -> bytes:
    """What `packbits` makes of so many ones."""
    return b"\xff" * (length // 8) + (bytes([256 - (256 >> length % 8)]) if length % 8 else b"")
