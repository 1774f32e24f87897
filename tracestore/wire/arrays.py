"""Token ids and logprobs: JSON arrays or base64 of little-endian numbers, kept bit for bit."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from pydantic_core import core_schema

MAX_TOKEN_ID = 2**31 - 1
_NoneType = type(None)


def _from_base64(value: dict[str, Any], dtypes: tuple[str, ...]) -> np.ndarray:
    if (
        set(value) != {"dtype", "base64"}
        or value["dtype"] not in dtypes
        or not isinstance(value["base64"], str)
    ):
        names = " or ".join(repr(name) for name in dtypes)
        raise ValueError(f'binary arrays are {{"dtype": {names}, "base64": "..."}}')
    try:
        data = base64.b64decode(value["base64"], validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error
    dtype = np.dtype(value["dtype"]).newbyteorder("<")
    if len(data) % dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are no whole number of {value['dtype']} values")
    return np.frombuffer(data, dtype=dtype)


def _check_ids(values: Sequence[Any]) -> None:
    # set(map(...)), min and max run in C: the position is looked for only once something is wrong.
    if set(map(type, values)) <= {int}:
        if not values or (min(values) >= 0 and max(values) <= MAX_TOKEN_ID):
            return
        out = next(i for i, token in enumerate(values) if not 0 <= token <= MAX_TOKEN_ID)
        raise ValueError(f"token ids lie in [0, 2^31); position {out} holds {_short(values[out])}")
    wrong = next(i for i, token in enumerate(values) if type(token) is not int)
    raise ValueError(f"token ids are integers; position {wrong} holds {_short(values[wrong])}")


def _short(value: Any) -> str:
    try:
        return repr(value)[:40]
    except ValueError:  # more digits than Python prints
        return "a number of thousands of digits"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids of one prompt, prompt tail or completion, int32."""

    data: bytes
    """Little-endian int32."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """From a JSON array, `{"dtype": "int32", "base64": ...}`, a numpy array or a sequence of ints."""
        if isinstance(value, cls):
            return value
        if isinstance(value, dict):
            ids = _from_base64(value, ("int32",))
        elif isinstance(value, np.ndarray):
            if value.dtype.kind not in "iu":
                raise ValueError(f"token ids are integers, not {value.dtype}")
            ids = value
        elif isinstance(value, (list, tuple)):
            _check_ids(value)
            ids = np.asarray(value, dtype=np.int64)
        else:
            raise ValueError('token ids are an array of integers or {"dtype": "int32", "base64": "..."}')
        if ids.size and (int(ids.min()) < 0 or int(ids.max()) > MAX_TOKEN_ID):
            position = int(np.flatnonzero((ids < 0) | (ids > MAX_TOKEN_ID))[0])
            raise ValueError(f"token ids lie in [0, 2^31); position {position} holds {int(ids[position])}")
        return cls(ids.astype("<i4").tobytes())

    @property
    def array(self) -> np.ndarray:
        """int32 [T], read-only."""
        return np.frombuffer(self.data, dtype="<i4")

    def __len__(self) -> int:
        return len(self.data) // 4

    def json(self) -> list[int]:
        ids: list[int] = self.array.tolist()
        return ids

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.plain_serializer_function_ser_schema(lambda ids: ids.json())
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}},
                _binary_schema("int32"),
            ]
        }


_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


@dataclass(frozen=True, slots=True)
class Logprobs:
    """log p(token_i | before) at the token's own index, as the server gave it.

    float32 when every posted value round-trips, else float64; the dtype is recorded. A JSON null is a
    position the server did not report: it is listed in `nulls` and its value is 0, which is not a claim.
    Sentinels (-9999, -100) and non-finite values stay as they are; the exporter marks them.
    """

    data: bytes
    """Little-endian values of `dtype`."""
    dtype: Literal["float32", "float64"]
    nulls: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: Any) -> Self:
        """From a JSON array (null allowed), numpy, or `{"dtype": "float32" | "float64", "base64": ...}`.

        The binary form lists positions without a value in an optional `"nulls": [...]`, rising.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, dict):
            nulls = _null_positions(value.get("nulls"))
            array = _from_base64({k: v for k, v in value.items() if k != "nulls"}, ("float32", "float64"))
            if nulls and nulls[-1] >= array.size:
                raise ValueError(f"nulls names position {nulls[-1]} of {array.size} values")
            if nulls:
                array = array.copy()
                array[list(nulls)] = 0
            return cls(array.tobytes(), value["dtype"], nulls)
        if isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float64):
            return cls(value.astype(value.dtype.newbyteorder("<")).tobytes(), value.dtype.name)
        if not isinstance(value, (list, tuple)):
            raise ValueError('logprobs are an array of numbers or {"dtype": ..., "base64": "..."}')
        if not set(map(type, value)) <= {int, float, _NoneType}:
            wrong = next(i for i, x in enumerate(value) if type(x) not in (int, float, _NoneType))
            raise ValueError(f"logprobs are numbers or null; position {wrong} holds {_short(value[wrong])}")
        nulls = tuple(i for i, x in enumerate(value) if x is None) if None in value else ()
        try:
            double = np.asarray([0.0 if x is None else float(x) for x in value], dtype="<f8")
        except OverflowError:
            raise ValueError("logprobs fit float64; one of these is an integer beyond it") from None
        with np.errstate(over="ignore"):
            single = double.astype("<f4")
        if np.array_equal(single.astype("<f8"), double, equal_nan=True):
            return cls(single.tobytes(), "float32", nulls)
        return cls(double.tobytes(), "float64", nulls)

    @property
    def array(self) -> np.ndarray:
        """[T] of `dtype`, read-only; 0 where `nulls` says that nothing was reported."""
        values: np.ndarray = np.frombuffer(self.data, dtype=_DTYPES[self.dtype])
        return values

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.array).all())

    def __len__(self) -> int:
        return len(self.data) // (4 if self.dtype == "float32" else 8)

    def json(self) -> list[float | None]:
        values: list[float | None] = self.array.tolist()
        for position in self.nulls:
            values[position] = None
        return values

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.of, serialization=core_schema.plain_serializer_function_ser_schema(_strict_json)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        number = {"anyOf": [{"type": "number"}, {"type": "null"}]}
        binary = _binary_schema("float32", "float64")
        binary["properties"]["nulls"] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
        return {"anyOf": [{"type": "array", "items": number}, binary]}


def _null_positions(value: Any) -> tuple[int, ...]:
    nulls = value if value is not None else []
    if not isinstance(nulls, (list, tuple)) or not all(type(position) is int for position in nulls):
        raise ValueError("nulls is an array of positions")
    if any(a >= b for a, b in zip((-1, *nulls), nulls, strict=False)):
        raise ValueError("nulls are positions from 0 that rise")
    return tuple(nulls)


def _strict_json(logprobs: Logprobs) -> list[float | str | None]:
    """Strict JSON has no NaN or Infinity: they are written as strings."""
    return [x if x is None or math.isfinite(x) else str(x) for x in logprobs.json()]


def _binary_schema(*dtypes: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"dtype": {"enum": list(dtypes)}, "base64": {"type": "string"}},
        "required": ["dtype", "base64"],
        "additionalProperties": False,
    }
