"""Bytes come back from their frames, one by one and together."""

from __future__ import annotations

import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tracestore.store.codec import Compressor, decompress, decompress_all

_DICTIONARY = b"what messages of a project have in common " * 40


@given(contents=st.lists(st.binary(min_size=8, max_size=300), min_size=1), is_trained=st.booleans())
def test_what_is_decompressed_together_is_what_was_compressed(
    contents: list[bytes], *, is_trained: bool
) -> None:
    dictionary = _DICTIONARY if is_trained else None
    contents = [content * 9 for content in contents]  # long enough, and alike enough, for a frame
    frames = [data for _, data in Compressor(dictionary).compress_all(contents)]
    assert [decompress(data, codec="zstd", dictionary=dictionary) for data in frames] == contents
    # Those of before revision 0005 begin with the magic number, and may stand among later ones.
    old = [] if is_trained else [zstandard.compress(content) for content in contents]
    together = decompress_all((frames + old) * 100, dictionary=dictionary)  # worth a second thread
    assert [bytes(one) for one in together] == (contents + contents[: len(old)]) * 100
