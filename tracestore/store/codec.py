"""Bytes <-> what stands in a content row, compressed one by one."""

from __future__ import annotations

import threading

import zstandard

_LEVEL = 3
_SMALLEST = 64
"""Below this a zstd frame is larger than what it holds."""


class Compressor:
    """Compresses contents, with a trained dictionary if one is given. For one thread."""

    def __init__(self, dictionary: bytes | None = None) -> None:
        trained = None
        if dictionary is not None:
            trained = zstandard.ZstdCompressionDict(dictionary)
            trained.precompute_compress(level=_LEVEL)
        # The row says which dictionary it needs, and its size.
        self._zstd = zstandard.ZstdCompressor(
            level=_LEVEL, dict_data=trained, write_checksum=False, write_dict_id=False
        )

    def compress(self, data: bytes) -> tuple[str, bytes]:
        """(codec, stored bytes), whichever codec is smaller."""
        if len(data) >= _SMALLEST:
            packed = self._zstd.compress(data)
            if len(packed) < len(data):
                return "zstd", packed
        return "raw", bytes(data)


class _PerThread(threading.local):
    """zstd contexts, which only one thread at a time may use."""

    def __init__(self) -> None:
        self.decompressors: dict[bytes | None, zstandard.ZstdDecompressor] = {}


_local = _PerThread()
_KEPT_DICTIONARIES = 16


def decompress(data: bytes, *, codec: str, dictionary: bytes | None = None) -> bytes:
    """The inverse of `Compressor.compress`; `dictionary` is the trained one the row names, if any."""
    if codec == "raw":
        return data
    decompressor = _local.decompressors.get(dictionary)
    if decompressor is None:
        trained = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
        decompressor = zstandard.ZstdDecompressor(dict_data=trained)
        if len(_local.decompressors) >= _KEPT_DICTIONARIES:
            _local.decompressors.clear()
        _local.decompressors[dictionary] = decompressor
    return bytes(decompressor.decompress(data))
