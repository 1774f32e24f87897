"""A store that is a list of events: what the exporter reads of a store, without one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent, episode_id_of
from tracestore.wire.group import Group


@dataclass(frozen=True)
class MemoryGroup:
    group_id: str | None
    episode_ids: tuple[str, ...]
    ended: bool = False


class MemorySource:
    """One project, one snapshot."""

    def __init__(self, events: Iterable[AnyEvent]) -> None:
        self._events = list(events)
        self._by_episode: dict[str, list[AnyEvent]] = defaultdict(list)
        for event in self._events:
            episode_id = episode_id_of(event)
            if episode_id is not None:
                self._by_episode[episode_id].append(event)

    def snapshot(self, project: str) -> int:
        return len(self._events)

    def tombstones(self, project: str, *, snapshot: int) -> tuple[dict[str, Any], ...]:
        return ()

    def groups(self, project: str, *, snapshot: int | None = None) -> Sequence[MemoryGroup]:
        members: dict[str | None, list[str]] = defaultdict(list)
        for episode_id in self._by_episode:
            members[self._group_of(episode_id)].append(episode_id)
        alone = [MemoryGroup(None, (episode_id,)) for episode_id in members.pop(None, [])]
        ended = {event.id for event in self._events if isinstance(event, Group) and event.phase == "end"}
        grouped = [MemoryGroup(id_, tuple(ids), ended=id_ in ended) for id_, ids in members.items()]
        return grouped + alone

    def load_graph(self, project: str, episode_id: str, *, snapshot: int | None = None) -> Graph:
        group_id = self._group_of(episode_id)
        of_group = [event for event in self._events if isinstance(event, Group) and event.id == group_id]
        return build([*of_group, *self._by_episode[episode_id]])

    def training_graphs(
        self, project: str, episode_ids: Sequence[str], *, snapshot: int | None = None
    ) -> list[Graph]:
        return [self.load_graph(project, episode_id, snapshot=snapshot) for episode_id in episode_ids]

    def _group_of(self, episode_id: str) -> str | None:
        episodes = (event for event in self._by_episode[episode_id] if isinstance(event, Episode))
        return next((event.group_id for event in episodes if event.group_id is not None), None)
