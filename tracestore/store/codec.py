"""Bytes <-> what stands in a content row, compressed one by one."""

from __future__ import annotations

import threading

import zstandard

_LEVEL = 3
_SMALLEST = 64
"""Below this a zstd frame is larger than what it holds."""


class _PerThread(threading.local):
    """zstd contexts, which only one thread at a time may use."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
        self.decompressors: dict[bytes | None, zstandard.ZstdDecompressor] = {}


_local = _PerThread()


def compress(data: bytes) -> tuple[str, bytes]:
    """(codec, stored bytes), whichever codec is smaller."""
    if len(data) >= _SMALLEST:
        packed = _local.compressor.compress(data)
        if len(packed) < len(data):
            return "zstd", packed
    return "raw", bytes(data)


def decompress(data: bytes, *, codec: str, dictionary: bytes | None = None) -> bytes:
    """The inverse of `compress`; `dictionary` is the trained one the row names, if any."""
    if codec == "raw":
        return data
    decompressor = _local.decompressors.get(dictionary)
    if decompressor is None:
        trained = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
        decompressor = zstandard.ZstdDecompressor(dict_data=trained)
        _local.decompressors[dictionary] = decompressor
    return bytes(decompressor.decompress(data))
