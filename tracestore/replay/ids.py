"""The ids of an answer and of an equal one -> requests that go on from the one, with the ids of the other.

A server draws new ids for the tool calls of each answer, and for its items: two equal answers differ in them,
and in all that a harness sends after them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from tracestore.graph.messages import answer_messages
from tracestore.graph.spans import elements, first_byte, members
from tracestore.replay.keys import Asked
from tracestore.wire.base import Raw
from tracestore.wire.call import Dialect
from tracestore.wire.completion import CompletionFields

_IDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id"})
_WITHIN = frozenset({"tool_calls", "content"})
"""Where they stand in a message; not in the arguments of a tool."""
_MESSAGES = ("messages", "input")

_Path = tuple[str | int, ...]


def ids_between(
    recorded: Sequence[CompletionFields], other: Sequence[CompletionFields], dialect: Dialect
) -> dict[str, str]:
    """The ids of another answer -> those that stand in their places in the recorded one. {} where they do not
    belong to each other one by one.

    Example: {"tool_calls": [{"id": "call_1", ...}]} and {"tool_calls": [{"id": "call_x", ...}]}
    -> {"call_x": "call_1"}
    """
    found: dict[str, str] = {}
    for mine, theirs in zip(recorded, other, strict=False):
        sides = (answer_messages(mine.message, dialect), answer_messages(theirs.message, dialect))
        for one, two in zip(*sides, strict=False):
            known = {path: id_ for path, id_, _, _ in _ids(one.raw)}
            found |= {id_: known[path] for path, id_, _, _ in _ids(two.raw) if path in known}
    return found if len(set(found.values())) == len(found) else {}


def with_ids(message: bytes, ids: Mapping[str, str]) -> bytes:
    """A message with other ids, else as it was to the byte.

    Args:
        ids: new ones by old ones; what is not there stays.
    """
    parts: list[bytes] = []
    end = 0
    for _, id_, first, last in _ids(message):
        if id_ in ids:
            parts += [message[end:first], json.dumps(ids[id_]).encode()]
            end = last
    return b"".join([*parts, message[end:]])


def asked_with_ids(asked: Asked, ids: Mapping[str, str]) -> Asked:
    """A request, its messages with other ids."""
    body = bytes(asked.body)
    fields = members(body) if ids else {}
    for name in _MESSAGES:
        start, end = fields.get(name, (0, 0))
        if first_byte(body[start:end]) == b"[":
            messages = [body[start + first : start + last] for first, last in elements(body[start:end])]
            renamed = [with_ids(one, ids) for one in messages]
            if renamed != messages:
                body = body[:start] + b"[" + b",".join(renamed) + b"]" + body[end:]
                return Asked(asked.dialect, Raw(body))
    return asked


def _ids(message: bytes, at: int = 0, path: _Path = ()) -> Iterator[tuple[_Path, str, int, int]]:
    """(where it stands, the id, its first byte, the byte after it), in the order of the text."""
    if first_byte(message) != b"{":
        return
    for name, (start, end) in sorted(members(message).items(), key=lambda member: member[1]):
        text = message[start:end]
        if name in _IDS and first_byte(text) == b'"':
            yield (*path, name), Raw(text).value(), at + start, at + end
        elif name in _WITHIN and first_byte(text) == b"[":
            for place, (first, last) in enumerate(elements(text)):
                yield from _ids(text[first:last], at + start + first, (*path, name, place))
