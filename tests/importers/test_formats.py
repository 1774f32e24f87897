from __future__ import annotations

import pytest

from tests.importers.reading import read_bytes, read_values
from tracestore.importers import formats
from tracestore.importers.formats import UnknownFormat

OWN = b'{"v":1, "kind":"episode", "id":"e", "meta":{"n": 1e400}}'


def test_our_own_events_keep_their_text() -> None:
    events, notes = read_bytes(OWN)
    assert events[0].id == "e"
    assert events[0].meta == b'{"n": 1e400}'
    assert notes.refused == []


def test_a_line_that_is_no_event_is_refused_with_its_number_and_the_others_pass() -> None:
    events, notes = read_bytes(OWN + b'\n{"v":1,"kind":"episode","id":"f","tsak_id":"t"}\n' + b"nonsense\n")
    assert [event.id for event in events] == ["e"]
    assert [problem.split(":")[0] for problem in notes.refused] == ["line 2", "line 3"]
    assert "task_id" in notes.refused[0]


def test_a_file_that_nothing_recognises_says_what_can_be_named() -> None:
    with pytest.raises(UnknownFormat, match="nemo-gym"):
        read_values({"some": "thing"})
    with pytest.raises(UnknownFormat, match="no JSON"):
        read_bytes(b"hello\n")


def test_the_name_of_every_format_finds_its_reader() -> None:
    assert set(formats.FORMATS) == {"events", "nemo-gym", "atropos"}
    assert read_values({"some": "thing"}, format="nemo-gym")[1].refused
    assert read_values({"some": "thing"}, format="atropos")[1].refused
    with pytest.raises(UnknownFormat, match="auto"):
        read_values({"some": "thing"}, format="nothing")
