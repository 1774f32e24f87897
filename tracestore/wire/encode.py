"""Event -> JSON text, the inverse of decode: `decode_event(encode(event)) == event`, spans byte for byte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from functools import cache
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any, Literal

from pydantic import BaseModel

from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import Raw
from tracestore.wire.events import AnyEvent

Arrays = Literal["json", "base64"]
_ALWAYS = ("v", "kind", "id")


def encode(event: AnyEvent, *, arrays: Arrays = "json") -> bytes:
    """The JSON text of an event: the fields that were set, spans verbatim.

    One line, unless a span holds line breaks of its own; such an event goes into an array (`encode_array`),
    since NDJSON has no place for it.

    Args:
        arrays: token ids and logprobs as JSON lists, or as base64 of little-endian numbers (smaller, and
            faster to read). Logprobs that a list would change (float64 values that all fit float32, NaN that
            the event does not declare) are base64 either way.
    """
    # Not by getattr: where a model lacks the field, Pydantic looks long for it.
    non_finite = event.__dict__.get("non_finite") is True
    return _object(event, _ALWAYS, arrays, non_finite)


def encode_array(events: Iterable[AnyEvent], *, arrays: Arrays = "json") -> bytes:
    """A body of several events as one JSON array."""
    return b"[" + b",\n".join(encode(event, arrays=arrays) for event in events) + b"]"


@cache
def _keys(model: type[BaseModel]) -> tuple[tuple[str, bytes], ...]:
    """(field, how its member begins)."""
    return tuple((name, b'"' + name.encode("ascii") + b'":') for name in model.model_fields)


def _object(model: BaseModel, always: tuple[str, ...], arrays: Arrays, non_finite: bool) -> bytes:
    named = model.model_fields_set
    members = [
        key + _value(getattr(model, name), arrays, non_finite)
        for name, key in _keys(type(model))
        if name in named or name in always
    ]
    return b"{" + b",".join(members) + b"}"


_PLAIN = frozenset({str, int, float, bool, type(None)})


def _value(value: Any, arrays: Arrays, non_finite: bool) -> bytes:
    # Ordered by how often they come; a look whether something is a model is by far the dearest.
    if type(value) in _PLAIN:
        return _dumps(value)
    if isinstance(value, Raw):
        return value
    if isinstance(value, tuple):
        return b"[" + b",".join([_value(item, arrays, non_finite) for item in value]) + b"]"
    if isinstance(value, TokenIds):
        return _dumps(value.json() if arrays == "json" else _binary(value.data, "int32"))
    if isinstance(value, Logprobs):
        return _logprobs(value, arrays, non_finite)
    if isinstance(value, BaseModel):
        return _object(value, (), arrays, non_finite)
    return _dumps(value)


def _logprobs(logprobs: Logprobs, arrays: Arrays, non_finite: bool) -> bytes:
    if arrays == "json" and (non_finite or logprobs.is_finite):
        values = logprobs.json()
        if Logprobs.of(values) == logprobs:
            return _dumps(values)
    binary: dict[str, Any] = _binary(logprobs.data, logprobs.dtype)
    if logprobs.nulls:
        binary["nulls"] = list(logprobs.nulls)
    return _dumps(binary)


def _binary(data: bytes, dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "base64": base64.b64encode(data).decode("ascii")}


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _dumps(value: Any) -> bytes:
    # ASCII: a lone surrogate has no UTF-8 and is written as its escape.
    if type(value) is str:
        return encode_basestring_ascii(value).encode("ascii")
    if type(value) is int or (type(value) is float and isfinite(value)):
        return repr(value).encode("ascii")
    if value is None:
        return b"null"
    return _encode(value).encode("ascii")
