"""Messages of the one shape that nearly all traffic has, read in one go: role, text, tool calls.

    {"role": "assistant", "content": "...", "tool_calls": [{"id", "type", "function": {"name", "arguments"}}]}
    {"role": "tool", "content": "...", "tool_call_id": "..."}

Of such a message this says what `match.match_hash`, `messages.role_of_value`, `messages.tool_uses` and
`messages.text_of_value` say of any; they ask many questions that this shape has no use for, and a store asks
them of every message that comes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, NamedTuple

from tracestore.graph.match import HASH_BYTES
from tracestore.graph.messages import ToolUse

_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id", "name"})
_CALL_KEYS = frozenset({"id", "type", "function"})
_FUNCTION_KEYS = frozenset({"name", "arguments"})


class Ordinary(NamedTuple):
    """What is read off an ordinary message."""

    role: str
    match: bytes
    """As `match_hash`."""
    text: str
    """As `text_of_value`, before what no column takes is replaced."""
    name: str | None
    uses: tuple[ToolUse, ...]


def ordinary(value: Any) -> Ordinary | None:
    """What a `parsed` message says; None where it is of any other shape.

    A number is never text here: `parsed` gives numbers a type of their own.
    """
    if type(value) is not dict or not _KEYS.issuperset(value):
        return None
    role, content, name = value.get("role"), value.get("content"), value.get("name", "")
    answered = value.get("tool_call_id", "")
    if type(role) is not str or type(name) is not str or type(answered) is not str:
        return None
    if type(content) is not str and content is not None:
        return None
    # Keys in the order of the alphabet. "" of an assistant is a way to write nothing, as null is of anybody.
    fed = []
    if content is not None and (content or role != "assistant"):
        fed.append(_KEY["content"] + _text(content))
    if "name" in value:
        fed.append(_KEY["name"] + _text(name))
    fed.append(_KEY["role"] + _text(role))
    if "tool_call_id" in value:
        fed.append(_KEY["tool_call_id"] + _text(answered))
    uses: tuple[ToolUse, ...] = ()
    if "tool_calls" in value:
        found = _uses(value["tool_calls"])
        if found is None:
            return None
        uses = found[0]
        fed.append(found[1])
    match = blake2b(b"{%d:%b" % (len(fed), b"".join(fed)), digest_size=HASH_BYTES).digest()
    return Ordinary(role, match, content or "", value.get("name"), uses)


def _uses(calls: Any) -> tuple[tuple[ToolUse, ...], bytes] | None:
    """The tool uses of a list that is not empty, and how the hash is fed with it."""
    if type(calls) is not list or not calls:
        return None
    uses, fed = [], [_KEY["tool_calls"], b"[%d:" % len(calls)]
    for call in calls:
        if type(call) is not dict or call.keys() != _CALL_KEYS:
            return None
        id_, kind, function = call["id"], call["type"], call["function"]
        if type(function) is not dict or function.keys() != _FUNCTION_KEYS:
            return None
        name, arguments = function["name"], function["arguments"]
        if not type(id_) is type(kind) is type(name) is type(arguments) is str:
            return None
        uses.append(ToolUse(id_, name, arguments))
        fed += (_CALL, _text(arguments), _KEY["name"], _text(name), _KEY["id"], _text(id_))
        fed += (_KEY["type"], _text(kind))
    return tuple(uses), b"".join(fed)


def _text(text: str) -> bytes:
    written = text.encode("utf-8", "surrogatepass")
    return b"s%d:%b" % (len(written), written)


_KEY = {key: _text(key) for key in (*_KEYS, *_CALL_KEYS, *_FUNCTION_KEYS)}
_CALL = b"{3:" + _KEY["function"] + b"{2:" + _KEY["arguments"]
