from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest

from tests.importers.reading import read_bytes, read_paths, read_values
from tracestore.importers import formats
from tracestore.importers.format import Format
from tracestore.importers.formats import UnknownFormat, head_of
from tracestore.importers.sources import Source

OWN = b'{"v":1, "kind":"episode", "id":"e", "meta":{"n": 1e400}}'


def test_our_own_events_keep_their_text() -> None:
    events, notes = read_bytes(OWN)
    assert events[0].id == "e"
    assert events[0].meta == b'{"n": 1e400}'
    assert notes.refused == []


def test_a_compressed_file_reads_like_the_file() -> None:
    assert read_bytes(gzip.compress(OWN))[0] == read_bytes(OWN)[0]


def test_a_line_that_is_no_event_is_refused_with_its_number_and_the_others_pass() -> None:
    events, notes = read_bytes(OWN + b'\n{"v":1,"kind":"episode","id":"f","tsak_id":"t"}\n' + b"nonsense\n")
    assert [event.id for event in events] == ["e"]
    assert [problem.partition(":")[0] for problem in notes.refused] == ["file-0, line 2", "file-0, line 3"]
    assert "task_id" in notes.refused[0]


@pytest.mark.parametrize("data", [b"hello\n", b'{"some": "thing"}\n', b"", b"\0\0", b"PK\x03\x04", b"[]"])
def test_a_file_that_nothing_recognises_is_shown_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    imported = read_paths(tmp_path)
    assert imported.events == []
    said = [*imported.notes.refused, *(str(one.examples) for one in imported.notes.not_understood.values())]
    assert any("file" in text for text in said)


def test_the_name_of_every_format_finds_its_reader_and_it_refuses_or_notes_what_is_none_of_its() -> None:
    with pytest.raises(UnknownFormat, match="list-formats"):
        formats.named("nothing")
    for name, one in formats.formats().items():
        assert formats.named(name) is one
        assert isinstance(one, Format)
        _, notes = read_values({"some": "thing"}, format=name)
        assert notes.refused or notes.not_understood, name


_TELLING = (
    *(
        "type",
        "kind",
        "event_type",
        "role",
        "id",
        "run_id",
        "trace_id",
        "rollout_id",
        "session_id",
        "payload",
    ),
    *(
        "input",
        "output",
        "messages",
        "message",
        "message_log",
        "trajectory",
        "trajectories",
        "history",
        "events",
    ),
    *(
        "steps",
        "nodes",
        "transitions",
        "traces",
        "tokens",
        "request",
        "response",
        "source",
        "data",
        "metrics",
    ),
)
"""Names that tell formats apart."""


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [[]], [{}], [{"role": 3}], {"v": {}}, {"steps": 5}])
def test_no_recogniser_is_upset_by_values_of_other_shapes(value: object) -> None:
    read_values(value)
    read_values(dict.fromkeys(_TELLING, value))
    read_values([dict.fromkeys(_TELLING, value)])


def test_the_head_of_a_file_is_its_first_records_in_any_encoding() -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-16-be"):
        data = ("\ufeff" if encoding == "utf-16-be" else "") + '{"a": 1}\n{"b": 2}\n'
        source = Source("f", lambda data=data, encoding=encoding: io.BytesIO(data.encode(encoding)))  # type: ignore[misc]
        assert head_of(source).records == ({"a": 1}, {"b": 2})
