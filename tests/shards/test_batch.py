from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.shards.rows import any_rows, same_row, tiny_row
from tracestore.shards.batch import content_hash, from_batch, to_batch
from tracestore.shards.row import EpisodeEntry, Row
from tracestore.shards.schema import SCHEMA, SCHEMA_VERSION


@settings(max_examples=40)
@given(any_rows())
def test_a_row_read_back_from_arrow_says_what_was_written(row: Row) -> None:
    batch = to_batch(row)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    assert same_row(from_batch(batch), row)


@settings(max_examples=20)
@given(any_rows())
def test_equal_rows_have_equal_content_hashes_however_their_buffers_lie(row: Row) -> None:
    batch = to_batch(row)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    read = pa.ipc.open_stream(sink.getvalue()).read_next_batch()
    twice = pa.Table.from_batches([batch, batch]).combine_chunks().to_batches()[0]
    expected = content_hash([batch])
    assert content_hash([read]) == expected
    assert content_hash([to_batch(row)]) == expected
    assert content_hash([twice.slice(1, 1)]) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"token_ids": np.asarray([7, 8, 1, 2, 9, 4, 1, 4], np.int32)},
        {"reason": np.asarray([1, 1, 0, 0, 1, 0, 0, 2], np.uint8)},
        {"logprobs": np.full(8, -0.25, np.float32)},
        {"has_logprob": np.ones(8, bool)},
        {"group_id": None},
        {"group_id": ""},
        {"episodes": (EpisodeEntry("e", None, None, None, None, 0, True),)},
        {"samples": ()},
        {"task_id": "t"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_other_value_gives_another_content_hash(change: dict[str, object]) -> None:
    row = tiny_row()
    assert content_hash([to_batch(dataclasses.replace(row, **change))]) != content_hash([to_batch(row)])


def test_a_value_under_a_null_is_zero_in_the_file() -> None:
    logprobs = np.full(8, -3.0, np.float32)
    batch = to_batch(tiny_row(logprobs=logprobs, has_logprob=np.arange(8) == 2))
    values = np.frombuffer(batch.column("logprobs").values.buffers()[1], np.float32)
    assert values.tolist() == [0, 0, -3, 0, 0, 0, 0, 0]
    assert batch.column("logprobs64").null_count == 1


def test_what_lies_under_a_null_is_not_hashed() -> None:
    null = pa.py_buffer(b"\x05")  # the second of three
    texts, zeros = pa.array(["a", "bb", "c"]), pa.array(["a", None, "c"])
    lists, gaps = pa.array([[1], [2, 3], [4]]), pa.array([[1], None, [4]])
    hidden = [
        pa.Array.from_buffers(texts.type, 3, [null, *texts.buffers()[1:]], null_count=1),
        pa.Array.from_buffers(lists.type, 3, [null, lists.buffers()[1]], 1, children=[lists.values]),
    ]
    names = ["texts", "lists"]
    batches = [pa.RecordBatch.from_arrays(arrays, names=names) for arrays in (hidden, [zeros, gaps])]
    assert batches[0].equals(batches[1])
    assert content_hash(batches[:1]) == content_hash(batches[1:])


def test_a_content_hash_is_the_same_in_every_version_with_this_schema() -> None:
    # Manifests that are out there state it.
    assert (SCHEMA_VERSION, content_hash([to_batch(tiny_row())])[:16]) == (4, "0378a93c65ec529c")


def test_float64_logprobs_use_the_other_column() -> None:
    logprobs = np.full(8, -1 / 3)
    batch = to_batch(tiny_row(logprobs=logprobs, has_logprob=np.ones(8, bool)))
    assert batch.column("logprobs").null_count == 1
    assert batch.column("logprobs64")[0].as_py() == [-1 / 3] * 8


def test_a_lone_surrogate_in_a_free_text_is_written_as_its_escape() -> None:
    row = tiny_row(episodes=(EpisodeEntry("e", "odd \ud83d", None, None, None, 0, True),))
    assert from_batch(to_batch(row)).episodes[0].status == "odd \\ud83d"


def test_token_arrays_are_views_of_the_batch() -> None:
    batch = to_batch(tiny_row())
    row = from_batch(batch)
    assert not row.token_ids.flags.owndata
    assert row.logprobs is not None
    assert not row.logprobs.flags.owndata
