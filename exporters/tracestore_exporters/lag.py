"""Log and store -> how far a trainer is behind what was followed, and the follower behind what has come.

A harness that makes rollouts faster than they are trained, or a trainer that runs out of them, can wait for
these numbers to change.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

from tracestore.graph.build import build
from tracestore.shards.log import EMPTY, GroupName, Log, LoggedGroup
from tracestore.shards.reasons import Reason
from tracestore.store import query
from tracestore.store.changes import changes, consumed, groups_with
from tracestore.store.load import load_entity
from tracestore.store.query import GroupRef
from tracestore.store.store import Store
from tracestore.wire.events import AnyEvent
from tracestore_exporters.follow import IGNORED, name_of, unwritten
from tracestore_exporters.plan import PlannedGroup, closed_by


@dataclass(frozen=True, slots=True)
class Untrained:
    """What of a log waits to be trained."""

    unconsumed_groups: int
    """Groups of which nothing was trained yet, in whatever revision."""
    unconsumed_tokens: int
    """Tokens to train of them."""
    oldest_version: int | None
    """Policy versions of which something waits to be trained; None: nothing does, or it is unknown."""
    newest_version: int | None


@dataclass(frozen=True, slots=True)
class Lag(Untrained):
    """What waits to be trained, and what waits to be followed."""

    manifest_hash: str
    """By which the export is registered and served."""
    groups: int
    """Groups of the log of which something trains."""
    late_tokens: int
    """Sampled tokens that came after the rows of their group, and are in none."""
    waiting_groups: int
    """Groups that are closed in the store and not in the log."""
    snapshot: int
    """Commit position of the store."""
    followed: int
    """Commit position of the log's last entry. The follower may have looked at later ones, and found nothing
    to write."""
    runs: dict[str, Untrained]
    """What waits to be trained by each training run that trained any of it, by the name of the run."""

    @property
    def behind(self) -> int:
        """Commit positions between the two, those of events that make no rows included."""
        return self.snapshot - self.followed

    def facts(self) -> dict[str, Any]:
        """All of it as a JSON value, the same for the command and the service."""
        return asdict(self) | {"behind": self.behind}


def lag(store: Store, project: str, log: Log, *, run: str | None = None) -> Lag:
    """How far behind trainer and follower are.

    Args:
        run: count what this training run has trained; None: any.
    """
    live = [group for group in log.groups.values() if group.conservation.trained_tokens]
    by_run = consumed(store, project, (one for group in live for one in group.episode_ids))
    used = set[str]().union(*by_run.values()) if run is None else by_run.get(run, set())
    waiting, snapshot = _waiting(store, project, log)
    table = EMPTY if log.last is None else log.last.conservation
    return Lag(
        **asdict(_untrained(live, used)),
        manifest_hash=log.first_hash,
        groups=len(live),
        late_tokens=table.excluded.get(Reason.LATE.label, 0),
        waiting_groups=waiting,
        snapshot=snapshot,
        followed=log.snapshot,
        runs={name: _untrained(live, by_run[name]) for name in sorted(by_run)},
    )


def _untrained(live: Sequence[LoggedGroup], used: AbstractSet[str]) -> Untrained:
    """
    Args:
        used: episodes of which something was trained.
    """
    left = [group for group in live if used.isdisjoint(group.episode_ids)]
    oldest = [group.oldest_version for group in left if group.oldest_version is not None]
    newest = [group.newest_version for group in left if group.newest_version is not None]
    return Untrained(
        unconsumed_groups=len(left),
        unconsumed_tokens=sum(group.conservation.trained_tokens for group in left),
        oldest_version=min(oldest, default=None),
        newest_version=max(newest, default=None),
    )


def _waiting(store: Store, project: str, log: Log) -> tuple[int, int]:
    """Groups that are closed and not in the log, and the snapshot at which they are."""
    found = changes(store, project, after=log.snapshot, ignored=IGNORED)
    left: tuple[GroupName, ...] = () if log.last is None else log.last.waiting
    refs = groups_with(
        store,
        project,
        episode_ids={*found.kinds, *(name.id for name in left if name.kind == "episode")},
        group_ids={*found.groups, *(name.id for name in left if name.kind == "group")},
        snapshot=found.snapshot,
    )
    named = log.header.spec.get("groups")
    here = [ref for ref in refs if named is None or name_of(ref).id in named]
    return sum(_is_waiting(store, project, ref, log) for ref in here), found.snapshot


def _is_waiting(store: Store, project: str, ref: GroupRef, log: Log) -> bool:
    group = unwritten(ref, log)
    if group is None or name_of(ref) in log.groups:
        return False
    return _closed_by(store, project, group) is not None


def _closed_by(store: Store, project: str, group: PlannedGroup) -> str | None:
    """What `plan.closed_by` says, from the events of the group and its episodes alone."""
    with store.read() as connection:
        project_id = query.find_project(connection, project)
        assert project_id is not None, "its groups were just listed"

        def event(kind: str, id_: str) -> list[AnyEvent]:
            found = load_entity(connection, project_id, kind, id_)
            return [] if found is None else [found]

        of_group = [] if group.group_id is None else event("group", group.group_id)
        graphs = [build([*of_group, *event("episode", one)]) for one in group.episode_ids]
    return closed_by(graphs[0].group, graphs, ended=group.ended)
