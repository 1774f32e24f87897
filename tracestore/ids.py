"""Client-made ids: 1-128 bytes of UTF-8 without control characters, unique per project and kind."""

from __future__ import annotations

import os
import re
import time

MAX_ID_BYTES = 128
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def id_problem(value: str) -> str | None:
    """What is wrong with an id, in words, or None when it may be used."""
    if value.isascii() and value.isprintable() and 1 <= len(value) <= MAX_ID_BYTES:
        return None
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        return "an id must be valid UTF-8: it holds a lone surrogate"
    if not 1 <= size <= MAX_ID_BYTES:
        return f"an id has 1-{MAX_ID_BYTES} bytes of UTF-8, this one has {size}"
    if _CONTROL.search(value):
        return "an id has no control characters"
    return None


def new_id() -> str:
    """A UUIDv7: sorts by the millisecond it was made in, 74 random bits after it (RFC 9562, section 5.7)."""
    stamp = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (stamp & (1 << 48) - 1) << 80 | 0x7 << 76 | (random >> 68 & 0xFFF) << 64
    value |= 0b10 << 62 | random & (1 << 62) - 1
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
