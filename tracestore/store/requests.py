"""Requests -> their pieces, cut and hashed only where they differ from what the same agent asked last.

A request that sends its whole context mostly repeats the one before it to the byte, up to its newest
messages. Bytes that are equal to bytes that were cut are cut alike, so what it costs to take in a call
depends on what is new in it and not on how long the conversation is.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import NamedTuple

from tracestore.store.digest import sha256_of
from tracestore.store.skeleton import Frame, cut, split_elements
from tracestore.wire.call import Dialect

_REMEMBERED_BYTES = 64 * 2**20
_END_BYTES = 64

Label = tuple[bytes, str | None, bool]
"""(sha256, place_role, is_message)."""


class Piece(NamedTuple):
    """Bytes that will be one content."""

    data: bytes
    label: Label
    """What tells it from other contents."""

    @property
    def digest(self) -> bytes:
        return self.label[0]

    @property
    def place_role(self) -> str | None:
        """What the place of a message says of its role; the role itself for what is no message."""
        return self.label[1]

    @property
    def is_message(self) -> bool:
        return self.label[2]


def message_piece(data: bytes, role: str | None) -> Piece:
    return Piece(data, (sha256_of(data), role, True))


def other_piece(data: bytes, role: str) -> Piece:
    return Piece(data, (sha256_of(data), role, False))


class Request(NamedTuple):
    """A request in pieces."""

    raw: bytes
    dialect: Dialect
    skeleton: Piece
    messages: tuple[Piece, ...]
    tools: Piece | None


class _Asked(NamedTuple):
    """A request that the next one of its agent may repeat."""

    request: Request
    frame: Frame
    begin: bytes
    """The request up to the end of its last message."""

    def followed_by(self, raw: bytes) -> _Asked | None:
        """The next request; None where it does not stand in the same frame."""
        frame, messages = self.frame, self.request.messages
        # Equal text before and after an array's elements is read alike, so they are all that differs.
        end = len(raw) - len(frame.tail)
        if not raw.endswith(frame.tail):
            return None
        begin = raw[:end]
        if begin != self.begin:
            between, start = frame.between, len(self.begin)
            if begin.startswith(self.begin) and begin.startswith(between, start):
                start += len(between)
            elif begin.startswith(frame.head):
                start, messages = len(frame.head), messages[: frame.num_before]
            else:
                return None
            new = split_elements(begin[start:], between)
            if not new:
                return None
            messages += tuple([message_piece(one, None) for one in new])
            if len(messages) == frame.num_before + 1 and between != b",":
                return None  # the skeleton of a single message tells no white space
        known = self.request
        return _Asked(Request(raw, known.dialect, known.skeleton, messages, known.tools), frame, begin)


class RequestMemory:
    """What every agent asked last, up to a number of bytes. Thread-safe."""

    def __init__(self) -> None:
        self._asked: OrderedDict[str | bytes, _Asked] = OrderedDict()
        """By agent; and what had to be cut by how it begins and ends, for agents that ask for the first time
        in the words of others."""
        self._bytes = 0
        self._lock = Lock()

    def take_apart(self, raw: bytes, dialect: Dialect, *, agent_id: str) -> Request:
        """The pieces of a request of an agent. What is remembered changes nothing but what this costs."""
        asked = self._following(agent_id, raw, dialect)
        if asked is None:
            ends = raw[:_END_BYTES] + raw[-_END_BYTES:]
            asked = self._following(ends, raw, dialect)
            if asked is not None:
                self._used(ends)
            else:
                request, frame = _taken_apart(raw, dialect)
                if frame is None:
                    return request
                asked = _Asked(request, frame, raw[: len(raw) - len(frame.tail)])
                self._remember(ends, asked)
        self._remember(agent_id, asked)
        return asked.request

    def _following(self, key: str | bytes, raw: bytes, dialect: Dialect) -> _Asked | None:
        before = self._asked.get(key)
        return before.followed_by(raw) if before is not None and before.request.dialect == dialect else None

    def _used(self, key: str | bytes) -> None:
        with self._lock:
            if key in self._asked:
                self._asked.move_to_end(key)

    def _remember(self, key: str | bytes, asked: _Asked) -> None:
        with self._lock:
            before = self._asked.pop(key, None)
            self._asked[key] = asked
            self._bytes += _size(asked) - (_size(before) if before is not None else 0)
            while self._bytes > _REMEMBERED_BYTES:
                _, oldest = self._asked.popitem(last=False)
                self._bytes -= _size(oldest)


def _size(asked: _Asked) -> int:
    # The request as it came, its begin, and the messages themselves.
    return 3 * len(asked.request.raw)


def take_apart(raw: bytes, dialect: Dialect) -> Request:
    """The pieces of a request."""
    return _taken_apart(raw, dialect)[0]


def _taken_apart(raw: bytes, dialect: Dialect) -> tuple[Request, Frame | None]:
    parts = cut(raw, dialect)
    request = Request(
        raw=raw,
        dialect=dialect,
        skeleton=other_piece(parts.skeleton, "skeleton"),
        messages=tuple(message_piece(data, role) for data, role in parts.messages),
        tools=None if parts.tools is None else other_piece(parts.tools, "tools"),
    )
    return request, parts.frame
