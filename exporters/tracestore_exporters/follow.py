"""Store -> shards, again and again: what was closed since the last look is added to a log (`shards.log`).

    what came since -> the groups it is of -> closed, and not written: rows into a new shard
                                           -> written: a reward or selection makes its rows anew, more is late
                                           -> open: it waits

Once a group is written, the events in its rows are fixed: those up to the commit position that was read
(its `base`), and of later ones only what is said of them (`JUDGEMENTS`). Everything else that comes of it is
late: counted, and in no row. So the rows of a log are those of a batch export of the same snapshot from which
late events are left out.

A deleted episode takes its group's rows with it; the others come again without it, as a batch export would
show them. So does a group of which text or ids were redacted, and one of which an event came in a higher
revision; since what that event said before is not kept, such a group is read anew, what was late included.

What was deleted or redacted leaves the files too: a shard that holds it, in rows of whatever revision, is
written again without the rows that count no more, and removed once the entry that says so is there.

Nothing but the log says what was written. A process that is killed has written the next entry or has not.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.shards.batch import content_hash, from_batch, to_batch
from tracestore.shards.durable import fsync_folder
from tracestore.shards.files import Folder
from tracestore.shards.log import (
    LOG_FOLDER,
    Entry,
    GroupName,
    Header,
    LateGroup,
    Log,
    LoggedGroup,
    Rewritten,
    Tombstone,
    Why,
    entry_name,
    is_followed,
)
from tracestore.shards.manifest import Conservation, ShardEntry
from tracestore.shards.read import Export
from tracestore.shards.reasons import Reason
from tracestore.shards.row import Row
from tracestore.shards.schema import schema_hash
from tracestore.shards.write import write_shard
from tracestore.store.changes import Changes, changes, going_on, groups_with
from tracestore.store.load import SnapshotGone
from tracestore.store.query import GroupRef
from tracestore.store.store import NotFound, Store
from tracestore.store.tombstones import Deleted
from tracestore_exporters.conservation import Tally, exported, recorded, still_open
from tracestore_exporters.export import group_info, group_rows, has_lessons
from tracestore_exporters.inventory import Inventory, inventory
from tracestore_exporters.place import InUse, NotEmpty, OtherExport
from tracestore_exporters.plan import Means, PlannedGroup, closed_by
from tracestore_exporters.rendering import Source, source_of
from tracestore_exporters.spec import Spec

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat

JUDGEMENTS = frozenset({"reward", "candidate_set", "candidate_selection"})
"""Kinds of events that say something of what was sampled, often long after: rows take them all the same."""
IGNORED = frozenset({"consumption"})
"""Kinds that say nothing of a row."""
UNSTATED_S = 1800.0
"""How long a group is left, if nobody says otherwise, that is closed only because nothing of an episode but
its parts has come: a tool may run that long between two calls, and what comes after is late for good."""
ENTRY_POSITIONS = 20_000
"""Commit positions that one look takes: a killed process has lost no more than these, and no entry grows with
what was there before anybody followed."""
_LOCK = ".follow.lock"
_SHARD = re.compile(r"\.?shard-\d{8}-\d{4,}\.arrow(\.partial)?")


class SeenSource:
    """The store as a log has it: of a written group the events that belong into its rows."""

    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log

    def snapshot(self, project: str) -> int:
        return self._store.snapshot(project)

    def tombstones(self, project: str, *, snapshot: int) -> tuple[dict[str, Any], ...]:
        return self._store.tombstones(project, snapshot=snapshot)

    def groups(self, project: str, *, snapshot: int | None = None) -> list[PlannedGroup]:
        """Every written group as it was written, and of the others those episodes that are in no row."""
        written = [planned(group) for group in self._log.groups.values()]
        refs = self._store.groups(project, snapshot=snapshot)
        left = [unwritten(ref, self._log) for ref in refs if name_of(ref) not in self._log.groups]
        return written + [group for group in left if group is not None]

    def training_graphs(
        self, project: str, episode_ids: Sequence[str], *, snapshot: int | None = None
    ) -> list[Graph]:
        if self._log.group_of.keys().isdisjoint(episode_ids):
            return self._store.training_graphs(project, episode_ids, snapshot=snapshot)
        # The fast way reads all that came, and nothing else than all.
        return [self.load_graph(project, one, snapshot=snapshot) for one in episode_ids]

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph:
        name = self._log.group_of.get(episode_id)
        if name is None:
            return self._store.load_graph(project, episode_id, snapshot=snapshot)
        events = self._store.load(project, episode_id, snapshot=self._log.groups[name].base)
        known = {(event.kind, event.id) for event in events}
        return build(
            [
                *events,
                *(
                    event
                    for event in self._store.load(project, episode_id, snapshot=snapshot)
                    if event.kind in JUDGEMENTS and (event.kind, event.id) not in known
                ),
            ]
        )


def name_of(ref: GroupRef) -> GroupName:
    return GroupName.of(ref.group_id, ref.episode_ids[0])


def planned(group: LoggedGroup) -> PlannedGroup:
    """A written group as the exporter takes it."""
    group_id = group.name.id if group.name.kind == "group" else None
    return PlannedGroup(group_id, group.episode_ids, ended=group.ended)


def unwritten(ref: GroupRef, log: Log) -> PlannedGroup | None:
    """A group without the episodes that were written before they named it; None: nothing is left."""
    left = tuple(sorted(one for one in ref.episode_ids if one not in log.group_of))
    return PlannedGroup(ref.group_id, left, ended=ref.ended) if left else None


def is_stated(graphs: Sequence[Graph], group: PlannedGroup) -> bool:
    """Whether somebody said that a group, or every episode that closes it, has ended.

    An episode of which only the parts were posted counts as ended, since its harness marks no ends; while
    it goes on nobody can tell, so that such a group is better left until nothing more comes.
    """
    own = [graph for graph in graphs if graph.episode is not None]
    event = next((graph.group for graph in graphs if graph.group is not None), None)
    closed = closed_by(event, own, ended=group.ended)
    return closed is not None and (closed != "episodes" or len(own) == len(graphs))


@dataclass(frozen=True, slots=True)
class Step:
    """What one look at the store brought."""

    entry: Entry | None
    """What was added; None: nothing, or nothing yet."""
    is_news: bool
    """Whether anything had come, or is to be looked at again."""
    is_more: bool = False
    """Whether more had come than one look takes."""


@dataclass
class _Touched:
    """What came of one group."""

    kinds: set[str] = field(default_factory=set)
    is_replaced: bool = False
    why: Why = "revised"
    """Why its rows may be others now; deleted or redacted: whatever came."""


@dataclass
class _Draft:
    """The next entry."""

    snapshot: int
    is_partial: bool
    """Whether more had come than is looked at."""
    shards: list[ShardEntry] = field(default_factory=list)
    rewritten: list[Rewritten] = field(default_factory=list)
    groups: list[LoggedGroup] = field(default_factory=list)
    undone: dict[GroupName, Tombstone] = field(default_factory=dict)
    freed: set[GroupName] = field(default_factory=set)
    """Those of the undone whose episodes are in no row now."""
    late: dict[GroupName, LateGroup] = field(default_factory=dict)
    open: dict[GroupName, Conservation | None] = field(default_factory=dict)
    """Tables of groups that were read and are open; None: it is open no more."""
    members: dict[str, GroupName] = field(default_factory=dict)
    """Episodes that are in no row, and the group they are of."""
    waiting: dict[GroupName, float] = field(default_factory=dict)
    """Closed groups that are left for now, and until when."""
    again: dict[GroupName, _Touched] = field(default_factory=dict)
    """Groups that changed while they were read, and what had come of them."""
    going_on: set[GroupName] = field(default_factory=set)
    """Groups of which more has come than is looked at."""
    there: Inventory = field(default_factory=Inventory)
    """What the groups that are written for the first time hold of what a spec can name."""

    @property
    def replacements(self) -> list[ShardEntry]:
        """The shards with the rows that count of those that were written again."""
        return [one.shard for one in self.rewritten if one.shard is not None]

    @property
    def is_empty(self) -> bool:
        return not (self.groups or self.undone or self.late or self.rewritten)


@dataclass(frozen=True, slots=True)
class _Written:
    """A group to be written, and its rows."""

    group: LoggedGroup
    rows: Sequence[Row]


class Follower:
    """A log that goes on. Made by `following`, which lets only one into a folder."""

    def __init__(
        self,
        store: Store,
        project: str,
        log: Log,
        spec: Spec,
        *,
        settle_s: float,
        unstated_s: float,
        most: int,
        chat: Chat | None,
    ) -> None:
        self.log = log
        self.there = Inventory()
        """What the groups that this one has written hold of what a spec can name."""
        self._store = store
        self._project = project
        self._spec = spec
        self._settle_s = settle_s
        self._unstated_s = unstated_s
        self._most = most
        self._whole = source_of(store, spec, chat)
        self._seen = source_of(SeenSource(store, log), spec, chat)
        self._read_to = log.snapshot
        self._redacted_at = 0 if log.last is None else log.last.redacted_at
        self._totals: Counter[tuple[str, str]] = Counter()
        parts: list[LoggedGroup | LateGroup] = [*log.groups.values(), *log.late.values()]
        for part in parts:
            self._totals.update(counts_of(part.conservation))
        self._open: dict[GroupName, Conservation] = {}
        self._waiting: dict[GroupName, float] = {}
        self._stripping = self._with_tombstones()
        left_open = self._left_open()
        self._again = {name: _Touched() for name in left_open} | self._left_written()
        self._heard = dict.fromkeys(left_open, time.monotonic())
        """When something of a group that is not written came last, or was found here."""
        self._members = {one: late.name for late in log.late.values() for one in late.episode_ids}

    def _with_tombstones(self) -> set[str]:
        """Episodes in rows that may hold content which was deleted while no process followed."""
        stones = self._store.tombstones(self._project, snapshot=self._store.snapshot(self._project))
        ids = {stone["id"] for stone in stones if stone["kind"] == "content"}
        return {one for one in ids & self.log.group_of.keys() if self.log.groups[self.log.group_of[one]].rows}

    def _left_open(self) -> set[GroupName]:
        """Groups that an earlier process left open: they are read once more, so that they are counted."""
        while self.log.number:
            try:
                refs = self._store.groups(self._project)
            except SnapshotGone:  # something was deleted between two statements
                continue
            return {name_of(ref) for ref in refs} - set(self.log.groups)
        return set()

    def _left_written(self) -> dict[GroupName, _Touched]:
        """Written groups that changed while an earlier process read them, as if all of it came now."""
        waiting = () if self.log.last is None else self.log.last.waiting
        gone = _gone(self.log.deleted)
        found = {}
        for name in self.log.groups.keys() & set(waiting):
            why: Why = "revised" if gone.isdisjoint(self.log.groups[name].episode_ids) else "deleted"
            found[name] = _Touched({"call", *JUDGEMENTS}, why=why)
        return found

    def step(self, *, is_last: bool = False) -> Step:
        """Look once at what has come, or at as much of it as one look takes, and write an entry if there is
        something to write.

        Args:
            is_last: leave no closed group for later, if this is all that has come.
        """
        found = changes(self._store, self._project, after=self._read_to, most=self._most, ignored=IGNORED)
        is_partial = found.snapshot < found.latest
        draft = _Draft(found.snapshot, is_partial)
        redacted_at = max([self._redacted_at, *(last for _, last in found.redactions)])
        entry = None
        try:
            touched = self._read(draft, found, is_last=is_last and not is_partial)
            self._rewrite(draft, found, is_redacted=redacted_at > self._redacted_at)
            if not draft.is_empty or found.deleted or redacted_at > self._redacted_at:
                entry = self._write(draft, found, touched, redacted_at)
        except BaseException:
            # An entry that could not be synced may be there all the same.
            if not (self.log.folder / entry_name(self.log.number + 1)).exists():
                for shard in (*draft.shards, *draft.replacements):
                    (self.log.folder / shard.file).unlink(missing_ok=True)
            raise
        self._remove(draft)
        self._note(draft, touched)
        if found.snapshot != self._read_to:
            self._stripping = set(found.stripping)
        self._read_to, self._redacted_at = found.snapshot, redacted_at
        is_news = bool(found.kinds or found.groups or found.deleted or draft.again)
        return Step(entry, is_news or is_partial, is_partial)

    def _read(self, draft: _Draft, found: Changes, *, is_last: bool) -> set[GroupName]:
        """Fill the draft; the groups that were looked at."""
        if found.is_deleted:
            for group in self.log.groups.values():
                self._free_again(draft, group, "deleted")
            draft.open = dict.fromkeys(self._open)
            return {*self._open, *self._waiting, *self._again}
        touched, refs = self._touched(found, is_last=is_last)
        if draft.is_partial:
            draft.going_on = self._going_on(found, touched)
        # Those of earlier looks too: a group may have changed while it was read without them.
        gone = _gone([*self.log.deleted, *found.deleted])
        self._write_shards(draft, self._considered(draft, touched, refs, gone, is_last=is_last))
        return set(touched)

    # --- Which groups ------------------------------------------------------------------------------

    def _touched(
        self, found: Changes, *, is_last: bool
    ) -> tuple[dict[GroupName, _Touched], dict[GroupName, GroupRef]]:
        """The groups of which something came, what of each, and who is in them now."""
        now_s = time.monotonic()
        touched = {name: _Touched() for name, at in self._waiting.items() if is_last or now_s >= at}
        touched |= self._again
        for name in self._redacted(found):
            touched.setdefault(name, _Touched()).why = "redacted"
        for episode_id in {*self._stripped(found), *(stone["id"] for stone in found.deleted)}:
            if (taken_from := self._name_of(episode_id)) is not None:
                touched.setdefault(taken_from, _Touched()).why = "deleted"
        for group_id in found.groups:
            self._came(touched, GroupName("group", group_id), {"group"}, found.replaced)
        refs = groups_with(
            self._store,
            self._project,
            episode_ids={*found.kinds, *(name.id for name in touched if name.kind == "episode")},
            group_ids={name.id for name in touched if name.kind == "group"},
            snapshot=found.snapshot,
        )
        now_in = {episode_id: name_of(ref) for ref in refs for episode_id in ref.episode_ids}
        for episode_id, kinds in found.kinds.items():
            # One that names its group only now is of two: what was alone before is open no more.
            for one in {self._name_of(episode_id), now_in.get(episode_id)}:
                if one is not None:
                    self._came(touched, one, kinds, found.replaced, episode_id)
        news = (name for name, what in touched.items() if what.kinds and name not in self.log.groups)
        self._heard.update(dict.fromkeys(news, now_s))
        if self._spec.groups is not None:
            touched = {name: what for name, what in touched.items() if name.id in self._spec.groups}
        return touched, {name_of(ref): ref for ref in refs}

    def _going_on(self, found: Changes, touched: Iterable[GroupName]) -> set[GroupName]:
        names = [name for name in touched if name not in self.log.groups]
        episodes, groups = going_on(
            self._store,
            self._project,
            after=found.snapshot,
            episode_ids=(name.id for name in names if name.kind == "episode"),
            group_ids=(name.id for name in names if name.kind == "group"),
            ignored=IGNORED,
        )
        return {name for name in names if name.id in (episodes if name.kind == "episode" else groups)}

    def _came(
        self,
        touched: dict[GroupName, _Touched],
        name: GroupName,
        kinds: Iterable[str],
        replaced: frozenset[tuple[str, str]],
        episode_id: str | None = None,
    ) -> None:
        one = touched.setdefault(name, _Touched())
        one.kinds.update(kinds)
        what = ("group", name.id) if episode_id is None else ("episode", episode_id)
        is_in_rows = episode_id is None or self.log.group_of.get(episode_id) == name
        one.is_replaced |= what in replaced and is_in_rows

    def _name_of(self, episode_id: str) -> GroupName | None:
        return self.log.group_of.get(episode_id) or self._members.get(episode_id)

    def _stripped(self, found: Changes) -> set[str]:
        """Episodes whose content was deleted since: that takes a while after it was asked for."""
        return self._stripping - found.stripping if found.snapshot != self._read_to else set()

    def _redacted(self, found: Changes) -> list[GroupName]:
        """Redactions do not say of which groups they took something: those that may be are compared."""
        new = [first for first, last in found.redactions if last > self._redacted_at]
        if not new:
            return []
        # A later revision holds rewards and selections from after its base; what is late came after it too.
        later = self.log.late.keys()
        written = self.log.groups.items()
        may_be = [n for n, group in written if group.base >= min(new) or group.revision or n in later]
        return [*may_be, *self._open]

    # --- One group ---------------------------------------------------------------------------------

    def _considered(
        self,
        draft: _Draft,
        touched: dict[GroupName, _Touched],
        refs: dict[GroupName, GroupRef],
        gone: set[str],
        *,
        is_last: bool,
    ) -> Iterator[_Written]:
        """What is to be written of the groups; all else of them is noted in the draft."""
        # First those whose episodes may be of another group now.
        for name in sorted(touched, key=lambda name: (not touched[name].is_replaced, name)):
            try:
                written = None
                if name in self.log.groups:
                    written = self._revised(draft, name, touched[name], refs.get(name), gone)
                if name not in self.log.groups or name in draft.freed:
                    written = self._first(draft, name, refs.get(name), is_last=is_last)
            except (Deleted, NotFound, SnapshotGone):
                if self._store.snapshot(self._project) == draft.snapshot:
                    raise
                draft.again[name] = touched[name]
                draft.open.pop(name, None)
                if name not in draft.freed:  # its rows count until others take their place
                    draft.undone.pop(name, None)
                continue
            if written is not None:
                yield written

    def _first(
        self, draft: _Draft, name: GroupName, ref: GroupRef | None, *, is_last: bool
    ) -> _Written | None:
        """A group that is not written, if it is closed."""
        draft.open[name] = None
        members = () if ref is None else self._free(draft, ref.episode_ids)
        if ref is None or not members:
            return None
        group = PlannedGroup(ref.group_id, members, ended=ref.ended)
        graphs = self._load(self._whole, members, draft)
        if not self._is_ready(draft, name, graphs, group, is_last=is_last):
            draft.open[name] = still_open(graphs).conservation()
            draft.members.update(dict.fromkeys(members, name))
            return None
        closed, rows = group_rows(graphs, self._spec, project=self._project, group=group)
        assert closed is not None
        # Rewards may come after its rows, so it lacks none yet.
        draft.there += inventory(graphs, self._spec, is_closed=False)
        return self._as_written(name, group, graphs, rows, base=draft.snapshot)

    def _revised(
        self, draft: _Draft, name: GroupName, touched: _Touched, ref: GroupRef | None, gone: set[str]
    ) -> _Written | None:
        """A written group, if its rows are others now; notes what is late of it, and whether it is undone."""
        old = self.log.groups[name]
        members = tuple(one for one in old.episode_ids if one not in gone)
        if touched.is_replaced or not members:
            self._free_again(draft, old, "replaced" if touched.is_replaced else "deleted")
            return None
        group = PlannedGroup(planned(old).group_id, members, ended=old.ended)
        graphs = self._load(self._seen, members, draft)
        written = None
        is_taken = touched.why != "revised"
        if is_taken or touched.kinds & JUDGEMENTS:
            closed, rows = group_rows(graphs, self._spec, project=self._project, group=group)
            if closed is None:  # without the episode that was deleted it is too small
                self._free_again(draft, old, touched.why)
                return None
            written = self._as_written(name, group, graphs, rows, base=old.base)
            if _is_same(written.group, old):
                written = None
            else:
                self._undo(draft, old, touched.why)
        before = self.log.late.get(name)
        late = before
        if is_taken or touched.kinds - JUDGEMENTS:
            late = self._late(draft, name, graphs, members, () if ref is None else ref.episode_ids)
        if late is not None and (written is not None or late != before):
            draft.late[name] = late
        return written

    def _late(
        self,
        draft: _Draft,
        name: GroupName,
        graphs: Sequence[Graph],
        members: Sequence[str],
        now_in: Sequence[str],
    ) -> LateGroup | None:
        """What there is of a group beside its rows; None: nothing, and there never was."""
        others = tuple(one for one in self._free(draft, now_in) if one not in members)
        draft.members.update(dict.fromkeys(others, name))
        full = self._load(self._whole, (*members, *others), draft)
        table = late_of(recorded(full), recorded(graphs))
        if not others and not any(counts_of(table).values()) and name not in self.log.late:
            return None
        return LateGroup(name=name, episode_ids=others, conservation=table)

    def _undo(self, draft: _Draft, group: LoggedGroup, why: Why) -> None:
        draft.undone[group.name] = Tombstone(
            name=group.name,
            revision=group.revision,
            why=why,
            file=group.file,
            first_row=group.first_row,
            rows=group.rows,
        )

    def _free_again(self, draft: _Draft, group: LoggedGroup, why: Why) -> None:
        self._undo(draft, group, why)
        draft.freed.add(group.name)

    def _free(self, draft: _Draft, episode_ids: Iterable[str]) -> tuple[str, ...]:
        """The episodes that are in no row."""
        of = self.log.group_of
        return tuple(sorted(one for one in episode_ids if one not in of or of[one] in draft.freed))

    def _load(self, source: Source, episode_ids: Sequence[str], draft: _Draft) -> list[Graph]:
        return source.training_graphs(self._project, episode_ids, snapshot=draft.snapshot)

    def _is_ready(
        self,
        draft: _Draft,
        name: GroupName,
        graphs: Sequence[Graph],
        group: PlannedGroup,
        *,
        is_last: bool,
    ) -> bool:
        if group_info(graphs, project=self._project, group=group) is None:
            return False
        if (
            name in draft.going_on
        ):  # what is there already is not late: the look that reads it takes the group
            draft.waiting[name] = time.monotonic()
            return False
        wait_s = self._settle_s if is_stated(graphs, group) else max(self._settle_s, self._unstated_s)
        until = self._heard.get(name, time.monotonic()) + wait_s
        if is_last or time.monotonic() >= until:
            return True
        draft.waiting[name] = until
        return False

    def _as_written(
        self,
        name: GroupName,
        group: PlannedGroup,
        graphs: Sequence[Graph],
        rows: Sequence[Row],
        *,
        base: int,
    ) -> _Written:
        table = exported(graphs, rows).conservation()
        kept = rows if has_lessons(rows) else ()
        oldest, newest = versions_of(kept)
        logged = LoggedGroup(
            name=name,
            episode_ids=group.episode_ids,
            ended=group.ended,
            revision=self.log.revisions.get(name, -1) + 1,
            base=base,
            file=None,
            first_row=0,
            rows=len(kept),
            samples=sum(len(row.samples) for row in kept),
            content_hash=content_hash(map(to_batch, kept)),
            causes=dict(sorted(Counter(sample.cause for row in kept for sample in row.samples).items())),
            oldest_version=oldest,
            newest_version=newest,
            conservation=table,
        )
        return _Written(logged, kept)

    # --- Writing -----------------------------------------------------------------------------------

    def _write_shards(self, draft: _Draft, written: Iterator[_Written]) -> None:
        """As many groups a file as the spec says. Each is read when it is written: memory stays at one."""
        with_rows = self._with_rows(draft, written)
        while (first := next(with_rows, None)) is not None:
            file = self._file(len(draft.shards))
            groups = chain([first], islice(with_rows, self._spec.shard_rows - 1))
            shard = write_shard(
                self.log.folder / file,
                self._placed(draft, file, groups),
                compression=self._spec.compression,
            )
            assert shard is not None
            draft.shards.append(shard)

    def _file(self, place: int) -> str:
        """Name of a shard of the next entry."""
        return f"shard-{self.log.number + 1:08d}-{place:04d}.arrow"

    def _with_rows(self, draft: _Draft, written: Iterator[_Written]) -> Iterator[_Written]:
        for one in written:
            if one.rows:
                yield one
            else:
                draft.groups.append(one.group)

    def _placed(self, draft: _Draft, file: str, groups: Iterable[_Written]) -> Iterator[Row]:
        place = 0
        for one in groups:
            draft.groups.append(one.group.model_copy(update={"file": file, "first_row": place}))
            place += len(one.rows)
            yield from one.rows

    def _rewrite(self, draft: _Draft, found: Changes, *, is_redacted: bool) -> None:
        """Write again, without the rows that count no more, what holds something that may not stay."""
        gone = self.log.to_rewrite(
            draft.undone.values(),
            deleted=(stone["id"] for stone in found.deleted),
            is_all=is_redacted or found.is_deleted,
        )
        here = Export(self.log.files, self.log.manifest(), self.log)
        for file, places in sorted(gone.items()):
            batches = enumerate(here.all_batches(self.log.shards[file]))
            name = self._file(len(draft.shards) + len(draft.replacements))
            shard = write_shard(
                self.log.folder / name,
                (from_batch(batch) for place, batch in batches if place not in places),
                compression=self._spec.compression,
            )
            draft.rewritten.append(Rewritten(file=file, shard=shard))

    def _remove(self, draft: _Draft) -> None:
        """Remove the shards that were written again. One that a kill leaves goes when the folder is followed
        again: no entry names it as there."""
        for one in draft.rewritten:
            (self.log.folder / one.file).unlink(missing_ok=True)
        if draft.rewritten:
            fsync_folder(self.log.folder)

    def _write(self, draft: _Draft, found: Changes, touched: set[GroupName], redacted_at: int) -> Entry:
        log = self.log
        totals = self._totals.copy()
        for name in draft.undone:
            totals.subtract(counts_of(log.groups[name].conservation))
        for name in {*draft.undone, *draft.late}:
            if name in log.late:
                totals.subtract(counts_of(log.late[name].conservation))
        adds: Counter[tuple[str, str]] = Counter()
        parts: list[LoggedGroup | LateGroup] = [*draft.groups, *draft.late.values()]
        for part in parts:
            adds.update(counts_of(part.conservation))
        totals.update(adds)
        opened = self._opened(draft)
        whole = totals.copy()
        for table in opened.values():
            whole.update(counts_of(table))
        left = len(log.groups) - len(draft.undone) + len(draft.groups)
        entry = Entry(
            number=log.number + 1,
            previous=log.hash,
            snapshot=draft.snapshot,
            shards=tuple(draft.shards),
            groups=tuple(draft.groups),
            tombstones=tuple(draft.undone.values()),
            rewritten=tuple(draft.rewritten),
            late=tuple(draft.late.values()),
            waiting=tuple(sorted(self._still_waiting(draft, touched).keys() | draft.again.keys())),
            deleted=found.deleted,
            redacted_at=redacted_at,
            num_groups=left + len(opened),
            adds=table_of(adds),
            conservation=table_of(whole),
        )
        log.append(entry)
        self._totals = totals
        return entry

    def _opened(self, draft: _Draft) -> dict[GroupName, Conservation]:
        return {name: table for name, table in (self._open | draft.open).items() if table is not None}

    def _still_waiting(self, draft: _Draft, touched: set[GroupName]) -> dict[GroupName, float]:
        looked_at = touched - draft.again.keys()
        left = {name: until for name, until in self._waiting.items() if name not in looked_at}
        return left | draft.waiting

    def _note(self, draft: _Draft, touched: set[GroupName]) -> None:
        """Remember what the draft found, once the entry is written."""
        self.there += draft.there
        self._open = self._opened(draft)
        self._waiting = self._still_waiting(draft, touched)
        self._again = draft.again
        self._members |= draft.members
        for group in draft.groups:
            self._heard.pop(group.name, None)
            for episode_id in group.episode_ids:
                self._members.pop(episode_id, None)


def _gone(stones: Iterable[dict[str, Any]]) -> set[str]:
    """Episodes that were deleted, by their tombstones."""
    return {stone["id"] for stone in stones if stone["kind"] == "episode"}


def _is_same(one: LoggedGroup, other: LoggedGroup) -> bool:
    """Whether two revisions say the same."""
    names = ("episode_ids", "content_hash", "conservation")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def versions_of(rows: Iterable[Row]) -> tuple[int | None, int | None]:
    """The oldest and the newest policy version of which something trains."""
    found = {
        run.version
        for row in rows
        for run in row.policy_runs
        if run.version is not None and (row.reason[run.start : run.start + run.length] == 0).any()
    }
    return (min(found), max(found)) if found else (None, None)


def late_of(full: Tally, written: Tally) -> Conservation:
    """The table of what is there of a group beside what is in its rows: all of it late."""
    tokens = full.sampled - written.sampled
    told = full.tokens_without_ids
    left_out, not_rendered = full.left_out.copy(), full.not_rendered.copy()
    left_out.subtract(written.left_out)
    not_rendered.subtract(written.not_rendered)
    return Conservation(
        sampled_tokens=tokens,
        trained_tokens=0,
        excluded={Reason.LATE.label: tokens} if tokens else {},
        completions=full.completions - written.completions,
        no_token_ids_calls=full.calls_without_ids - written.calls_without_ids,
        no_token_ids_tokens=None if told is None else told - (written.tokens_without_ids or 0),
        stripped_stop_tokens=full.stripped - written.stripped,
        rendered_completions=full.rendered - written.rendered,
        not_rendered={why: count for why, count in sorted(not_rendered.items()) if count},
        left_out={what: count for what, count in sorted(left_out.items()) if count},
    )


_NUMBERS = (
    "sampled_tokens",
    "trained_tokens",
    "completions",
    "no_token_ids_calls",
    "stripped_stop_tokens",
    "rendered_completions",
)
_BY_LABEL = ("excluded", "not_rendered", "left_out")
_TOLD = "no_token_ids_tokens"


def counts_of(table: Conservation) -> Counter[tuple[str, str]]:
    """A table as counts that can be added and taken away: (field, label) -> number."""
    counts: Counter[tuple[str, str]] = Counter({(name, ""): getattr(table, name) for name in _NUMBERS})
    for name in _BY_LABEL:
        counts.update({(name, label): count for label, count in getattr(table, name).items()})
    if table.no_token_ids_tokens is not None:
        # How often it was told: a sum of which nobody told anything is unknown, not 0.
        counts.update({(_TOLD, ""): table.no_token_ids_tokens, (_TOLD, "told"): 1})
    return counts


def table_of(counts: Counter[tuple[str, str]]) -> Conservation:
    """The inverse of `counts_of`."""
    fields: dict[str, Any] = {name: counts[name, ""] for name in _NUMBERS}
    for name in _BY_LABEL:
        fields[name] = {label: count for (of, label), count in sorted(counts.items()) if of == name and count}
    told = counts[_TOLD, ""] if counts[_TOLD, "told"] else None
    return Conservation(**fields, no_token_ids_tokens=told)


# --- The folder --------------------------------------------------------------------------------------


@contextmanager
def following(
    store: Store,
    project: str,
    out: str | Path,
    spec: Spec,
    *,
    settle_s: float = 0.0,
    unstated_s: float = UNSTATED_S,
    most: int = ENTRY_POSITIONS,
    chat: Chat | None = None,
) -> Iterator[Follower]:
    """A follower into a folder, which goes on where an earlier one has come to.

    Args:
        out: a folder that does not exist, is empty, or follows the same already.
        settle_s: how long a closed group is left after the last of its events that came, in seconds, since
            more may come.
        unstated_s: how long at least where nobody said that an episode has ended: none of it came but its
            parts.
        most: commit positions that one look takes.

    Raises:
        NotEmpty: something else is in the folder.
        InUse: another process follows into it.
        OtherExport: the folder follows another project, or with another spec or tokenizer.
        LogCorrupt, OtherSchema: see `tracestore.shards.log.Log.open`.
        NoTokenizer, NothingToRender, RenderedForRl: see `rendering.source_of`.
    """
    source_of(store, spec, chat)
    folder = Path(os.path.abspath(out))
    _require_ours(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        log = _log(folder, project, spec, chat)
        for path in folder.iterdir():
            if _SHARD.fullmatch(path.name) and path.name not in log.shards:
                path.unlink()  # of a process that was killed before it could write the entry
        yield Follower(
            store, project, log, spec, settle_s=settle_s, unstated_s=unstated_s, most=most, chat=chat
        )


def looks(
    follower: Follower, *, interval_s: float = 1.0, until_idle_s: float | None = None
) -> Iterator[Entry]:
    """Every entry that is written, until nothing has come for a while.

    Args:
        interval_s: how long to wait before the next look where there was nothing new.
        until_idle_s: end once nothing has come for so many seconds, and then leave no closed group for
            later; None: never.
    """
    quiet_since = time.monotonic()
    while True:
        is_last = until_idle_s is not None and time.monotonic() - quiet_since >= until_idle_s
        step = follower.step(is_last=is_last)
        if step.is_news:
            quiet_since = time.monotonic()
        if step.entry is not None:
            yield step.entry
        elif is_last and not step.is_news:
            return
        elif not step.is_more:
            time.sleep(interval_s)


def _require_ours(folder: Path) -> None:
    if not folder.exists() or is_followed(Folder(folder)):
        return
    if not folder.is_dir() or any(path.name not in (_LOCK, LOG_FOLDER) for path in folder.iterdir()):
        raise NotEmpty(path=str(folder), hint="name a new folder, or one that --follow has made")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    # The lock goes with the process, however it ends.
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "end it first, or name another folder"
            raise InUse(path=str(folder), hint=hint) from None
        yield


def _log(folder: Path, project: str, spec: Spec, chat: Chat | None) -> Log:
    header = Header(
        schema_hash=schema_hash(),
        log_id=os.urandom(16).hex(),
        project=project,
        spec=spec.model_dump(mode="json"),
        spec_hash=spec.spec_hash,
        tokenizer_hash=None if chat is None else chat.tokenizer_hash,
        template_hash=None if chat is None else chat.template_hash,
        libraries=dict(Means.here(chat).libraries),
    )
    if not is_followed(Folder(folder)):
        return Log.start(folder, header)
    log = Log.open(folder)
    for name in ("project", "spec_hash", "tokenizer_hash", "template_hash"):
        found, asked = getattr(log.header, name), getattr(header, name)
        if found != asked:
            hint = "name a new folder, or follow with what this one began with"
            raise OtherExport(path=str(folder), what=name, found=found, asked=asked, hint=hint)
    return log
