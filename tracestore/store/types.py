"""Column types that give back exactly what was put in, on SQLite and PostgreSQL."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import Text
from sqlalchemy.types import TypeDecorator

_MARK = "\U0010fffe"
_UNSTORABLE = re.compile(f"[\x00\ud800-\udfff{_MARK}]")
_MARKED = re.compile(f"{_MARK}([0-9a-f]{{4}}|{_MARK})")


class ExactText(TypeDecorator[str]):
    """Text of a client, with NUL and lone surrogates, which no database holds in a text column.

    Those characters are written as U+10FFFE (a code point that stands for no character) and four
    hex digits; everything else reads as it is.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value if value is None else escape(value)

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value if value is None else unescape(value)


def escape(text: str) -> str:
    """Text that a database can hold; `unescape` gives back the original."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNSTORABLE.sub(lambda hit: _MARK + (_MARK if hit[0] == _MARK else f"{ord(hit[0]):04x}"), text)


def unescape(text: str) -> str:
    if _MARK not in text:
        return text
    return _MARKED.sub(lambda hit: _MARK if hit[1] == _MARK else chr(int(hit[1], 16)), text)
