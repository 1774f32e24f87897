"""A request <-> its skeleton, messages and tools; put together again it is the request, byte for byte.

The skeleton is the request's own text with holes. A hole is written between two 0xFF bytes, which no UTF-8
text holds:

    {"model":"m","messages":[<FF>0:*:,<FF>],"tools":<FF>tools<FF>,"temperature":1}

`0:*:,` stands for the messages from number 0 to the last with a comma between them, so that the growing
requests of one agent share one skeleton. `1:3:, ` would be three messages beginning with number 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tracestore.graph.messages import Part, message_parts
from tracestore.graph.spans import Place, members
from tracestore.wire.call import Dialect

_HOLE = b"\xff"
_TOOLS = b"tools"


class Frame(NamedTuple):
    """What stands around an array of messages that no other message follows."""

    head: bytes
    """Up to the first message; ends with the array's [ and the white space after it."""
    tail: bytes
    between: bytes
    """The text between two messages; a comma where there is but one message."""
    num_before: int
    """Messages that stand in the head or the tail and are read before the array (a system prompt)."""


class Cut(NamedTuple):
    """A request taken apart."""

    skeleton: bytes
    messages: tuple[tuple[bytes, str | None], ...]
    """In the order the model reads them, each with the role its place gives it."""
    tools: bytes | None
    frame: Frame | None = None
    """None: the messages do not end with an array of them."""


class _Hole(NamedTuple):
    start: int
    end: int
    message: int | None
    """Its number in reading order; None for the tools."""


def cut(request: bytes, dialect: Dialect) -> Cut:
    """Take a request apart. What is no object with messages has a skeleton only."""
    fields = members(request)
    parts = message_parts(request, dialect, fields=fields)
    # With no messages the request may be anything, a bare array even.
    tools = _tools_place(request, fields.get("tools"), parts)
    holes = [_Hole(part.start, part.end, number) for number, part in enumerate(parts)]
    if tools is not None:
        holes.append(_Hole(*tools, None))
    holes.sort()
    return Cut(
        _skeleton(request, holes, len(parts)),
        tuple((request[part.start : part.end], part.role) for part in parts),
        None if tools is None else request[tools[0] : tools[1]],
        _frame(request, holes, len(parts)),
    )


def _frame(request: bytes, holes: Sequence[_Hole], num_messages: int) -> Frame | None:
    """The frame of the run of messages that ends the request in reading order."""
    index = 0
    while index < len(holes):
        last = _run_end(request, holes, index)
        if holes[last].message == num_messages - 1:
            head, tail = request[: holes[index].start], request[holes[last].end :]
            if not head.rstrip(b" \t\r\n").endswith(b"[") or not tail.lstrip(b" \t\r\n").startswith(b"]"):
                return None
            between = request[holes[index].end : holes[index + 1].start] if last > index else b","
            return Frame(head, tail, between, holes[index].message or 0)
        index = last + 1
    return None


def split_elements(text: bytes, between: bytes) -> list[bytes] | None:
    """The elements of an array by the text between them; None where that text is not all that is."""
    try:
        found = [bytes(one) for one in _ELEMENTS.decode(b"[" + text + b"]")]
    except msgspec.DecodeError:
        return None
    return found if between.join(found) == text else None


_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


def _tools_place(request: bytes, place: Place | None, parts: Sequence[Part]) -> Place | None:
    if place is None or request[place[0] : place[1]] == b"null":
        return None
    inside = any(part.start < place[1] and place[0] < part.end for part in parts)
    return None if inside else place


def _skeleton(request: bytes, holes: Sequence[_Hole], num_messages: int) -> bytes:
    out: list[bytes] = []
    position = 0
    index = 0
    while index < len(holes):
        last = _run_end(request, holes, index)
        first_hole, last_hole = holes[index], holes[last]
        out += (
            request[position : first_hole.start],
            _HOLE,
            _describe(request, holes, index, last, num_messages),
        )
        out.append(_HOLE)
        position = last_hole.end
        index = last + 1
    out.append(request[position:])
    return b"".join(out)


def _run_end(request: bytes, holes: Sequence[_Hole], index: int) -> int:
    """Index of the last hole of the run that begins here: following messages with one text between them."""
    last = index
    between: bytes | None = None
    while last + 1 < len(holes):
        here, after = holes[last], holes[last + 1]
        if here.message is None or after.message != here.message + 1:
            break
        text = request[here.end : after.start]
        if between is not None and text != between:
            break
        # Text that could hold another hole's mark never stands between two elements of an array.
        if text.strip(b" \t\r\n") != b",":
            break
        between = text
        last += 1
    return last


def _describe(request: bytes, holes: Sequence[_Hole], first: int, last: int, num_messages: int) -> bytes:
    number = holes[first].message
    if number is None:
        return _TOOLS
    between = request[holes[first].end : holes[first + 1].start] if last > first else b","
    count = last - first + 1
    is_rest = number + count == num_messages
    return b"%d:%b:%b" % (number, b"*" if is_rest else b"%d" % count, between)


def fill(skeleton: bytes, messages: Sequence[bytes], tools: bytes | None) -> bytes:
    """The request of a skeleton, its messages in reading order and its tools."""
    parts = skeleton.split(_HOLE)
    for index in range(1, len(parts), 2):
        hole = parts[index]
        if hole == _TOOLS:
            assert tools is not None, "the skeleton has tools"
            parts[index] = tools
        else:
            first, count, between = hole.split(b":", 2)
            start = int(first)
            end = len(messages) if count == b"*" else start + int(count)
            parts[index] = between.join(messages[start:end])
    return b"".join(parts)


def outline(skeleton: bytes, tools: bytes | None) -> bytes:
    """The request of a skeleton and its tools with `null` where messages stood, one for each run of them."""
    parts = skeleton.split(_HOLE)
    for index in range(1, len(parts), 2):
        if parts[index] == _TOOLS:
            assert tools is not None, "the skeleton has tools"
            parts[index] = tools
        else:
            parts[index] = b"null"
    return b"".join(parts)
