"""Event -> JSON text, the inverse of decode: `decode_event(encode(event)) == event`, spans byte for byte."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
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
    members = [
        _member(name, getattr(event, name), arrays, getattr(event, "non_finite", None) is True)
        for name in type(event).model_fields
        if name in _ALWAYS or name in event.model_fields_set
    ]
    return b"{" + b",".join(members) + b"}"


def encode_array(events: Iterable[AnyEvent], *, arrays: Arrays = "json") -> bytes:
    """A body of several events as one JSON array."""
    return b"[" + b",\n".join(encode(event, arrays=arrays) for event in events) + b"]"


def _member(name: str, value: Any, arrays: Arrays, non_finite: bool) -> bytes:
    return b'"' + name.encode("ascii") + b'":' + _value(value, arrays, non_finite)


def _value(value: Any, arrays: Arrays, non_finite: bool) -> bytes:
    if isinstance(value, Raw):
        return bytes(value)
    if isinstance(value, TokenIds):
        return _dumps(value.json() if arrays == "json" else _binary(value.data, "int32"))
    if isinstance(value, Logprobs):
        return _logprobs(value, arrays, non_finite)
    if isinstance(value, BaseModel):
        names = (name for name in type(value).model_fields if name in value.model_fields_set)
        return b"{" + b",".join(_member(n, getattr(value, n), arrays, non_finite) for n in names) + b"}"
    if isinstance(value, tuple):
        return b"[" + b",".join(_value(item, arrays, non_finite) for item in value) + b"]"
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


def _dumps(value: Any) -> bytes:
    # ASCII: a lone surrogate has no UTF-8 and is written as its escape.
    return json.dumps(value, separators=(",", ":")).encode("ascii")
