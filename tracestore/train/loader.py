"""Shards -> groups, in a seeded order that can be gone on with at any place.

A group is given whole: where it lies in parts, it waits until the last of them is reached, so that credit is
never given on a piece of it. Which group comes when depends on the seed and the epoch (of an export that goes
on: the entry) alone. So a place in the stream is two numbers, and going on from it reads of the groups before
it nothing but their names.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np

from tracestore.errors import TracestoreError
from tracestore.shards.log import GroupName
from tracestore.shards.manifest import ShardEntry
from tracestore.shards.read import Export, OpenShard
from tracestore.shards.row import Row

Item = TypeVar("Item")


class PartMissing(TracestoreError):
    """An export lacks a part of a group: no credit can be given on the rest."""


class Place(NamedTuple):
    """How far a stream of groups was read; with its seed, all that is needed to go on."""

    epoch: int = 0
    """Of an export that goes on: the number of the entry."""
    groups: int = 0
    """Groups of the epoch that were given, or passed over."""


BEGIN = Place()


@dataclass(frozen=True)
class Group:
    """One group as the loader gives it."""

    name: GroupName
    rows: tuple[tuple[str, Row], ...]
    """(shard file, row), one for each part, in order."""
    after: Place
    """Where to go on behind it."""
    notes: Mapping[str, int]
    """What the loader has counted up to it, see `Loader.notes`."""


@dataclass(frozen=True)
class Reading:
    """Which groups are given, how often, and in which order."""

    seed: int = 0
    epochs: int | None = 1
    """None: without end. An export that goes on has one."""
    replacement: bool = False
    """Draw the groups of a shard with replacement: as many as it has, some of them several times."""
    max_reuse: int | None = None
    """Never give a group more often than this."""
    follow: bool = False
    """Give what each entry of an export that goes on adds, as it comes."""
    idle_s: float | None = None
    """With `follow`: end when nothing has come for so many seconds; None: never, 0: with what there is."""
    poll_s: float = 1.0
    """With `follow`: how often to look."""
    ahead: int = 2
    """Groups that are read before they are asked for, in a thread; 0: none."""


class _Where(NamedTuple):
    """The rows of a group: (shard, place in it), one for each part."""

    name: GroupName
    rows: tuple[tuple[ShardEntry, int], ...]


@dataclass
class Loader:
    """A stream of groups, and what was counted on the way."""

    export: Export
    reading: Reading
    place: Place = BEGIN
    """Where the stream begins."""
    uses: Counter[GroupName] = field(default_factory=Counter)
    """How often each group was given before `place`, for `max_reuse`; counted on from there."""
    notes: Counter[str] = field(default_factory=Counter)
    """Counted on the way: groups_at_reuse_limit, groups_replaced (a later entry has them again, or they were
    deleted)."""

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._checked: set[str] = set()

    def groups(self) -> Generator[Group]:
        """The groups from `place` on. Closing the iterator ends the thread.

        Raises:
            PartMissing: a group lies in parts of which one is missing.
            ShardMissing, ShardCorrupt, OtherSchema: see `tracestore.shards.read`.
            NotAnExport: `follow` of an export that does not go on.
        """
        found = self._followed() if self.reading.follow else self._epochs()
        yield from ahead(found, self.reading.ahead, on_close=self._stop.set)

    def _epochs(self) -> Iterator[Group]:
        first, last = self.place.epoch, self.reading.epochs
        for epoch in itertools.count(first) if last is None else range(first, last):
            given = 0
            for group in self._of(self.export, self.export.manifest.shards, epoch):
                given += 1
                yield group
            if not given and self.place.epoch < epoch:
                return  # nothing is left to give: an epoch without end would only spin

    def _followed(self) -> Iterator[Group]:
        begun = self.place
        after = begun.epoch - 1 if begun.epoch else 0
        news = self.export.follow(
            after=after, poll_s=self.reading.poll_s, idle_s=self.reading.idle_s, stop=self._stop
        )
        for one in news:
            yield from self._of(one.export, one.entry.shards, one.entry.number)

    def _of(self, export: Export, shards: Sequence[ShardEntry], epoch: int) -> Iterator[Group]:
        """The groups of one epoch, or of one entry."""
        rng = np.random.default_rng([self.reading.seed, epoch])
        skip = self.place.groups if epoch == self.place.epoch else 0
        parts: dict[GroupName, dict[int, tuple[ShardEntry, int]]] = {}
        number = 0
        for index in rng.permutation(len(shards)):
            with ExitStack() as stack:
                found = stack.enter_context(self._opened(export, shards[index]))
                if found is None:  # all that was in it is deleted
                    continue
                now, opened = found
                whole = _completed(opened, parts)
                order = rng.integers(len(whole), size=len(whole)) if self.reading.replacement else None
                for which in rng.permutation(len(whole)) if order is None else order:
                    number += 1
                    if number <= skip:
                        continue
                    rows = self._rows(now, whole[which], opened)
                    if rows is not None:
                        yield Group(whole[which].name, rows, Place(epoch, number), dict(self.notes))
        if parts:
            name, those = next(iter(parts.items()))
            raise PartMissing(
                **{name.kind: name.id},
                parts=sorted(those),
                place=export.files.where,
                hint="copy the whole export again",
            )

    def _opened(
        self, export: Export, shard: ShardEntry
    ) -> AbstractContextManager[tuple[Export, OpenShard] | None]:
        check = shard.file not in self._checked
        self._checked.add(shard.file)
        return export.opened_now(shard, check=check)

    def _rows(self, export: Export, where: _Where, opened: OpenShard) -> tuple[tuple[str, Row], ...] | None:
        """The rows of a group, unless it is passed over."""
        if not all(export.is_live(shard, place) for shard, place in where.rows):
            self.notes["groups_replaced"] += 1
            return None
        if self.reading.max_reuse is not None and self.uses[where.name] >= self.reading.max_reuse:
            self.notes["groups_at_reuse_limit"] += 1
            return None
        self.uses[where.name] += 1
        rows = []
        for shard, place in where.rows:
            if shard is opened.shard:
                rows.append((shard.file, opened.row(place)))
            else:  # a part of a group that reaches over the end of a shard
                with export.opened(shard, check=False) as other:
                    rows.append((shard.file, other.row(place)))
        return tuple(rows)


def _completed(opened: OpenShard, parts: dict[GroupName, dict[int, tuple[ShardEntry, int]]]) -> list[_Where]:
    """The groups whose last part that was missing lies in this shard; what is not whole stays in `parts`."""
    whole = []
    for place, (name, part, num_parts) in enumerate(_names(opened)):
        found = parts.setdefault(name, {})
        found[part] = opened.shard, place
        if len(found) == num_parts:
            whole.append(_Where(name, tuple(rows for _, rows in sorted(parts.pop(name).items()))))
    return whole


def _names(opened: OpenShard) -> Iterator[tuple[GroupName, int, int]]:
    """(group, part, number of parts) of each row."""
    rows = opened.values(["group_id", "part", "num_parts"])
    alone = any(row["group_id"] is None for row in rows)
    episodes = opened.values(["episodes"]) if alone else [{"episodes": [{"episode_id": ""}]}] * len(rows)
    for row, of_row in zip(rows, episodes, strict=True):
        yield (
            GroupName.of(row["group_id"], of_row["episodes"][0]["episode_id"]),
            row["part"],
            row["num_parts"],
        )


def ahead(
    items: Iterator[Item], count: int, *, on_close: Callable[[], None] = lambda: None
) -> Iterator[Item]:
    """The same items, up to `count` of them made in a thread before they are asked for.

    What the thread raises is raised here, behind the items that came before it.

    Args:
        on_close: what ends a wait of `items`, called before the thread is waited for.
    """
    if count == 0:
        yield from items
        return
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="tracestore-loader") as thread:
        waiting = deque(thread.submit(next, items, end) for _ in range(count))
        try:
            while (item := waiting.popleft().result()) is not end:
                waiting.append(thread.submit(next, items, end))
                yield item  # type: ignore[misc]
        finally:
            on_close()
            for future in waiting:
                future.cancel()
