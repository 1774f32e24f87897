"""Store -> shards on disk: a snapshot becomes an export, whole or not at all.

    groups of the snapshot -> plan -> per group: graphs -> rows -> one shard file each plan entry -> manifest

Everything is written into a folder beside `out` that takes its name in the end, so a killed export leaves
nothing that looks like one.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

import tracestore
from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore.shards.manifest import Manifest, ShardEntry, write_manifest
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.shards.schema import schema_hash
from tracestore.shards.write import fsync_folder, write_shard
from tracestore_exporters.boundaries import boundary_notes
from tracestore_exporters.conservation import Tally, exported, still_open
from tracestore_exporters.plan import PlannedGroup, PlannedShard, closed_by, shard_plan
from tracestore_exporters.rendering import Source, source_of
from tracestore_exporters.rows import GroupInfo, plan_rows
from tracestore_exporters.spec import Spec

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat

Progress = Callable[[int, int], None]
"""Called with (groups done, groups in all)."""


class NotEmpty(TracestoreError):
    """The export folder exists and is not empty."""


class BeyondLatest(TracestoreError):
    """The snapshot lies beyond the latest commit."""

    exit_code = 2


class UnknownGroup(TracestoreError):
    """The spec names groups that the project does not have at this snapshot."""

    exit_code = 2


class GroupLike(Protocol):
    """What the exporter reads of a group of the store."""

    @property
    def group_id(self) -> str | None: ...

    @property
    def episode_ids(self) -> Sequence[str]: ...

    @property
    def ended(self) -> bool: ...


def export(
    store: Source,
    project: str,
    out: str | Path,
    spec: Spec,
    *,
    snapshot: int | None = None,
    chat: Chat | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Writes an export of a project and returns its manifest.

    Args:
        out: a folder that does not exist or is empty.
        snapshot: commit position to read; None: the latest.
        chat: what a spec with `render` renders text with.

    Raises:
        NotEmpty: something is in the folder.
        UnknownGroup: the spec names a group that is not there.
        BeyondLatest: `snapshot` has not been reached.
        NoTokenizer, NothingToRender, RenderedForRl: see `rendering.source_of`.
    """
    source = source_of(store, spec, chat)
    folder = Path(os.path.abspath(out))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NotEmpty(path=str(folder), hint="name a new folder: an export is never changed or mixed")
    latest = store.snapshot(project)
    if snapshot is not None and snapshot > latest:
        # What is committed later would belong to it, so a second export of it would differ.
        raise BeyondLatest(snapshot=snapshot, latest=latest, hint=f"name one up to {latest}, or none")
    at = latest if snapshot is None else snapshot
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = folder.with_name(f".{folder.name}.{os.getpid()}-{os.urandom(4).hex()}.partial")
    staged.mkdir()
    try:
        manifest = _Exporter(source, project, spec, at, chat, progress).write(staged)
        os.replace(staged, folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    fsync_folder(folder.parent)
    return manifest


class _Exporter:
    def __init__(
        self,
        store: Source,
        project: str,
        spec: Spec,
        snapshot: int,
        chat: Chat | None,
        progress: Progress | None,
    ) -> None:
        self._store = store
        self._project = project
        self._spec = spec
        self._snapshot = snapshot
        self._chat = chat
        self._progress = progress
        self._tally = Tally()
        self._causes: Counter[str] = Counter()
        self._open = self._done = self._total = 0

    def write(self, folder: Path) -> Manifest:
        groups = [
            PlannedGroup(ref.group_id, tuple(sorted(ref.episode_ids)), ended=ref.ended)
            for ref in groups_of(self._store, self._project, self._spec, snapshot=self._snapshot)
        ]
        self._total = len(groups)
        plan = shard_plan(groups, shard_rows=self._spec.shard_rows)
        written = [self._write_shard(folder, shard) for shard in plan]
        manifest = self._manifest([entry for entry in written if entry is not None])
        write_manifest(folder, manifest)
        return manifest

    def _write_shard(self, folder: Path, shard: PlannedShard) -> ShardEntry | None:
        rows = (row for group in shard.groups for row in self._rows(group))
        return write_shard(folder / shard.file, rows, compression=self._spec.compression)

    def _rows(self, group: PlannedGroup) -> Iterator[Row]:
        """The rows of a group: none while it is open, and none when there is nothing in it to learn from."""
        graphs = [
            self._store.load_graph(self._project, episode_id, snapshot=self._snapshot)
            for episode_id in group.episode_ids
        ]
        closed, rows = group_rows(graphs, self._spec, project=self._project, group=group)
        if closed is None:
            self._open += 1
            self._tally += still_open(graphs)
        else:
            self._tally += exported(graphs, rows)
        if has_lessons(rows):
            self._causes.update(sample.cause for row in rows for sample in row.samples)
            yield from rows
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)

    def _manifest(self, shards: Sequence[ShardEntry]) -> Manifest:
        chat = self._chat
        trains = any(shard.trained_tokens for shard in shards)
        return Manifest(
            schema_hash=schema_hash(),
            project=self._project,
            snapshot=self._snapshot,
            spec=self._spec.model_dump(mode="json"),
            spec_hash=self._spec.spec_hash,
            tokenizer_hash=None if chat is None else chat.tokenizer_hash,
            template_hash=None if chat is None else chat.template_hash,
            libraries=libraries_of(chat),
            shards=tuple(shards),
            groups=self._total,
            rows=sum(shard.rows for shard in shards),
            samples=sum(shard.samples for shard in shards),
            causes=dict(sorted(self._causes.items())),
            conservation=self._tally.conservation(),
            tombstones=self._store.tombstones(self._project, snapshot=self._snapshot),
            notes=(
                *(() if trains else self._why_empty()),
                *self._of_rendering(),
                *boundary_notes(self._causes),
            ),
        )

    def _of_rendering(self) -> tuple[str, ...]:
        """What a chat template could not say, each with its first example."""
        tally = self._tally
        notes = []
        for why, completions in tally.not_rendered.most_common():
            example = f", the first: {tally.details[why]}" if why in tally.details else ""
            notes.append(f"{completions} completions are not rendered: {why}{example}")
        for what, completions in tally.left_out.most_common():
            notes.append(f"{completions} completions are rendered without all of their {what}")
        return tuple(notes)

    def _why_empty(self) -> tuple[str, ...]:
        """What to change when nothing came out that trains."""
        tally = self._tally
        if self._total == 0:
            return (f"project {self._project!r} has no episodes at this snapshot",)
        notes = []
        if self._open:
            notes.append(f"{self._open} of {self._total} groups are still open: end them, or their episodes")
        if tally.sampled == 0:
            notes.append(
                f"no call has token ids ({tally.calls_without_ids} answered calls without): "
                "ask the inference server for them, or render their text (--render)"
            )
        for label, tokens in tally.excluded.most_common():
            notes.append(f"{tokens} of {tally.sampled} sampled tokens are excluded as {label}")
        return tuple(notes)


def libraries_of(chat: Chat | None) -> dict[str, str]:
    """Versions that the bytes of an export depend on."""
    return {
        "numpy": np.__version__,
        "pyarrow": pa.__version__,
        "tracestore": tracestore.__version__,
        **({} if chat is None else chat.libraries),
    }


def groups_of(store: Source, project: str, spec: Spec, *, snapshot: int) -> list[GroupLike]:
    """The groups that a spec reads.

    Raises:
        UnknownGroup: the spec names one that is not there.
    """
    every = store.groups(project, snapshot=snapshot)
    if spec.groups is None:
        return list(every)
    named = {ref.group_id if ref.group_id is not None else ref.episode_ids[0]: ref for ref in every}
    missing = [name for name in spec.groups if name not in named]
    if missing:
        raise UnknownGroup(
            groups=missing, snapshot=snapshot, hint="groups: ids of groups, or of single episodes"
        )
    return [named[name] for name in dict.fromkeys(spec.groups)]


def group_rows(
    graphs: Sequence[Graph], spec: Spec, *, project: str, group: PlannedGroup
) -> tuple[str | None, list[Row]]:
    """What closed a group, and its rows; (None, []) while it is open."""
    info = group_info(graphs, project=project, group=group)
    if info is None:
        return None, []
    return info.closed_by, list(plan_rows(graphs, spec, info))


def group_info(graphs: Sequence[Graph], *, project: str, group: GroupLike) -> GroupInfo | None:
    """What the rows of a group say of it; None while it is open. `graphs` are in order of episode id."""
    event = next((graph.group for graph in graphs if graph.group is not None), None)
    closed = closed_by(event, graphs, ended=group.ended)
    if closed is None:
        return None
    return GroupInfo(
        project=project,
        episode_ids=tuple(sorted(group.episode_ids)),
        group_id=group.group_id,
        task_id=_task_id(event.task_id if event is not None else None, graphs),
        closed_by=closed,
    )


def has_lessons(rows: Sequence[Row]) -> bool:
    """Whether a group goes into the shards: something of it trains, would train if the spec allowed longer
    samples, or it holds sampled candidates.

    Rejected candidates stay even where none of them trains: a trainer may learn from the choice.
    """
    return any(
        row.num_trained or (row.candidate_sets and len(row.segments)) or (row.reason == Reason.TOO_LONG).any()
        for row in rows
    )


def _task_id(of_group: str | None, graphs: Sequence[Graph]) -> str | None:
    """The group's task, or the one that all its episodes share."""
    if of_group is not None:
        return of_group
    tasks = {None if graph.episode is None else graph.episode.task_id for graph in graphs}
    return tasks.pop() if len(tasks) == 1 else None
