"""Small exports on disk, written by the shard writer itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tracestore.shards.log import EMPTY, Entry, GroupName, Header, Log, LoggedGroup, Rewritten, Tombstone
from tracestore.shards.manifest import Conservation, Manifest, write_manifest
from tracestore.shards.read import Export, open_export
from tracestore.shards.row import Row
from tracestore.shards.schema import schema_hash
from tracestore.shards.write import write_shard


def export_of(rows: Sequence[Row], folder: Path, *, rows_per_shard: int = 3) -> Export:
    """An export that holds `rows`, in order."""
    folder.mkdir(parents=True)
    shards = tuple(
        write_shard(folder / f"shard-{first:05}.arrow", rows[first : first + rows_per_shard])
        for first in range(0, len(rows), rows_per_shard)
    )
    sampled = sum(int(row.has_logprob.sum()) for row in rows)
    trained = sum(row.num_trained for row in rows)
    write_manifest(
        folder,
        Manifest(
            schema_hash=schema_hash(),
            project="default",
            snapshot=1,
            spec={},
            spec_hash="",
            libraries={},
            shards=shards,
            groups=len(rows),
            rows=len(rows),
            samples=sum(len(row.samples) for row in rows),
            causes={},
            conservation=Conservation(
                sampled_tokens=sampled,
                trained_tokens=trained,
                excluded={"no_target": sampled - trained} if sampled > trained else {},
                completions=sum(len(row.completions) for row in rows),
                no_token_ids_calls=0,
                no_token_ids_tokens=None,
            ),
        ),
    )
    return open_export(folder)


def followed(folder: Path) -> Log:
    """An export that goes on, without an entry yet."""
    folder.mkdir(parents=True)
    return Log.start(
        folder,
        Header(schema_hash=schema_hash(), log_id="1", project="p", spec={}, spec_hash="s", libraries={}),
    )


def add_entry(log: Log, rows: Sequence[Row], *, replaces: Sequence[str] = ()) -> None:
    """One more entry with these groups, of one row each; `replaces` are groups whose rows count no more."""
    number = log.number + 1
    shard = write_shard(log.folder / f"shard-{number:05}.arrow", rows)
    log.append(
        Entry(
            number=number,
            previous=log.hash,
            snapshot=number,
            shards=(shard,),
            groups=tuple(_logged(log, row, shard.file, place) for place, row in enumerate(rows)),
            tombstones=tuple(_stone(log.groups[GroupName("group", name)]) for name in replaces),
            late=(),
            waiting=(),
            deleted=(),
            redacted_at=0,
            num_groups=len(rows),
            adds=EMPTY,
            conservation=EMPTY,
        )
    )


def delete_group(log: Log, name: str, *, left: Sequence[Row]) -> None:
    """One more entry, by which a group leaves the files: those rows of its shard are `left`, in another."""
    group, number = log.groups[GroupName("group", name)], log.number + 1
    assert group.file is not None
    shard = write_shard(log.folder / f"shard-{number:05}.arrow", left)
    nothing = {"shards": (), "groups": (), "late": (), "waiting": (), "deleted": (), "redacted_at": 0}
    log.append(
        Entry(
            number=number,
            previous=log.hash,
            snapshot=number,
            tombstones=(_stone(group).model_copy(update={"why": "deleted"}),),
            rewritten=(Rewritten(file=group.file, shard=shard),),
            num_groups=len(left),
            adds=EMPTY,
            conservation=EMPTY,
            **nothing,
        )
    )
    (log.folder / group.file).unlink()


def _logged(log: Log, row: Row, file: str, place: int) -> LoggedGroup:
    name = GroupName.of(row.group_id, row.episodes[0].episode_id)
    return LoggedGroup(
        name=name,
        episode_ids=tuple(episode.episode_id for episode in row.episodes),
        ended=True,
        revision=log.revisions.get(name, -1) + 1,
        base=log.number,
        file=file,
        first_row=place,
        rows=1,
        samples=len(row.samples),
        content_hash="",
        causes={},
        oldest_version=None,
        newest_version=None,
        conservation=EMPTY,
    )


def _stone(group: LoggedGroup) -> Tombstone:
    return Tombstone(
        name=group.name,
        revision=group.revision,
        why="revised",
        file=group.file,
        first_row=group.first_row,
        rows=group.rows,
    )
