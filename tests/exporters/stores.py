"""A real store in a temporary folder, filled with events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tests.databases import emptied
from tests.factories import posted
from tests.scenarios import SCENARIOS, Scenario
from tracestore.shards.batch import from_batch
from tracestore.shards.manifest import Manifest, read_manifest, write_manifest
from tracestore.shards.read import open_export
from tracestore.shards.row import Row
from tracestore.shards.write import write_shard
from tracestore.store.store import Store
from tracestore.wire.events import AnyEvent

_NOT_OURS = frozenset({"provider_id", "tool_call_id", "spawned_by_tool_call_id", "trigger_tool_call_id"})
_SHARED = frozenset({"group_id", "task_id"})


@contextmanager
def stored(
    folder: Path, events: Iterable[AnyEvent], *, name: str = "t", database: str = "sqlite"
) -> Iterator[Store]:
    """A store with the events in project `p`, each of them accepted."""
    with Store.open(emptied(database, folder / f"{name}.db")) as store:
        outcomes = store.ingest("p", [posted(event) for event in events])
        assert {outcome.status for outcome in outcomes} <= {"stored"}, outcomes
        yield store


def prefixed(value: Any, prefix: str) -> Any:
    """An event with every id of its own made unique, those of its group and task left alone."""
    if isinstance(value, tuple):
        return tuple(prefixed(one, prefix) for one in value)
    if not isinstance(value, BaseModel):
        return value
    changes: dict[str, Any] = {}
    for name in value.model_fields_set:
        field = getattr(value, name)
        if name in _NOT_OURS or name in _SHARED or field is None:
            continue
        if isinstance(field, str) and (name == "id" or name.endswith("_id")):
            changes[name] = f"{prefix}/{field}"
        elif name.endswith("_ids") and isinstance(field, tuple):
            changes[name] = tuple(f"{prefix}/{one}" for one in field)
        elif isinstance(field, (BaseModel, tuple)):
            changes[name] = prefixed(field, prefix)
    return value.model_copy(update=changes)


def grouped(scenario: Scenario, *, prefix: str, group_id: str | None = None) -> list[AnyEvent]:
    """A scenario's events as an episode beside others."""
    events = [prefixed(event, prefix) for event in scenario.events]
    if group_id is None:
        return events
    return [
        event.model_copy(update={"group_id": group_id}) if event.kind == "episode" else event
        for event in events
    ]


def all_scenarios() -> list[AnyEvent]:
    """Every scenario as an episode on its own, in one project."""
    return [event for name, make in SCENARIOS.items() for event in grouped(make(), prefix=name)]


def rows_of(folder: Path) -> list[Row]:
    return list(open_export(folder).rows())


def rewritten(folder: Path, rows: Sequence[Row], *, keep_table: bool = False) -> Manifest:
    """The export with other rows, and hashes and counts that fit them: a forger who knows the format.

    With `keep_table` the conservation table stays as it was.
    """
    old = read_manifest(folder)
    (shard,) = old.shards
    entry = write_shard(folder / shard.file, rows, compression="zstd")
    assert entry is not None
    update: dict[str, Any] = {"shards": (entry,), "rows": entry.rows, "samples": entry.samples}
    if not keep_table:
        delta = entry.trained_tokens - old.conservation.trained_tokens
        table = old.conservation
        update["conservation"] = table.model_copy(
            update={
                "trained_tokens": table.trained_tokens + delta,
                "sampled_tokens": table.sampled_tokens + delta,
            }
        )
    manifest = old.model_copy(update=update)
    write_manifest(folder, manifest)
    return manifest


def shard_of(folder: Path) -> Path:
    """The only shard of an export."""
    (shard,) = read_manifest(folder).shards
    return folder / shard.file


def only_row(folder: Path) -> Row:
    export = open_export(folder)
    (batch,) = export.batches(export.manifest.shards[0])
    return from_batch(batch)


def changed(row: Row, **fields: Any) -> Row:
    return replace(row, **fields)


def flip_a_bit(path: Path) -> None:
    """One bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
