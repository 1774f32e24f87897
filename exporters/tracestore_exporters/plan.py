"""Groups of a snapshot -> which group goes into which shard file, fixed before any of them is written.

So workers may write shards in any order: files, their contents and the manifest stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracestore.graph.model import Graph
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group by its ids."""

    group_id: str | None
    episode_ids: tuple[str, ...]
    ended: bool = False
    """Whether an end event of the group has come."""

    @property
    def order(self) -> tuple[bool, str]:
        """Groups by id, then the episodes on their own by id."""
        return self.group_id is None, self.group_id if self.group_id is not None else self.episode_ids[0]


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard file to be."""

    file: str
    groups: tuple[PlannedGroup, ...]


def shard_plan(groups: Iterable[PlannedGroup], *, shard_rows: int) -> tuple[PlannedShard, ...]:
    """`shard_rows` groups a file, in order of their ids."""
    ordered = sorted(groups, key=lambda group: group.order)
    return tuple(
        PlannedShard(file=f"shard-{number:05d}.arrow", groups=tuple(ordered[start : start + shard_rows]))
        for number, start in enumerate(range(0, len(ordered), shard_rows))
    )


def closed_by(group: Group | None, graphs: Sequence[Graph], *, ended: bool = False) -> str | None:
    """What closed a group, or None while it is open.

    A group is closed by its end event, by as many ended episodes as its declared size, or, when nothing was
    posted of the group itself or it states neither, once every episode in it has ended. A group posted
    whole ends only if it says when or why: without that it declares the group. An episode has ended when it
    has a status or its event is not just a start; one of which only the parts were posted counts as ended,
    since its harness marks no ends.

    Args:
        ended: an end event of the group has come; merged with its start it looks like a whole one.
    """
    num_ended = sum(has_ended(graph.episode) for graph in graphs)
    if group is not None:
        if group.closed_by is not None:
            return group.closed_by
        if ended or group.phase == "end" or (group.phase == "whole" and group.ended_at is not None):
            return "event"
        if group.size is not None:
            return "size" if num_ended >= group.size else None
        if group.phase == "start":
            return None
    return "episodes" if num_ended == len(graphs) else None


def has_ended(episode: Episode | None) -> bool:
    """Whether an episode will not go on, as far as its events say."""
    return episode is None or episode.status is not None or episode.phase != "start"
