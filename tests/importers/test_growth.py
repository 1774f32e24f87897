"""Files that grew, were cut in two, came in another order or twice -> the events of the whole.

A session's file is read while it is written, its folder while sub-agents are added, its copy from a backup.
For every real file the union of what was read ever, newest revisions first, is what the whole gives, and
nothing that was told early stays behind when the whole no longer says it.

What may be cut in two files at a line end, both parts in one import, is told by the records:

    a record is a whole rollout, group or test case     nemo-gym, atropos
    a record names its session                          claude-code (where it does), fast-rlm, atof
    only the first record names it                      codex, pi: the second part would be another session
    the order in the file is all there is               chunks of a stream, canned answers, openhands' lines
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.databases import empty_store
from tests.fixtures import fixture, fixtures_root
from tests.importers.reading import Imported, Key, newest, read_paths, same_events
from tests.importers.test_fixtures import ROWS
from tracestore.store import Store
from tracestore.wire.canonical import canonical
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent, phase_of

_OWN_BYTES = 30_000
"""Files above this are read over and over only in the soak: all files together take minutes."""
_NUM_CUTS = 3

_STREAMS = ("stream_chunks_txt",)
"""One answer in chunks: what is not finished has no name yet that the rest would keep."""
_SPLIT_FORMATS = ("nemo_gym_rollout_jsonl", "atropos_group_jsonl", "atof_events_jsonl", "fast_rlm_jsonl")

_TAIL = "claude_code/kylesnowschwartz__tail-claude"
FOLDERS = {
    "sub-agents under a session": (f"{_TAIL}/team-parent.jsonl", f"{_TAIL}/team-parent/**/*.jsonl"),
    "sub-agents of many kinds": (f"{_TAIL}/test-session.jsonl", f"{_TAIL}/test-session/**/*.jsonl"),
    "sessions of a team": (f"{_TAIL}/team-project/*.jsonl",),
    "sessions that clear and compact": ("claude_code/meridianlabs-ai__inspect_scout/*.jsonl",),
    "sessions with lineage": ("claude_code/sinity__polylogue/*.jsonl",),
    "one-row files of one session": ("claude_code/claude-code-log-1.7.0-sdist/claude-code/*/*.jsonl",),
    "codex threads": ("codex/sinity__polylogue/*.jsonl", "codex/wesm__agentsview/*.jsonl"),
    "openhands conversations": ("openhands/**/*.json*",),
    "trajectories that refer to each other": ("atif/**/*.json",),
    "logs of inspect": ("inspect/**/*.eval",),
    "spans": ("otel/**/*.json",),
}


def _lines(row: dict[str, Any]) -> list[bytes] | None:
    """The lines of a file of JSON lines; None where it is none, or a single one."""
    path = fixtures_root() / row["path"]
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = [line for line in data.splitlines(keepends=True) if line.strip()]
    if len(lines) < 2 or not lines[0].startswith(b"{"):
        return None
    try:
        values = [json.loads(line) for line in (lines[0], lines[-1])]
    except ValueError:
        return None
    return lines if all(isinstance(value, dict) for value in values) else None


def _cases(*formats: str) -> list[Any]:
    rows = [row for row in ROWS if (not formats or row["format"] in formats) and _lines(row) is not None]
    return [
        pytest.param(row, id=row["path"], marks=pytest.mark.soak if row["bytes"] > _OWN_BYTES else ())
        for row in rows
    ] or [pytest.param(None, marks=pytest.mark.skip(reason="no fixtures"))]


def _keyed(events: list[AnyEvent]) -> dict[Key, AnyEvent]:
    return {(event.kind, event.id, phase_of(event)): event for event in events}


def assert_older(early: Imported, whole: Imported) -> None:
    """Every event that was told early is told by the whole: the same, or in a higher revision."""
    final = _keyed(whole.events)
    for key, event in _keyed(early.events).items():
        assert key in final, f"{key} was told early, and the whole does not say it"
        is_older = (event.revision or 0) < (final[key].revision or 0)
        is_same = canonical(encode(event)) == canonical(encode(final[key]))
        assert is_same or is_older, f"{key} says something else in revision {event.revision}"


def assert_adds_up(seen: list[Imported], whole: Imported) -> None:
    """All that was ever read of a file that grew is, newest revisions first, what the whole gives."""
    for early in seen:
        assert_older(early, whole)
    events = [event for one in [*seen, whole] for event in one.events]
    assert same_events(Imported(list(newest(events).values()), whole.notes), whole)


def _random(row: dict[str, Any]) -> random.Random:
    return random.Random(zlib.crc32(row["path"].encode()))


@pytest.mark.parametrize("row", _cases())
def test_a_file_that_grew_gives_what_the_whole_gives(row: dict[str, Any], tmp_path: Path) -> None:
    if row["format"] in _STREAMS:
        pytest.skip("an answer in chunks is read when it is finished")
    lines = _lines(row)
    assert lines is not None
    # Under the same name, for a session without an id is named after its file.
    file = tmp_path / row["path"].removesuffix(".gz")
    file.parent.mkdir(parents=True)
    cuts = _random(row).sample(range(1, len(lines)), min(_NUM_CUTS, len(lines) - 1))
    seen = []
    for length in cuts:
        file.write_bytes(b"".join(lines[:length]))
        seen.append(read_paths(file))
    file.write_bytes(b"".join(lines))
    assert_adds_up(seen, read_paths(file))


def _may_be_split(row: dict[str, Any], lines: list[bytes]) -> bool:
    if row["format"] != "claude_code_jsonl":
        return row["format"] in _SPLIT_FORMATS
    values = [json.loads(line) for line in lines]
    return all(isinstance(value.get("sessionId"), str) and value.get("timestamp") for value in values)


@pytest.mark.parametrize("row", _cases("claude_code_jsonl", *_SPLIT_FORMATS))
def test_a_file_in_two_parts_gives_what_the_whole_gives(row: dict[str, Any], tmp_path: Path) -> None:
    lines = _lines(row)
    assert lines is not None
    if not _may_be_split(row, lines):
        pytest.skip("its records do not name their session")
    place = _random(row).randrange(1, len(lines))
    one, two, all_ = (tmp_path / f"{name}.jsonl" for name in ("one", "two", "all"))
    one.write_bytes(b"".join(lines[:place]))
    two.write_bytes(b"".join(lines[place:]))
    all_.write_bytes(b"".join(lines))
    whole = read_paths(all_)
    assert same_events(read_paths(one, two), whole)
    assert same_events(read_paths(two, one), whole)


def _folder(name: str) -> list[Path]:
    files = {path for pattern in FOLDERS[name] for path in fixtures_root().glob(pattern) if path.is_file()}
    if not files:
        pytest.skip("no fixtures: TRACESTORE_FIXTURES names the folder they are in")
    return sorted(files)


@pytest.mark.parametrize("name", FOLDERS)
def test_the_files_of_a_folder_may_come_in_any_order_and_twice(name: str, tmp_path: Path) -> None:
    files = _folder(name)
    whole = read_paths(*files)
    shuffled = random.Random(len(files)).sample(files, len(files))
    assert same_events(read_paths(*shuffled), whole)
    assert same_events(read_paths(*files[::-1]), whole)
    twins = []
    for file in files:
        # Under the same folders: their names tell whose sub-agent a session is.
        twin = tmp_path / file.relative_to(fixtures_root())
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_bytes(file.read_bytes())
        twins.append(twin)
    assert same_events(read_paths(*twins, *files), whole)


_TOLD_TOGETHER = (
    # These sub-agents' folders are not named after their session, as real ones are.
    "sub-agents under a session",
    "sub-agents of many kinds",
    # A side row that names no agent is of the agent of its parent, which lies in another of these files.
    "one-row files of one session",
    # That a summarizer's trajectory is of another's episode stands in the other file alone.
    "trajectories that refer to each other",
)


@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in _TOLD_TOGETHER])
def test_a_folder_that_gained_files_and_lines_gives_what_the_whole_gives(name: str, tmp_path: Path) -> None:
    originals = _folder(name)
    rng = random.Random(len(originals))
    files = [tmp_path / file.relative_to(fixtures_root()) for file in originals]
    for file, original in zip(files, originals, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(original.read_bytes())
    whole = read_paths(*files)
    seen = [read_paths(*rng.sample(files, max(1, len(files) // 2))) for _ in range(3)]
    seen += [read_paths(file) for file in rng.sample(files, min(3, len(files)))]
    if all(file.suffix == ".jsonl" for file in files):
        for file in files:
            lines = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join(lines[: rng.randrange(len(lines) + 1)]))
        seen.append(read_paths(*files))
    assert_adds_up(seen, whole)


# --- In a store --------------------------------------------------------------------------------------------

_GROWN = (
    "claude_code/meridianlabs-ai__inspect_scout/compaction_session.jsonl",
    "codex/madshn__localpush/2026-02-23/raw/sessions/"
    "rollout-2026-02-23T20-34-25-019c8bfe-ec25-79e0-97d7-bda6a9c575ff.jsonl",
    "rlm/avbiswas__fast-rlm/longbench_trec_idx100_2026-02-15T22-06-14-116Z.jsonl",
)


def _ingest(store: Store, imported: Imported) -> Counter[str]:
    items = [(event, encode(event, arrays="base64")) for event in imported.events]
    return Counter(outcome.status for outcome in store.ingest("p", items))


def _stored(store: Store, episode_id: str) -> list[bytes]:
    return sorted(canonical(encode(event)) for event in store.load("p", episode_id))


@pytest.mark.parametrize("name", _GROWN)
def test_a_file_imported_while_it_grew_is_stored_as_the_whole_and_again_adds_nothing(
    name: str, tmp_path: Path
) -> None:
    lines = fixture(name).read_bytes().splitlines(keepends=True)
    file = tmp_path / Path(name).name
    with (
        Store.open(empty_store(tmp_path / "grown.db")) as grown,
        Store.open(empty_store(tmp_path / "whole.db")) as at_once,
    ):
        for share in (0.3, 0.6, 0.9):
            file.write_bytes(b"".join(lines[: int(len(lines) * share)]))
            assert _ingest(grown, read_paths(file)).keys() <= {"stored", "duplicate"}
        file.write_bytes(b"".join(lines))
        whole = read_paths(file)
        _ingest(grown, whole)
        _ingest(at_once, whole)
        assert _ingest(grown, whole) == {"duplicate": len(whole.events)}
        for episode_id in whole.graphs:
            assert _stored(grown, episode_id) == _stored(at_once, episode_id)


def test_nul_and_lone_surrogates_of_a_tool_come_back_from_the_store(tmp_path: Path) -> None:
    said = r"cut \ud83d here \u0000 and C:\\temp"
    use = '[{"type": "tool_use", "id": "k1", "name": "Bash", "input": {"command": "cat x"}}]'
    mark = '"sessionId": "s", "timestamp": "2026-01-01T00:00:00Z"'
    result = f'[{{"type": "tool_result", "tool_use_id": "k1", "content": "{said}"}}]'
    told = [
        f'{{"type": "user", "uuid": "u1", {mark}, "message": {{"role": "user", "content": "q"}}}}',
        f'{{"type": "assistant", "uuid": "a1", "parentUuid": "u1", {mark}, '
        f'"message": {{"id": "m1", "role": "assistant", "content": {use}}}}}',
        f'{{"type": "user", "uuid": "r1", "parentUuid": "a1", {mark}, '
        f'"message": {{"role": "user", "content": {result}}}}}',
        f'{{"type": "assistant", "uuid": "a2", "parentUuid": "r1", {mark}, '
        f'"message": {{"id": "m2", "role": "assistant", "content": "ok"}}}}',
    ]
    file = tmp_path / "s.jsonl"
    file.write_text("\n".join(told) + "\n")
    imported = read_paths(file)
    assert imported.notes.refused == []
    with Store.open(empty_store(tmp_path / "store.db")) as store:
        assert _ingest(store, imported) == {"stored": len(imported.events)}
        (tool_call,) = [event for event in store.load("p", "s") if event.kind == "tool_call"]
        assert json.loads(tool_call.result or b"") == "cut \ud83d here \0 and C:\\temp"
        (read,) = json.loads(store.request("p", "s/m2") or b"")["messages"]
        assert read == json.loads(told[2])["message"]
        assert _ingest(store, imported) == {"duplicate": len(imported.events)}
