"""A GGUF file -> its metadata: the key-value pairs that stand before the tensors.

Source of the layout: ggml's docs/gguf.md, version 3 (2 has the same). Read here because a tokenizer is all
that is wanted of it, and the `gguf` package takes seconds to look at every tensor first.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from tracestore.errors import TracestoreError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Value type -> its `struct` letter; little-endian."""
_STRING, _ARRAY = 8, 9


class BadGguf(TracestoreError):
    """The file is no GGUF file that can be read."""


def metadata(path: Path) -> dict[str, Any]:
    """The key-value pairs of a GGUF file; arrays are lists.

    Raises:
        BadGguf: another format or version, or cut short.
        OSError: it cannot be opened.
    """
    with path.open("rb") as file:
        if file.read(4) != _MAGIC:
            raise BadGguf(path=str(path), problem="it does not begin with GGUF")
        try:
            version, _tensors, pairs = _unpack(file, "IQQ")
            if version not in _VERSIONS:
                raise BadGguf(path=str(path), version=version, hint="versions 2 and 3 are read")
            return dict(_pair(file) for _ in range(pairs))
        except (struct.error, KeyError, UnicodeDecodeError) as error:
            raise BadGguf(path=str(path), problem=str(error)) from error


def _pair(file: BinaryIO) -> tuple[str, Any]:
    key = _string(file)
    (kind,) = _unpack(file, "I")
    return key, _value(file, kind)


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _unpack(file, _NUMBERS[kind])[0]
    inner, length = _unpack(file, "IQ")
    if inner in (_STRING, _ARRAY):
        return [_value(file, inner) for _ in range(length)]
    return list(_unpack(file, f"{length}{_NUMBERS[inner]}"))


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    return file.read(length).decode("utf-8")


def _unpack(file: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
