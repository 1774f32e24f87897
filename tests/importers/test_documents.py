from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracestore.importers import documents
from tracestore.importers.documents import records
from tracestore.importers.notes import Notes
from tracestore.importers.sources import Source


def source(data: bytes) -> Source:
    return Source("f.jsonl", lambda: io.BytesIO(data), size=len(data))


def read(data: bytes) -> tuple[list[tuple[int, Any]], Notes]:
    """[(line, value)] of a file, and what was noted."""
    notes = Notes()
    return [(one.line, one.value) for one in records(source(data), notes=notes)], notes


def test_every_line_is_a_record_and_blank_lines_are_none() -> None:
    assert read(b'{"a":1}\n\n  {"b":2}  \n')[0] == [(1, {"a": 1}), (3, {"b": 2})]


def test_a_record_after_many_blank_lines_has_its_line() -> None:
    blank = b"\n \r\n" * 700_000
    found, notes = read(b'{"a":1}\n' + blank + b'  {"b":2}\n' + blank + b"{")
    assert found == [(1, {"a": 1}), (1_400_002, {"b": 2})]
    assert [one.split(": ")[0].rsplit(", ", 1)[1] for one in notes.refused] == ["line 2800003"]


def test_one_value_over_many_lines_is_one_record() -> None:
    assert read(json.dumps({"a": [1, 2]}, indent=1).encode())[0] == [(1, {"a": [1, 2]})]


def test_an_empty_file_holds_nothing() -> None:
    found, notes = read(b"\n\n")
    assert (found, notes.refused) == ([], [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=3), min_size=1, max_size=4), st.data())
def test_a_record_is_read_whatever_stands_around_it(values: list[Any], data: st.DataObject) -> None:
    written = ""
    for value in values:
        written += data.draw(st.sampled_from(["", " ", "\n", "\r\n\t", *(["\ufeff"] if written else [])]))
        written += json.dumps(value, ensure_ascii=data.draw(st.booleans()))
        written += data.draw(st.sampled_from(["\n", "\r\n", " \r\n\r\n"]))
    encoding = data.draw(st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]))
    found, notes = read(written.encode(encoding))
    assert [value for _, value in found] == values
    assert notes.refused == []


@given(st.lists(st.dictionaries(st.text(), JSON, min_size=1, max_size=3), min_size=2, max_size=4), st.data())
def test_a_file_that_ends_early_keeps_the_records_before_its_end(
    values: list[Any], data: st.DataObject
) -> None:
    texts = [json.dumps(value).encode() + b"\n" for value in values]
    whole = b"".join(texts)
    end = data.draw(st.integers(len(texts[0]), len(whole)))
    found, notes = read(whole[:end])
    num_whole = sum(end >= len(b"".join(texts[: n + 1])) - 1 for n in range(len(texts)))
    assert [value for _, value in found] == values[:num_whole]
    is_cut = num_whole < len(values) and end > len(b"".join(texts[:num_whole]))
    assert len(notes.refused) == is_cut


def test_two_records_on_one_line_are_both_read_with_a_warning() -> None:
    found, notes = read(b'{"a":1}{"b":2}\n{"c":3} {"d":4}\n{"e":5}\n')
    assert [value for _, value in found] == [{"a": 1}, {"b": 2}, {"c": 3}, {"d": 4}, {"e": 5}]
    assert notes.warnings == {"several records on one line": 2}
    assert notes.refused == []


def test_a_record_with_something_after_it_is_read_and_the_rest_refused() -> None:
    found, notes = read(b'{"a":1} nonsense\n{"b":2}\n')
    assert [value for _, value in found] == [{"a": 1}, {"b": 2}]
    assert [problem.partition(":")[0] for problem in notes.refused] == ["f.jsonl, line 1"]


def test_a_document_that_was_cut_in_a_string_keeps_what_is_complete() -> None:
    found, notes = read(b'{"a": 1, "steps": [{"b": 2}, {"c": "with, a {comma\\')
    assert found == [(1, {"a": 1, "steps": [{"b": 2}]})]
    # {"a": 1, "steps": [{"b": 2}]}
    assert notes.refused == [
        "f.jsonl, line 1: ends in the middle; the 29 characters that are complete were read"
    ]


def test_an_indented_document_that_was_cut_is_one_record() -> None:
    text = json.dumps({"a": 1, "names": ["x", "y"], "b": {"c": 2}, "d": 3}, indent=2)
    found, notes = read(text[: text.index('"d"')].encode())
    assert found == [(1, {"a": 1, "names": ["x", "y"], "b": {"c": 2}})]
    assert len(notes.refused) == 1


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\0\0\0\0", "4 NUL bytes: the file was being written when its machine stopped"),
        (b'{"a":"\xff"}', "no UTF-8 at byte 6: invalid start byte"),
        (b"hello", "no JSON: Expecting value at character 0: 'hello'"),
        (b'{"a":}', "no JSON: Expecting value at character 5: '}'"),
        (b'{"a": 1, b}', "no JSON: Expecting property name enclosed in double quotes at character 9: 'b}'"),
        (b"[" * 199 + b"]" * 199, f"nested more than {documents.MAX_DEPTH} deep"),
        (b"[" * 200_000 + b"]" * 200_000, f"nested more than {documents.MAX_DEPTH} deep"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_its_place_and_the_others_are_read(
    line: bytes, reason: str
) -> None:
    found, notes = read(b'{"first":1}\n' + line + b'\n{"last":2}\n')
    assert found == [(1, {"first": 1}), (3, {"last": 2})]
    assert notes.refused == [f"f.jsonl, line 2: {reason}"]


def test_a_broken_first_line_does_not_swallow_the_lines_after_it() -> None:
    found, notes = read(b'{"a":\n{"b":2}\n')
    assert found == [(2, {"b": 2})]
    assert [problem.partition(":")[0] for problem in notes.refused] == ["f.jsonl, line 1"]


def test_a_line_longer_than_the_limit_is_refused_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_RECORD_BYTES", 50)
    found, notes = read(b'{"a":1}\n{"b":"' + b"x" * 100 + b'"}\n{"c":3}\n')
    assert found == [(1, {"a": 1}), (3, {"c": 3})]
    assert notes.refused == ["f.jsonl, line 2: longer than 50 bytes"]


def test_a_key_that_stands_twice_is_not_lost_in_silence() -> None:
    found, notes = read(b'{"a":1,"a":2}\n')
    assert found == [(1, {"a": 2})]
    assert notes.not_understood["key that stands twice in one object"].count == 1


def test_utf_16_that_is_cut_in_a_character_is_refused_and_its_lines_are_kept() -> None:
    found, notes = read('{"a":1}\n{"b":2}\n{"c'.encode("utf-16")[:-1])
    assert [value for _, value in found][:2] == [{"a": 1}, {"b": 2}]
    assert all(problem.startswith("f.jsonl, ") for problem in notes.refused)
    assert notes.refused


def test_nan_is_kept_as_text_with_a_warning() -> None:
    found, notes = read(b'{"logprob": NaN}\n')
    assert found == [(1, {"logprob": "NaN"})]
    assert notes.warnings == {"NaN, which is no JSON, kept as text": 1}


def test_a_windows_path_and_lone_surrogates_are_text_like_any_other(tmp_path: Path) -> None:
    found, _ = read(b'{"path": "C:\\\\Users\\\\a", "out": "\\ud83d \\u0000"}\n')
    assert found == [(1, {"path": "C:\\Users\\a", "out": "\ud83d \x00"})]
