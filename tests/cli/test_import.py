from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tracestore.cli import import_
from tracestore.cli.import_ import batches, watch
from tracestore.cli.main import main
from tracestore.importers import notes
from tracestore.importers.items import Item
from tracestore.importers.notes import Notes
from tracestore.importers.sources import sources
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent

Capture = pytest.CaptureFixture[str]

QUESTION, ANSWER = make.user("q"), make.assistant("a")
EVENTS: list[AnyEvent] = [
    make.episode(),
    make.agent(),
    make.call("c0", [QUESTION], make.answer(ANSWER, ids=[4, 5]), prompt_ids=[1]),
    make.call("c1", [QUESTION, ANSWER, make.user("r")], "b", parent="c0"),
    make.compaction(),
]


def item(event: AnyEvent) -> Item:
    return Item(event, encode(event))


def written(path: Path, events: list[AnyEvent]) -> Path:
    path.write_bytes(b"\n".join(encode(event) for event in events) + b"\n")
    return path


def run(capsys: Capture, *argv: object) -> tuple[int, dict[str, Any]]:
    code = main(["import", "--json", *map(str, argv)])
    return code, json.loads(capsys.readouterr().out)


def test_the_last_line_counts_what_was_read_and_what_became_of_it(tmp_path: Path, capsys: Capture) -> None:
    path, db = written(tmp_path / "trace.jsonl", EVENTS), f"sqlite:///{tmp_path / 'store.db'}"
    code, facts = run(capsys, "--db", db, path)
    assert code == 0
    named = ("episodes", "agents", "calls", "tool_calls", "messages", "compactions", "sampled_tokens")
    # Messages: q, a, r, b.
    assert [facts[name] for name in named] == [1, 1, 2, 0, 4, 1, 2]
    assert (facts["stored"], facts["duplicates"], facts["refused"]) == (5, 0, 0)
    code, facts = run(capsys, "--db", db, path)
    assert (code, facts["stored"], facts["duplicates"]) == (0, 0, 5)


def test_what_is_refused_is_named_and_the_rest_is_stored(tmp_path: Path, capsys: Capture) -> None:
    db = f"sqlite:///{tmp_path / 'store.db'}"
    path = written(tmp_path / "trace.jsonl", [make.episode(task_id="one")])
    assert run(capsys, "--db", db, path)[0] == 0
    path.write_bytes(encode(make.episode(task_id="other")) + b"\nnonsense\n" + encode(make.agent()) + b"\n")
    code, facts = run(capsys, "--db", db, path)
    assert (code, facts["stored"], facts["refused"]) == (1, 1, 2)
    assert facts["problems"][0].startswith(f"{path}, line 2")
    assert facts["problems"][1].startswith("episode e")


def test_a_minus_reads_from_stdin(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(encode(make.episode()))))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, facts = run(capsys, "--db", f"sqlite:///{tmp_path / 'store.db'}", "-")
    assert (code, facts["stored"]) == (0, 1)


def test_an_empty_stdin_is_a_problem(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b""))))
    code, facts = run(capsys, "--db", f"sqlite:///{tmp_path / 'store.db'}", "-")
    assert (code, facts["problems"]) == (1, ["stdin: empty"])


def test_a_folder_without_traces_is_a_problem(tmp_path: Path, capsys: Capture) -> None:
    db, folder = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "wrong"
    folder.mkdir()
    code, facts = run(capsys, "--db", db, folder)
    assert (code, facts["problems"]) == (1, [f"{folder}: there is no file in it"])
    (folder / "README.md").write_text("# about")
    code, facts = run(capsys, "--db", db, folder)
    assert (code, facts["refused"], facts["stored"]) == (1, 1, 0)
    assert "none of its 1 files is in a known format" in facts["problems"][0]


def test_problems_without_end_are_counted_and_not_all_kept(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "MAX_REFUSED", 3)
    path = tmp_path / "trace.jsonl"
    path.write_bytes(encode(make.episode()) + b"\n" + b"nonsense\n" * 5)
    code, facts = run(capsys, "--db", f"sqlite:///{tmp_path / 'store.db'}", path)
    assert (code, facts["refused"], len(facts["problems"])) == (1, 5, 3)


def test_an_unknown_format_is_asked_for_wrongly(tmp_path: Path, capsys: Capture) -> None:
    path = written(tmp_path / "trace.jsonl", EVENTS)
    assert main(["import", "--format", "nemogym", str(path)]) == 2
    said = capsys.readouterr().err
    assert "did you mean nemo-gym?" in said
    assert "--list-formats" in said


def test_a_missing_file_and_a_missing_server_are_one_line_each(tmp_path: Path, capsys: Capture) -> None:
    assert main(["import", "--db", f"sqlite:///{tmp_path / 'store.db'}", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
    path = written(tmp_path / "trace.jsonl", EVENTS)
    assert main(["import", "--url", "http://127.0.0.1:9", str(path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "Connection refused" in said
    assert "tracestore serve" in said


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b'{"a": 1}', "no format"), (b"\x1f\x8b\x08", "damaged"), (b"", "empty"), (b"\n \n", "empty")],
)
def test_a_file_that_cannot_be_read_is_named_and_makes_no_database(
    content: bytes, problem: str, tmp_path: Path, capsys: Capture
) -> None:
    path, db = tmp_path / "what.json", tmp_path / "store.db"
    path.write_bytes(content)
    assert main(["import", "--db", f"sqlite:///{db}", str(path)]) == 1
    assert f"{path}: {problem}" in capsys.readouterr().err
    assert not db.exists()


def test_files_that_cannot_be_read_cost_the_others_nothing(tmp_path: Path, capsys: Capture) -> None:
    first = written(tmp_path / "first.jsonl", [make.episode("e1")])
    last = written(tmp_path / "last.jsonl", [make.episode("e2")])
    odd = tmp_path / "odd.json"
    odd.write_bytes(b'{"a": 1}')
    code, facts = run(capsys, "--db", f"sqlite:///{tmp_path / 'store.db'}", first, odd, last)
    assert (code, facts["stored"], facts["refused"]) == (1, 2, 1)
    assert facts["problems"][0].startswith(str(odd))


def test_a_folder_is_read_whole_and_what_no_format_knows_in_it_is_listed(
    tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    written(tmp_path / "deep" / "er" / "one.txt", [make.episode("e1")])
    written(tmp_path / "deep" / "two", [make.episode("e2")])
    (tmp_path / "deep" / "README.md").write_text("# about")
    code, facts = run(capsys, "--db", f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "deep")
    assert (code, facts["stored"], facts["refused"]) == (0, 2, 0)
    assert (facts["files"], facts["rows"]) == ({"events": 2}, {"events/episode": 2})
    left = facts["not_understood"]["file of no known format"]
    assert left["count"] == 1
    assert left["examples"] == [f"{tmp_path / 'deep' / 'README.md'}: # about"]


def test_the_formats_are_listed(capsys: Capture) -> None:
    assert main(["import", "--list-formats"]) == 0
    assert "nemo-gym" in capsys.readouterr().out


def test_a_report_for_people_has_no_line_that_fills_the_screen(tmp_path: Path, capsys: Capture) -> None:
    written(tmp_path / "one.jsonl", EVENTS)
    (tmp_path / "notes.txt").write_text("hello\n" * 1_000)
    assert main(["import", "--db", f"sqlite:///{tmp_path / 'store.db'}", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert "tracestore show" in said.err
    lines = said.out.splitlines()
    assert "stored now             5 events" in lines
    assert "    1  events/episode" in lines
    assert any(line.strip().startswith(f"{tmp_path / 'notes.txt'}: hello hello") for line in lines)
    assert max(map(len, lines)) < 200


def test_progress_counts_every_byte_of_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"x" * 100_000)
    amounts: list[float] = []
    (source,) = sources([str(path)], notes=Notes())
    watched = watch(source, amounts.append)
    assert len(watched.head()) < 100_000
    with watched.open() as stream:
        assert len(stream.read()) == 100_000
    assert sum(amounts) == 100_000


def test_a_batch_ends_before_it_passes_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [item(make.episode(f"e{i}")) for i in range(5)]
    monkeypatch.setattr(import_, "MAX_BATCH_EVENTS", 2)
    assert [len(batch) for batch in batches(items)] == [2, 2, 1]
    monkeypatch.setattr(import_, "MAX_BATCH_BYTES", len(items[0].text))
    assert [len(batch) for batch in batches(items)] == [1] * 5
    assert list(batches([])) == []
