"""Bytes <-> what stands in rows of contents and token runs, compressed one by one."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import zstandard

_LEVEL = 3
_SMALLEST = 64
"""Below this a zstd frame is larger than what it holds."""
_MAGIC = bytes.fromhex("28b52ffd")
"""In front of frames in rows from before revision 0005. None of ours begins so: zstd keeps the bit 8 free."""


class Compressor:
    """Compresses contents, with a trained dictionary if one is given. For one thread."""

    def __init__(self, dictionary: bytes | None = None) -> None:
        trained = None
        if dictionary is not None:
            trained = zstandard.ZstdCompressionDict(dictionary)
            trained.precompute_compress(level=_LEVEL)
        # The row says that it is zstd and which dictionary it needs.
        parameters = zstandard.ZstdCompressionParameters(
            format=zstandard.FORMAT_ZSTD1_MAGICLESS,
            compression_level=_LEVEL,
            write_content_size=True,
            write_checksum=False,
            write_dict_id=False,
        )
        self._zstd = zstandard.ZstdCompressor(compression_params=parameters, dict_data=trained)

    def compress_all(self, contents: Sequence[bytes]) -> list[tuple[str, bytes]]:
        """(codec, stored bytes) of each, whichever codec is smaller.

        In one call, for every call gives up the interpreter's lock and may wait for it much longer than a
        few hundred bytes take to compress.
        """
        worth: list[bytes | bytearray | memoryview] = [data for data in contents if len(data) >= _SMALLEST]
        frames = iter(self._zstd.multi_compress_to_buffer(worth) if worth else ())
        found = []
        for data in contents:
            packed = next(frames).tobytes() if len(data) >= _SMALLEST else data
            found.append(("zstd", packed) if len(packed) < len(data) else ("raw", bytes(data)))
        return found


class _PerThread(threading.local):
    """zstd contexts, which only one thread at a time may use."""

    def __init__(self) -> None:
        self.decompressors: dict[tuple[bytes | None, bool], zstandard.ZstdDecompressor] = {}


_local = _PerThread()
_KEPT_DICTIONARIES = 16
_WORTH_A_THREAD = 100
"""Messages that take longer to decompress than a thread to start."""


def decompress(data: bytes, *, codec: str, dictionary: bytes | None = None) -> bytes:
    """The inverse of `Compressor.compress_all`; `dictionary` is the trained one the row names, if any."""
    if codec == "raw":
        return data
    return _decompressor(dictionary, is_old=is_old(data)).decompress(data)


def decompress_all(frames: Iterable[bytes], *, dictionary: bytes | None) -> list[Any]:
    """What `decompress` gives of each of many that were compressed with one dictionary or none, as buffers.

    In one call, as `Compressor.compress_all`, and on two cores, for half of the time that a context takes to
    be read goes by here.
    """
    # A frame of ours with the magic number in front is one like any other.
    whole: list[Any] = [frame if is_old(frame) else _MAGIC + frame for frame in frames]
    decompressor = _decompressor(dictionary, is_old=True)
    threads = 2 if len(whole) >= _WORTH_A_THREAD else 1
    buffers: Any = decompressor.multi_decompress_to_buffer(whole, threads=threads)
    return list(buffers)


def _decompressor(dictionary: bytes | None, *, is_old: bool) -> zstandard.ZstdDecompressor:
    """The one of this thread."""
    kind = (dictionary, is_old)
    decompressor = _local.decompressors.get(kind)
    if decompressor is None:
        trained = None if dictionary is None else zstandard.ZstdCompressionDict(dictionary)
        format_ = zstandard.FORMAT_ZSTD1 if is_old else zstandard.FORMAT_ZSTD1_MAGICLESS
        decompressor = zstandard.ZstdDecompressor(dict_data=trained, format=format_)
        if len(_local.decompressors) >= _KEPT_DICTIONARIES:
            _local.decompressors.clear()
        _local.decompressors[kind] = decompressor
    return decompressor


def is_old(data: bytes) -> bool:
    """Whether it was compressed before revision 0005."""
    return data[:4] == _MAGIC
