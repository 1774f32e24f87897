"""Store -> shards: a snapshot becomes an export, whole or not at all.

    groups of the snapshot -> plan -> per shard: graphs -> rows -> one file and its part -> manifest

The plan is fixed before the first shard is written. An export that was killed is gone on with by the same
command: it keeps the shards that are finished, at the snapshot of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tracestore.errors import TracestoreError
from tracestore.graph.model import Graph
from tracestore.shards.manifest import Manifest
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.store.load import SnapshotGone
from tracestore_exporters.assemble import manifest_of
from tracestore_exporters.conservation import Tally, exported, still_open
from tracestore_exporters.inventory import Inventory, inventory
from tracestore_exporters.parts import Part, Parts
from tracestore_exporters.place import NotEmpty, OtherExport, Place, place_at
from tracestore_exporters.plan import (
    Asked,
    Means,
    Plan,
    PlannedGroup,
    PlannedShard,
    PlanRecord,
    closed_by,
    shard_plan,
)
from tracestore_exporters.reading import collecting_rarely, graphs_of
from tracestore_exporters.rendering import Source, source_of
from tracestore_exporters.rows import GroupInfo, plan_rows
from tracestore_exporters.spec import Spec

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat

__all__ = ["BeyondLatest", "NotEmpty", "OtherExport", "UnknownGroup", "export"]

Progress = Callable[[int, int], None]
"""Called with (groups done, groups in all)."""
Note = Callable[[str], None]
"""Called with a line that a person should read."""

_LOOK_AT_ONCE = 8


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


@dataclass(frozen=True, slots=True)
class Task:
    """What is the same for every shard of an export. It goes from process to process as a value."""

    project: str
    snapshot: int
    spec: Spec
    means: Means
    parts: Parts


class Engine(Protocol):
    """Who makes the shards of an export."""

    def __call__(
        self, task: Task, shards: Sequence[PlannedShard], *, advance: Callable[[int], None], lock: int | None
    ) -> Iterator[Part]:
        """Makes the shards, in any order, and gives their parts as they are kept.

        Args:
            advance: called with the number of groups that were done since the last call.
            lock: a descriptor that every process which writes keeps open.
        """


def in_process(source: Source) -> Engine:
    """This process makes one shard after the other."""

    def run(
        task: Task, shards: Sequence[PlannedShard], *, advance: Callable[[int], None], lock: int | None
    ) -> Iterator[Part]:
        for shard in shards:
            yield cut_shard(source, task, shard, advance=advance)

    return run


def export(
    store: Source,
    project: str,
    out: str | Path,
    spec: Spec,
    *,
    snapshot: int | None = None,
    chat: Chat | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    note: Note | None = None,
    register: Callable[[Manifest], None] | None = None,
) -> Manifest:
    """Writes an export of a project and returns its manifest, which is the same whoever makes the shards.

    Args:
        out: a folder that does not exist or is empty, or `s3://BUCKET/PREFIX`. Where an export was begun and
            not finished, by the same arguments, it is gone on with.
        snapshot: commit position to read; None: the latest, or that of what is gone on with.
        chat: what a spec with `render` renders text with.
        engine: who makes the shards; None: this process.
        register: called once the export stands, and again by the next run where this one is killed in it.

    Raises:
        NotEmpty: something is in the folder.
        InUse: another exporter is writing there.
        OtherExport: what was begun there was asked for otherwise.
        UnknownGroup: the spec names a group that is not there.
        BeyondLatest: `snapshot` has not been reached.
        SnapshotGone: something of it was deleted, redacted or replaced since, or while the shards were made;
            nothing is left of them then.
        NoTokenizer, NothingToRender, RenderedForRl: see `rendering.source_of`.
    """
    exporter = _Exporter(store, project, spec, chat, engine, progress, note)
    exporter.require_reached(snapshot)
    with place_at(out) as place:
        manifest = exporter.write(place, snapshot)
        if register is not None:
            register(manifest)
        place.clear()
    return manifest


class _Exporter:
    def __init__(
        self,
        store: Source,
        project: str,
        spec: Spec,
        chat: Chat | None,
        engine: Engine | None,
        progress: Progress | None,
        note: Note | None,
    ) -> None:
        self._source = source_of(store, spec, chat)
        self._project = project
        self._spec = spec
        self._means = Means.here(chat)
        self._engine = engine or in_process(self._source)
        self._progress = progress or (lambda done, total: None)
        self._note = note or (lambda text: None)

    def require_reached(self, snapshot: int | None) -> None:
        latest = self._source.snapshot(self._project)
        if snapshot is not None and snapshot > latest:
            # What is committed later would belong to it, so a second export of it would differ.
            raise BeyondLatest(snapshot=snapshot, latest=latest, hint=f"name one up to {latest}, or none")

    def write(self, place: Place, snapshot: int | None) -> Manifest:
        begun = place.begun()
        if begun is not None:
            self._require_same(place, begun.asked, snapshot)
            if (made := place.published(begun)) is not None:
                return made
        plan = None if begun is None else self._plan_again(begun, snapshot)
        if plan is None:
            plan = self._plan(self._source.snapshot(self._project) if snapshot is None else snapshot)
            place.begin(plan.record())
        manifest = manifest_of(plan, self._parts(place, plan))
        self._require_unchanged(place, plan)
        place.publish(plan.record(), manifest)
        return manifest

    def _require_unchanged(self, place: Place, plan: Plan) -> None:
        """Nothing is published of which something was deleted, redacted or replaced while it was made."""
        try:
            self._plan(plan.snapshot)
        except SnapshotGone:
            place.clear()
            raise

    def _require_same(self, place: Place, begun: Asked, snapshot: int | None) -> None:
        at = begun.snapshot if snapshot is None else snapshot
        differences = begun.differences(Asked.of(self._project, at, self._spec, self._means))
        if differences:
            raise OtherExport(
                path=place.unfinished,
                differs=differences,
                hint="give its command again to finish it, remove it, or name another place",
            )

    def _plan_again(self, begun: PlanRecord, snapshot: int | None) -> Plan | None:
        """The plan of what was begun; None: it cannot be gone on with, and may hold what was deleted."""
        at = begun.asked.snapshot
        self.require_reached(at)
        try:
            plan = self._plan(at)
        except SnapshotGone:
            if snapshot is not None:
                raise
            plan = None
        if plan is None or plan.record() != begun:
            why = "what it reads was replaced or deleted since" if plan is None else "versions have changed"
            self._note(f"an export of snapshot {at} was begun, and is begun anew: {why}")
            return None
        return plan

    def _plan(self, at: int) -> Plan:
        groups = [
            PlannedGroup(ref.group_id, tuple(sorted(ref.episode_ids)), ended=ref.ended)
            for ref in groups_of(self._source, self._project, self._spec, snapshot=at)
        ]
        return Plan(
            project=self._project,
            snapshot=at,
            spec=self._spec,
            means=self._means,
            tombstones=self._source.tombstones(self._project, snapshot=at),
            shards=shard_plan(groups, shard_rows=self._spec.shard_rows),
        )

    def _parts(self, place: Place, plan: Plan) -> list[Part]:
        """The part of every shard: those that an earlier run has kept, and all others, made now."""
        task = Task(plan.project, plan.snapshot, plan.spec, plan.means, place.parts(plan.record()))
        with ThreadPoolExecutor(_LOOK_AT_ONCE) as pool:
            found = pool.map(task.parts.find, [shard.file for shard in plan.shards])
            parts = {part.file: part for part in found if part is not None}
        if parts:
            kept = f"{len(parts)} of {len(plan.shards)} shards are there"
            self._note(f"going on with the export of snapshot {plan.snapshot}: {kept}")
        done, total = sum(part.groups for part in parts.values()), plan.num_groups

        def advance(groups: int) -> None:
            nonlocal done
            done += groups
            self._progress(done, total)

        if done:
            advance(0)
        missing = [shard for shard in plan.shards if shard.file not in parts]
        try:
            for part in self._engine(task, missing, advance=advance, lock=place.lock):
                parts[part.file] = part
        except BaseException:
            self._leave(place, plan, len(parts))
            raise
        return [parts[shard.file] for shard in plan.shards]

    def _leave(self, place: Place, plan: Plan, num_done: int) -> None:
        """Keep what may be gone on with."""
        if num_done == 0:
            place.clear()
            return
        kept = f"{num_done} of {len(plan.shards)} shards are finished in {place.unfinished}"
        self._note(f"{kept}: the same command goes on from there")


def cut_shard(source: Source, task: Task, shard: PlannedShard, *, advance: Callable[[int], None]) -> Part:
    """Makes one shard of an export, and keeps its part."""
    tally, causes, there, open_groups = Tally(), Counter[str](), Inventory(), 0

    def rows() -> Iterator[Row]:
        nonlocal tally, there, open_groups
        for group, graphs in graphs_of(source, task.project, shard.groups, snapshot=task.snapshot):
            closed, found = group_rows(graphs, task.spec, project=task.project, group=group)
            open_groups += closed is None
            there += inventory(graphs, task.spec, is_closed=closed is not None)
            tally += still_open(graphs) if closed is None else exported(graphs, found)
            if has_lessons(found):
                causes.update(sample.cause for row in found for sample in row.samples)
                yield from found
            advance(1)

    with collecting_rarely():
        written = task.parts.write(shard.file, rows(), compression=task.spec.compression)
    part = Part(
        file=shard.file,
        shard=written,
        groups=len(shard.groups),
        open_groups=open_groups,
        causes=causes,
        tally=tally,
        there=there,
    )
    task.parts.keep(part)
    return part


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
