"""The log of an export that goes on: a chain of entries, each whole or not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracestore.shards.files import Folder
from tracestore.shards.log import (
    EMPTY,
    Entry,
    GroupName,
    Header,
    Log,
    LogCorrupt,
    LoggedGroup,
    Rewritten,
    Tombstone,
)
from tracestore.shards.manifest import NotAnExport, OtherSchema, ShardEntry
from tracestore.shards.schema import schema_hash

HEADER = Header(
    schema_hash=schema_hash(), log_id="1", project="p", spec={}, spec_hash="s", libraries={"numpy": "1"}
)


def group(name: str, *, revision: int = 0, file: str | None = "a.arrow", first_row: int = 0) -> LoggedGroup:
    return LoggedGroup(
        name=GroupName("group", name),
        episode_ids=(f"{name}-e",),
        ended=False,
        revision=revision,
        base=1,
        file=file,
        first_row=first_row,
        rows=0 if file is None else 1,
        samples=0 if file is None else 2,
        content_hash="c",
        causes={} if file is None else {"root": 2},
        oldest_version=None,
        newest_version=None,
        conservation=EMPTY,
    )


def shard(file: str, rows: int) -> ShardEntry:
    counts = {"rows": rows, "samples": 2 * rows, "tokens": 3, "trained_tokens": 1, "size": 9}
    return ShardEntry(file=file, sha256="0", content_hash="1", **counts)


def entry(log: Log, **fields: Any) -> Entry:
    nothing = {"shards": (), "groups": (), "tombstones": (), "late": (), "waiting": (), "deleted": ()}
    made = {"number": log.number + 1, "previous": log.hash, "snapshot": log.snapshot + 1, "redacted_at": 0}
    return Entry(**nothing | made | {"num_groups": 2, "adds": EMPTY, "conservation": EMPTY} | fields)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Two groups in a shard, one of which is written again; a third without a row."""
    made = Log.start(tmp_path, HEADER)
    written = (group("g"), group("h", first_row=1), group("none", file=None))
    made.append(entry(made, shards=(shard("a.arrow", 2),), groups=written))
    stone = Tombstone(
        name=GroupName("group", "h"), revision=0, why="revised", file="a.arrow", first_row=1, rows=1
    )
    again = group("h", revision=1, file="b.arrow")
    made.append(entry(made, shards=(shard("b.arrow", 1),), groups=(again,), tombstones=(stone,)))
    return made


def test_a_log_that_is_read_back_is_the_one_written(log: Log) -> None:
    assert Log.open(log.folder) == log
    assert [one.number for one in Log.read(Folder(log.folder))[1]] == [1, 2]


def test_the_latest_revision_of_a_group_counts(log: Log) -> None:
    assert log.groups[GroupName("group", "h")].file == "b.arrow"
    assert [log.is_live("a.arrow", place) for place in (0, 1)] == [True, False]
    assert log.is_live("b.arrow", 0)
    manifest = log.manifest()
    assert (manifest.rows, manifest.samples, manifest.causes) == (2, 4, {"root": 4})
    assert [one.file for one in manifest.shards] == ["a.arrow", "b.arrow"]
    assert (manifest.snapshot, manifest.groups) == (2, 2)


def test_a_shard_of_which_no_row_counts_is_not_listed(log: Log) -> None:
    stone = Tombstone(
        name=GroupName("group", "g"), revision=0, why="deleted", file="a.arrow", first_row=0, rows=1
    )
    log.append(entry(log, tombstones=(stone,)))
    assert [one.file for one in log.manifest().shards] == ["b.arrow"]
    assert "g-e" not in log.group_of


def test_a_reader_goes_on_from_where_it_is(log: Log) -> None:
    reader = Log.open(log.folder)
    assert reader.advance() == []
    log.append(entry(log))
    assert [one.number for one in reader.advance()] == [3]
    assert reader == log


def test_rows_that_count_lie_in_the_shard_that_took_the_place_of_theirs(log: Log) -> None:
    """Of "a" the row of g counts, and that of h counts no more; "b" has the other row of h."""
    stone = Tombstone(
        name=GroupName("group", "h"), revision=1, why="deleted", file="b.arrow", first_row=0, rows=1
    )
    asked = {"deleted": [], "is_all": False}
    assert log.to_rewrite([], **asked) == {}
    assert log.to_rewrite([stone], **asked) == {"a.arrow": {1}, "b.arrow": {0}}
    assert log.to_rewrite([], deleted=["h-e"], is_all=False) == log.to_rewrite([], deleted=[], is_all=True)
    gone = Rewritten(file="a.arrow", shard=shard("c.arrow", 1)), Rewritten(file="b.arrow", shard=None)
    log.append(entry(log, tombstones=(stone,), rewritten=gone))
    assert Log.open(log.folder) == log
    assert list(log.shards) == ["c.arrow"]
    assert (log.current("a.arrow"), log.current("b.arrow")) == (shard("c.arrow", 1), None)
    assert log.groups[GroupName("group", "g")] == group("g", file="c.arrow")
    assert log.dead == {}
    again = Rewritten(file="c.arrow", shard=shard("d.arrow", 1))
    log.append(entry(log, rewritten=(again,)))
    assert log.current("a.arrow") == shard("d.arrow", 1)


@pytest.mark.parametrize("found", [None, shard("c.arrow", 2)])
def test_a_shard_that_took_the_place_of_one_with_other_rows_is_found(
    log: Log, found: ShardEntry | None
) -> None:
    made = entry(log, rewritten=(Rewritten(file="a.arrow", shard=found),))
    with pytest.raises(LogCorrupt, match="had 1 rows that count"):
        log.copy().append(made)
    with pytest.raises(LogCorrupt, match="had 1 rows that count"):
        Log.open(log.folder)


def test_a_copy_does_not_go_on(log: Log) -> None:
    copy = log.copy()
    log.append(entry(log, groups=(group("new", file=None),)))
    assert (copy.number, copy) == (2, copy.copy())
    assert GroupName("group", "new") not in copy.groups


def test_nothing_of_an_entry_is_seen_before_it_is_whole(log: Log) -> None:
    (log.folder / "log" / ".00000003.json.partial").write_text('{"hash": ')
    assert Log.open(log.folder) == log


@pytest.mark.parametrize(
    ("number", "old", "new"),
    [(0, '"p"', '"q"'), (1, '"rows": 2', '"rows": 3'), (2, "{", "["), (2, '"number": 2', '"number": 3')],
)
def test_a_changed_entry_is_found(log: Log, number: int, old: str, new: str) -> None:
    path = log.folder / "log" / f"{number:08d}.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(LogCorrupt):
        Log.open(log.folder)


def test_an_entry_of_another_log_is_found(log: Log, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Log.start(tmp_path / "other", HEADER.model_copy(update={"log_id": "2"}))
    other.append(entry(other))
    path = Path("log") / "00000001.json"
    (log.folder / path).write_text((other.folder / path).read_text())
    with pytest.raises(LogCorrupt, match="does not follow"):
        Log.open(log.folder)


def test_a_missing_entry_is_found(log: Log) -> None:
    (log.folder / "log" / "00000001.json").unlink()
    with pytest.raises(LogCorrupt, match="missing"):
        Log.open(log.folder)


def test_another_schema_and_a_folder_without_a_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAnExport):
        Log.open(tmp_path)
    Log.start(tmp_path, HEADER.model_copy(update={"schema_hash": "other"}))
    with pytest.raises(OtherSchema):
        Log.open(tmp_path)


def test_an_entry_is_json_that_anybody_can_read(log: Log) -> None:
    value = json.loads((log.folder / "log" / "00000002.json").read_text())["entry"]
    assert value["tombstones"][0]["name"] == ["group", "h"]
    assert value["previous"] == json.loads((log.folder / "log" / "00000001.json").read_text())["hash"]
