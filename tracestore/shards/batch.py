"""Row <-> Arrow record batch of one row, and a hash of its content that no compression changes.

Token columns are wrapped without a copy in both directions. Values under nulls are zero, so that equal rows
are equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

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
    for name, entry in _ENTRIES.items():
        columns[name] = _structs(name, getattr(row, name), entry)
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
        for column in batch.columns:
            _feed(self._digest, column)

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


def _structs(name: str, entries: Sequence[Any], entry: type[Any]) -> pa.Array:
    """Column by column, which is several times faster than a list of dicts."""
    kind = SCHEMA.field(name).type
    children = []
    for part, declared in zip(fields(entry), kind.value_type, strict=True):
        assert part.name == declared.name
        values = [getattr(one, part.name) for one in entries]
        if part.name == "members":
            children.append(_members(values, declared.type))
        else:
            children.append(_column(values, declared.type))
    return _list(kind, pa.Array.from_buffers(kind.value_type, len(entries), [None], children=children))


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
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
    structs = _items(column)
    names = [part.name for part in fields(entry)]  # type: ignore[arg-type]
    columns = [_python(name, structs.field(name)) for name in names]
    return tuple(entry(*values) for values in zip(*columns, strict=True))


def _python(name: str, values: pa.Array) -> list[Any]:
    listed: list[Any] = values.to_pylist()
    if name == "members":
        return [tuple(rows.MemberEntry(**one) for one in members) for members in listed]
    if pa.types.is_list(values.type) and name in _TUPLES:
        return [None if one is None else tuple(one) for one in listed]
    return listed


def _feed(digest: Any, values: pa.Array) -> None:
    """Length, validity and values of an array, its children after it."""
    kind = values.type
    digest.update(len(values).to_bytes(8, "little"))
    valid = _valid(values) if values.null_count else None
    digest.update(_ones(len(values)) if valid is None else np.packbits(valid).tobytes())
    if pa.types.is_struct(kind):
        for child in values.flatten():
            _feed(digest, child)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = values.value_lengths().fill_null(0).cast(pa.int64())
        digest.update(_values(lengths).tobytes())
        _feed(digest, values.flatten())
    elif pa.types.is_string(kind):
        texts = values if valid is None else values.fill_null("")
        digest.update(_values(_text_lengths(texts)).tobytes())
        digest.update(_text_bytes(texts))
    elif pa.types.is_boolean(kind):
        flags = values if valid is None else values.fill_null(False)
        digest.update(np.packbits(flags.to_numpy(zero_copy_only=False)).tobytes())
    else:
        data = _values(values)
        digest.update(
            np.ascontiguousarray(data if valid is None else np.where(valid, data, data.dtype.type(0)))
        )


def _ones(length: int) -> bytes:
    """What `packbits` makes of so many ones."""
    return b"\xff" * (length // 8) + (bytes([256 - (256 >> length % 8)]) if length % 8 else b"")


def _text_lengths(texts: pa.Array) -> pa.Array:
    offsets = (
        np.frombuffer(texts.buffers()[1], dtype=np.int32) if texts.buffers()[1] else np.zeros(1, np.int32)
    )
    return pa.array(np.diff(offsets[texts.offset : texts.offset + len(texts) + 1]).astype(np.int64))


def _text_bytes(texts: pa.Array) -> bytes:
    if len(texts) == 0 or texts.buffers()[2] is None:
        return b""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)
    start, end = int(offsets[texts.offset]), int(offsets[texts.offset + len(texts)])
    return bytes(memoryview(texts.buffers()[2])[start:end])
