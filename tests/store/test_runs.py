"""Chains of deltas spell the whole ids, and a conversation costs its tokens once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from tests.factories import answer, call, posted
from tests.store.test_dictionary import join_training
from tracestore.store import Store, dictionary
from tracestore.store import tables as t
from tracestore.store.codec import Compressor
from tracestore.store.runs import (
    RunRow,
    common_prefix,
    front,
    planes,
    spell,
    unpack_ids,
    unpack_logprobs,
    with_front,
)
from tracestore.store.verify import verify
from tracestore.wire.arrays import Logprobs, TokenIds


def _ids(*ids: int) -> bytes:
    return np.asarray(ids, dtype="<i4").tobytes()


def test_a_chain_is_spelled_from_its_deltas() -> None:
    rows = {
        1: RunRow(None, 0, _ids(1, 2, 3), None),
        2: RunRow(1, 3, _ids(4, 5), None),
        3: RunRow(2, 4, _ids(9), None),
        4: RunRow(3, 2, _ids(7), None),
    }
    assert spell(rows, 2) == _ids(1, 2, 3, 4, 5)
    assert spell(rows, 3) == _ids(1, 2, 3, 4, 9)
    assert spell(rows, 4) == _ids(1, 2, 7)


@pytest.mark.parametrize(
    ("first", "second", "length"), [((), (), 0), ((1, 2), (1, 2, 3), 2), ((1, 2), (1, 3), 1), ((5,), (6,), 0)]
)
def test_the_common_prefix_ends_where_ids_differ(
    first: tuple[int, ...], second: tuple[int, ...], length: int
) -> None:
    assert common_prefix(np.asarray(first, np.int32), np.asarray(second, np.int32)) == length


def test_a_conversation_costs_its_tokens_once(store: Store) -> None:
    """20 calls of 10 new prompt ids and 5 sampled ones: 20 * 15 = 300 ids, not the 3,150 that were posted."""
    prompt: list[int] = []
    total = 0
    for number in range(20):
        prompt += range(number * 10, number * 10 + 10)
        sampled = [1000 + number] * 5
        event = call(f"c{number}", None, answer("a", ids=sampled), prompt_ids=prompt, ordinal=number)
        store.ingest("p", [posted(event)])
        total += len(prompt)
        prompt = prompt + sampled
    with store.read() as connection:
        stored = connection.execute(select(func.sum(t.token_run.c.num_ids))).scalar()
    assert total == 10 * sum(range(1, 21)) + 5 * sum(range(20)) == 3050
    assert stored == 300


def test_a_prompt_that_breaks_off_early_is_based_on_what_it_shares(store: Store) -> None:
    store.ingest("p", [posted(call("c0", None, answer("a", ids=[4, 5]), prompt_ids=[1, 2, 3], ordinal=0))])
    store.ingest("p", [posted(call("c1", None, prompt_ids=[1, 2, 9, 9], ordinal=1))])
    with store.read() as connection:
        rows = connection.execute(
            select(t.token_run.c.base_length, t.token_run.c.num_tokens).order_by(t.token_run.c.key)
        ).all()
    assert [tuple(row) for row in rows] == [(0, 3), (3, 5), (2, 4)]
    c1 = store.load_graph("p", "e").calls["c1"]
    assert c1.prompt_token_ids is not None
    assert c1.prompt_token_ids.json() == [1, 2, 9, 9]


def packed(data: bytes) -> bytes:
    [(_, stored)] = Compressor().compress_all([data])
    return stored


def packed_logprobs(logprobs: Logprobs) -> bytes:
    [stored] = Compressor().compress_all([front(logprobs)])
    return with_front(logprobs, *stored)


_SOME_IDS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 300_000), max_size=40)


@given(_SOME_IDS)
def test_packed_ids_are_unpacked(ids: list[int]) -> None:
    assert unpack_ids(packed(planes(np.asarray(ids, "<i4").tobytes())), len(ids)).tolist() == ids


def test_packed_ids_take_less_room() -> None:
    ids = np.random.default_rng(0).integers(0, 150_000, 400).astype(np.int32)
    assert len(packed(planes(ids.tobytes()))) < 0.75 * ids.nbytes


def _phrases(count: int) -> list[list[int]]:
    """Ids of texts that are made of the same phrases."""
    rng = np.random.default_rng(0)
    phrases = rng.integers(0, 150_000, (60, 6))
    return [phrases[rng.integers(0, 60, 8)].reshape(-1).tolist() for _ in range(count)]


def test_ids_after_the_first_runs_are_packed_with_a_dictionary_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionary, "SAMPLES", 60)
    monkeypatch.setitem(dictionary.DICTIONARY_BYTES, "ids", 2_048)
    sampled = [*_phrases(120), [], [5], [2**31 - 1, 0, 2**24], list(range(70_000, 70_400))]
    for number, ids in enumerate(sampled):
        if number == 80:
            join_training()
        store.ingest("p", [posted(call(f"c{number}", None, answer("a", ids=ids)))])
    run = t.token_run.c
    with store.read() as connection:
        rows = connection.execute(select(run.packed_ids, run.dictionary_key).order_by(run.key)).all()
        purposes = connection.execute(select(t.dictionary.c.purpose)).scalars().all()
    assert purposes == ["ids"]
    first, last = (sum(len(row.packed_ids) for row in rows[start : start + 20]) for start in (0, 100))
    assert last < 0.7 * first
    assert all(row.dictionary_key is not None for row in rows[80:])
    graph = store.load_graph("p", "e")
    read = [graph.completions[f"c{number}", 0].token_ids for number in range(len(sampled))]
    assert read == [TokenIds.of(ids) for ids in sampled]
    assert verify(store, "p").problems == ()


@given(st.lists(st.binary(min_size=8, max_size=8), max_size=60), st.sampled_from(["float32", "float64"]))
def test_packed_logprobs_are_unpacked_to_the_last_bit(values: list[bytes], dtype: Any) -> None:
    data = b"".join(value[: 4 if dtype == "float32" else 8] for value in values)
    logprobs = Logprobs(data, dtype)
    assert unpack_logprobs(packed_logprobs(logprobs), len(values), dtype=dtype) == data


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_packed_logprobs_take_less_room(dtype: Any) -> None:
    values = -np.random.default_rng(0).exponential(0.3, 200).astype(dtype)
    logprobs = Logprobs.of(values)
    packed = packed_logprobs(logprobs)
    assert len(packed) < 0.92 * len(logprobs.data)
    assert unpack_logprobs(packed, 200, dtype=dtype) == logprobs.data


def test_special_logprobs_come_back_bit_for_bit() -> None:
    values = [-0.0, 0.0, np.inf, -np.inf, np.nan, -9999.0, 1e-45] * 20
    data = np.asarray(values, "<f4").tobytes() + bytes.fromhex("010080ffefbec0ff")
    assert unpack_logprobs(packed_logprobs(Logprobs(data, "float32")), 142, dtype="float32") == data


def test_logprobs_after_the_first_runs_are_packed_with_a_dictionary_of_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionary, "SAMPLES", 60)
    rng = np.random.default_rng(0)
    drawn = [(-rng.exponential(0.3, 100)).astype("<f4").tolist() for _ in range(120)]
    drawn += [[np.nan, -0.0, np.inf], (-rng.exponential(0.3, 80)).tolist()]
    for number, values in enumerate(drawn):
        if number == 80:
            join_training()
        one = answer("a", ids=[number] * len(values), logprobs=values)
        store.ingest("p", [posted(call(f"c{number}", None, one))])
    run = t.token_run.c
    with store.read() as connection:
        rows = connection.execute(select(run.logprobs, run.logprobs_dictionary_key).order_by(run.key)).all()
    first, last = (sum(len(row.logprobs) for row in rows[start : start + 20]) for start in (0, 100))
    assert last < first < 20 * 400
    assert all(row.logprobs_dictionary_key is not None for row in rows[80:])
    graph = store.load_graph("p", "e")
    read = [graph.completions[f"c{number}", 0].logprobs for number in range(len(drawn))]
    assert read == [Logprobs.of(values) for values in drawn]
    assert verify(store, "p").problems == ()
