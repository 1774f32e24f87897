from __future__ import annotations

import gzip
import io
import json

from tests.importers.reading import read_bytes
from tracestore.importers.documents import Names, content_id, documents, raw
from tracestore.wire.base import Raw

EVENT = b'{"v":1,"kind":"episode","id":"e"}'


def texts(data: bytes) -> list[tuple[int, bytes]]:
    return list(documents(io.BytesIO(data)))


def test_every_line_is_a_document_and_blank_lines_are_none() -> None:
    assert texts(b'{"a":1}\n\n  {"b":2}  \n') == [(1, b'{"a":1}'), (3, b'{"b":2}')]


def test_one_value_over_many_lines_is_one_document() -> None:
    data = json.dumps({"a": [1, 2]}, indent=1).encode()
    ((number, text),) = texts(data)
    assert number == 1
    assert json.loads(text) == {"a": [1, 2]}


def test_a_broken_first_line_does_not_swallow_the_lines_after_it() -> None:
    assert texts(b'{"a":\n{"b":2}\n') == [(1, b'{"a":'), (2, b'{"b":2}')]


def test_an_empty_file_holds_nothing() -> None:
    assert texts(b"\n\n") == []
    assert read_bytes(b"")[0] == []


def test_a_compressed_file_reads_like_the_file() -> None:
    assert read_bytes(gzip.compress(EVENT))[0] == read_bytes(EVENT)[0]


def test_an_id_follows_from_the_value_not_from_its_spelling() -> None:
    assert content_id("x", {"a": 1, "b": 2}) == content_id("x", {"b": 2, "a": 1})
    assert content_id("x", {"a": 1}) != content_id("x", {"a": 2})


def test_equal_documents_of_one_file_are_two_things() -> None:
    names = Names("x")
    first, second = names.of([1]), names.of([1])
    assert second == f"{first}-2"


def test_spans_stand_verbatim_in_what_is_written_around_them() -> None:
    assert raw({"a": Raw(b"1e400"), "b": [Raw(b"-0")]}) == b'{"a":1e400,"b":[-0]}'
