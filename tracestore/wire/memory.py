"""What each agent sent last -> the part of its next request that need not be read again.

A harness that posts whole contexts sends the same text with every call and a few messages more:

    {"messages":[A,B            ],"tools":[...]}     the request that was read
    {"messages":[A,B   ,C,D     ],"tools":[...]}     the next one
    `--- head ---'`news'`------- tail ---------'

`head ++ tail` is known to be good. When the next request is `head ++ news ++ tail`, it is good exactly if
`[""` ++ news ++ `]` is one array: then news are elements and commas, and leave the text where they found it,
inside the array behind an element. (A string stands for the last element, because a number could grow: `1`
and `.5`.) With another tail (a parameter changed), the head's keys stand for the head, as in
`{"model":0,"messages":[""` ++ news ++ tail. All of them are there, so a key that the tail repeats is found.

Other messages than before (a delta, an agent that begins in the words of another) are news from the array's
opening bracket on: the head ends there, and `[` stands for it.

This is about text alone, whoever sent it: a wrong or a missing memory costs time and changes no verdict.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import OrderedDict
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from tracestore.wire.check import Doubt, certain

MEMORY_BYTES: Final = 64 * 2**20
_CLOSE = 32
_OVERHEAD = 512
"""Bytes of an entry beside its text, about."""
_ARRAY = re.compile(rb'"(?:messages|input)"[ \t\r\n]*:[ \t\r\n]*\[')
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

MARK: Final = b'"' + secrets.token_hex(16).encode() + b'"'
"""A string in texts of our own. Nobody else can write it, so where it is read is where it was put."""
_OPEN: Final = b"["
_LAST: Final = b'[""'
"""Stands for an array up to its last element."""


class Known(NamedTuple):
    """A request that was read, cut inside its array of messages behind the last one."""

    head: bytes
    tail: bytes
    """Begins with the array's closing bracket."""
    keys: bytes
    """The head without its values and messages: `{"model":0,"messages":[`."""
    array: str
    """`messages` or `input`."""
    levels: int
    """Arrays and objects that were allowed inside each other, the request being the first."""
    after: bytes
    """What followed the request in its event."""
    opening: int
    """Where in the head the array begins, behind its bracket."""

    def opened(self) -> Known:
        """The same without messages."""
        return self._replace(head=self.head[: self.opening])

    def end(self, text: bytes, start: int) -> int:
        """Where the next request probably ends: after the same text, or before the same.

        Raises:
            Doubt: neither is there.
        """
        if self.after == b"}":
            return len(text) - 1
        # With the next key's quote: an array of messages goes on with a brace.
        close = self.tail[-_CLOSE:] + b',"'
        end = text.find(close, start) + len(close) - 2
        if end < start:
            end = text.find(self.after, start)
        if end < start:
            raise Doubt("end of the request")
        return end

    def next(self, rest: bytes) -> Known:
        """The request `head ++ rest`, which is found to be good by reading `rest` alone.

        Raises:
            ValueError: it is not certain that it is.
        """
        begun = _LAST if len(self.head) > self.opening else _OPEN
        if rest.endswith(self.tail):
            news = rest[: len(rest) - len(self.tail)]
            tail = self.tail
            array = certain(begun + news + b"]", levels=self.levels - 1)
        else:
            # White space behind a request is no part of it.
            if not rest.endswith(b"}"):
                raise Doubt("end of the request")
            text = self.keys + begun[len(_OPEN) :] + rest
            array = certain(text, levels=self.levels)[self.array]
            news = rest[: len(bytes(_members(text)[self.array])) - len(begun + b"]")]
            tail = rest[len(news) :]
        if not array:
            raise Doubt("no messages")
        return Known(self.head + news, tail, self.keys, self.array, self.levels, self.after, self.opening)


def known(request: bytes, *, levels: int, after: bytes) -> Known | None:
    """The cut of a request that is known to be good; None where it has no array of messages to cut.

    Args:
        levels: arrays and objects that were allowed inside each other when it was read.
        after: some bytes of its event behind it.
    """
    opening = _ARRAY.search(request)
    if opening is None:
        return None
    start = opening.end()
    try:
        members = _members(request[:start] + MARK + b"," + request[start:])
    except msgspec.DecodeError:
        # No object, or an array without elements.
        return None
    before: list[str] = []
    for name, member in members.items():
        text = bytes(member)
        if text.startswith(b"[" + MARK):
            end = start + len(text) - len(b"[") - len(MARK + b",") - len(b"]")
            keys = "{" + "".join(f"{json.dumps(key)}:0," for key in before) + f"{json.dumps(name)}:"
            return Known(
                request[:end], request[end:], keys.encode("ascii") + _OPEN, name, levels, after, start
            )
        before.append(name)
    return None


class SpanMemory:
    """What was known of requests by key, within a number of bytes; the one longest not used goes first."""

    def __init__(self, *, max_bytes: int = MEMORY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._entries: OrderedDict[bytes, Known] = OrderedDict()
        self._bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._bytes

    def get(self, key: bytes) -> Known | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, entry: Known) -> None:
        size = _size(entry)
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += size if old is None else size - _size(old)
            self._entries[key] = entry
            while self._bytes > self._max_bytes:
                _, gone = self._entries.popitem(last=False)
                self._bytes -= _size(gone)


def _size(entry: Known) -> int:
    return len(entry.head) + len(entry.tail) + _OVERHEAD
