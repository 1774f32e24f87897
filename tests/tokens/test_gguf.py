from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tracestore.tokens.gguf import BadGguf, metadata


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def written(path: Path, *pairs: bytes, version: int = 3) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + b"".join(pairs) + b"tensors")
    return path


def test_numbers_texts_and_lists_of_both_are_read(tmp_path: Path) -> None:
    pairs = (
        text("name") + struct.pack("<I", 8) + text("ü"),
        text("on") + struct.pack("<I?", 7, True),
        text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text(""),
        text("kinds") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3),
    )
    assert metadata(written(tmp_path / "f", *pairs)) == {
        "name": "ü",
        "on": True,
        "words": ["a", ""],
        "kinds": [1, -2, 3],
    }


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"GGML")
    with pytest.raises(BadGguf, match="does not begin"):
        metadata(tmp_path / "f")
    with pytest.raises(BadGguf, match="version=1"):
        metadata(written(tmp_path / "f", version=1))
    whole = written(tmp_path / "f", text("n") + struct.pack("<II", 4, 7)).read_bytes()
    (tmp_path / "f").write_bytes(whole[:-10])
    with pytest.raises(BadGguf, match="unpack requires"):
        metadata(tmp_path / "f")
