"""Token ids and logprobs are kept bit for bit, whatever they were posted as."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore.wire.arrays import Logprobs, TokenIds

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=20)


@given(IDS)
def test_ids_are_little_endian_int32_from_every_source(ids: list[int]) -> None:
    data = struct.pack(f"<{len(ids)}i", *ids)
    binary = {"dtype": "int32", "base64": base64.b64encode(data).decode()}
    for source in (ids, tuple(ids), np.array(ids, dtype=np.int64), np.array(ids, dtype=">u4"), binary):
        made = TokenIds.of(source)
        assert (made.data, made.json(), len(made)) == (data, ids, len(ids))


@given(st.lists(st.floats(width=32), max_size=20))
def test_float32_values_are_kept_as_float32(values: list[float]) -> None:
    made = Logprobs.of(values)
    assert made.dtype == "float32"
    assert made.data == np.array(values, dtype="<f4").tobytes()
    assert str(made.json()) == str(values)


@given(st.lists(st.none() | st.floats(), max_size=20))
def test_logprobs_come_back_as_they_were_posted(values: list[float | None]) -> None:
    made = Logprobs.of(values)
    assert repr(made.json()) == repr(values)
    assert made.nulls == tuple(place for place, value in enumerate(values) if value is None)
    assert len(made) == len(values)


def test_one_value_that_needs_float64_makes_all_of_them_float64() -> None:
    assert Logprobs.of([-0.5, -0.1]).dtype == "float64"  # 0.1 is no float32
    assert Logprobs.of([-0.5, 1e-320]).dtype == "float64"  # a float32 would flush it to 0
    assert Logprobs.of([-0.5, 1e300]).dtype == "float64"  # and this to infinity
    assert Logprobs.of([-0.5, float("-inf"), float("nan")]).dtype == "float32"


def test_binary_logprobs_name_the_positions_without_a_value() -> None:
    data = base64.b64encode(struct.pack("<3f", -0.5, 7.0, -1.0)).decode()
    made = Logprobs.of({"dtype": "float32", "base64": data, "nulls": [1]})
    assert made.json() == [-0.5, None, -1.0]
    assert made == Logprobs.of([-0.5, None, -1.0])
    assert made.is_finite


@pytest.mark.parametrize("nulls", [[3], [-1], [1, 1], [2, 1], [True], [1.0], "1", {"a": 1}])
def test_positions_without_a_value_are_rising_places_of_the_array(nulls: Any) -> None:
    with pytest.raises(ValueError, match="nulls"):
        Logprobs.of({"dtype": "float32", "base64": "AAAAAAAAAAAAAAAA", "nulls": nulls})


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([1, -1], r"\[0, 2\^31\); position 1 holds -1"),
        ([2**31], "position 0 holds 2147483648"),
        ([10**5000], "position 0 holds a number of thousands of digits"),
        ([1, True], "integers; position 1 holds True"),
        ([1, "2"], "integers; position 1 holds '2'"),
        (np.array([1.0]), "integers, not float64"),
        (np.array([1, -5]), "position 1 holds -5"),
        ("AAAA", "an array of integers or"),
        ({"dtype": "int32"}, "binary arrays are"),
        ({"dtype": ["int32"], "base64": ""}, "binary arrays are"),
        ({"dtype": "int32", "base64": "A"}, "not base64"),
    ],
)
def test_wrong_ids_are_refused_at_their_position(ids: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        TokenIds.of(ids)


@pytest.mark.parametrize(
    "values", [[True], ["-1"], [[1]], "x", 3, [10**400], {"dtype": "float16", "base64": ""}]
)
def test_wrong_logprobs_are_refused(values: Any) -> None:
    with pytest.raises(ValueError, match=r"logprobs|binary arrays"):
        Logprobs.of(values)
