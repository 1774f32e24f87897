"""Messages of the one shape that nearly all traffic has, read in one go: role, text, tool calls.

    {"role": "assistant", "content": "...", "tool_calls": [{"id", "type", "function": {"name", "arguments"}}]}
    {"role": "tool", "content": "...", "tool_call_id": "..."}

Of such a message this says what `match.match_hash`, `messages.role_of_value`, `messages.tool_uses` and
`messages.text_of_value` say of any; they ask many questions that this shape has no use for, and a store asks
them of every message that comes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from tracestore.graph.match import HASH_BYTES
from tracestore.graph.messages import ToolUse


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    type: str
    function: _Function


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    """The shape: another field, or another type in one of these, makes a message of another shape."""

    role: str
    content: str | None = None
    name: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    tool_calls: list[_Call] | UnsetType = UNSET


class Ordinary(NamedTuple):
    """What is read off an ordinary message."""

    role: str
    match: bytes
    """As `match_hash`."""
    text: str
    """As `text_of_value`, before what no column takes is replaced."""
    name: str | None
    uses: tuple[ToolUse, ...]


def ordinary(message: bytes) -> Ordinary | None:
    """What a message says, JSON that the wire has checked; None where it is of any other shape."""
    try:
        said = _decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    # Keys in the order of the alphabet. "" of an assistant is a way to write nothing, as null is of anybody.
    fed = []
    if said.content is not None and (said.content or said.role != "assistant"):
        fed.append(_CONTENT + _text(said.content))
    if said.name is not UNSET:
        fed.append(_NAME + _text(said.name))
    fed.append(_ROLE + _text(said.role))
    if said.tool_call_id is not UNSET:
        fed.append(_TOOL_CALL_ID + _text(said.tool_call_id))
    uses: tuple[ToolUse, ...] = ()
    if said.tool_calls:
        fed.append(_TOOL_CALLS % len(said.tool_calls) + b"".join(map(_call, said.tool_calls)))
        uses = tuple(_use(one) for one in said.tool_calls)
    match = blake2b(b"{%d:%b" % (len(fed), b"".join(fed)), digest_size=HASH_BYTES).digest()
    return Ordinary(said.role, match, said.content or "", None if said.name is UNSET else said.name, uses)


_decode = msgspec.json.Decoder(_Message).decode


def _call(call: _Call) -> bytes:
    function = call.function
    return _CALL % (_text(function.arguments), _text(function.name), _text(call.id), _text(call.type))


def _use(call: _Call) -> ToolUse:
    # As `tool_uses` has it, a tool without a name is one whose name is not known.
    return ToolUse(call.id, call.function.name or None, call.function.arguments)


def _text(text: str) -> bytes:
    written = text.encode()
    return b"s%d:%b" % (len(written), written)


_CONTENT, _NAME, _ROLE = _text("content"), _text("name"), _text("role")
_TOOL_CALL_ID, _TOOL_CALLS = _text("tool_call_id"), _text("tool_calls") + b"[%d:"
_CALL = b"{3:%b{2:%b%%b%b%%b%b%%b%b%%b" % (
    *(_text("function"), _text("arguments"), _text("name"), _text("id"), _text("type")),
)
