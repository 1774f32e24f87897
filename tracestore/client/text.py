"""Python values -> the JSON text of an event. Text that is given as bytes is kept as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tracestore.client.errors import NotRecordable

WIRE_VERSION = 1
_CONSTANT = re.compile(rb"NaN|Infinity")
_MAY_HOLD_NON_FINITE = frozenset({"call", "completion"})


def event_text(kind: str, event_id: str, fields: Mapping[str, Any]) -> bytes:
    """The JSON text of an event; fields that are None are left out."""
    event = {"v": WIRE_VERSION, "kind": kind, "id": event_id} | {
        k: v for k, v in fields.items() if v is not None
    }
    text = _json(event)
    if _CONSTANT.search(text) is None or not _holds_constant(text):
        return text
    if kind not in _MAY_HOLD_NON_FINITE:
        raise NotRecordable(kind=kind, id=event_id, hint=f"a {kind} holds finite numbers only: leave NaN out")
    return _json(event | {"non_finite": True})


def checked_text(text: bytes) -> bytes:
    """An event that is JSON text already; checked where it cannot go as a line, which would fail alone."""
    return _checked_json(text) if b"\n" in text else text


def _json(value: Any) -> bytes:
    """JSON text; lone surrogates become escapes, bytes are JSON text already and stay as they are."""
    if isinstance(value, (bytes, bytearray)):
        return _checked_json(bytes(value))
    try:
        return json.dumps(value, separators=(",", ":"), default=_listed).encode("ascii")
    except _HoldsBytes:
        if isinstance(value, Mapping):
            return b"{" + b",".join(_json(str(k)) + b":" + _json(v) for k, v in value.items()) + b"}"
        return b"[" + b",".join(map(_json, value)) + b"]"
    except (TypeError, ValueError, RecursionError) as error:
        raise NotRecordable(hint=str(error)) from error


class _HoldsBytes(Exception):
    """Some value inside is JSON text given as bytes."""


def _listed(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        raise _HoldsBytes
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _checked_json(text: bytes) -> bytes:
    try:
        json.loads(text.decode("utf-8"), parse_int=len, parse_float=len)
    except (ValueError, RecursionError) as error:
        shown = text[:40].decode("utf-8", "replace")
        raise NotRecordable(found=shown, hint=f"bytes are JSON text that is kept as it is: {error}") from None
    return text.strip(b" \t\r\n")


def _holds_constant(text: bytes) -> bool:
    found: list[str] = []
    json.loads(text, parse_int=len, parse_float=len, parse_constant=found.append)
    return bool(found)
