"""A recording and a fork of it -> the events that begin and end the fork.

A fork is compared with the forks of the same origin and with nothing else, so these are a group of their own
(`ORIGIN/forks`), which ends with the last of them. It has the task and the split of its origin: what is
set aside for evaluation is not trained by way of a fork. Its agents are the origin's, each with an id of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracestore.graph.merge import Merged, merge
from tracestore.importers.items import Item, made, raw, safe_id
from tracestore.replay.live import Fork
from tracestore.wire.agent import Agent
from tracestore.wire.episode import Episode
from tracestore.wire.events import AnyEvent
from tracestore.wire.group import Group


@dataclass(frozen=True)
class Origin:
    """What is known of an episode, but for its calls."""

    episode_id: str
    episode: Episode | None
    """None: only its parts were recorded."""
    group: Group | None
    agents: dict[str, Agent]


def origin_of(episode_id: str, events: Iterable[AnyEvent]) -> Origin:
    """What the events of an episode say of it."""
    found: Merged = merge(one for one in events if one.kind in ("episode", "group", "agent"))
    return Origin(
        episode_id=episode_id,
        episode=found.of("episode").get(episode_id),
        group=next(iter(found.of("group").values()), None),
        agents=found.of("agent"),
    )


def agent_in(fork: Fork, origin: str, agent_id: str) -> str:
    """The id of an origin's agent in a fork, where ids are unique in a project.

    Example: e1/planner in the fork f -> f/planner
    """
    return safe_id(f"{fork.episode_id}/{agent_id.removeprefix(f'{origin}/')}")


def start(fork: Fork, origin: Origin, *, meta: dict[str, Any]) -> Item:
    """The event that begins a fork.

    Args:
        meta: what else is known of it.
    """
    episode = origin.episode
    return made(
        Episode,
        id=fork.episode_id,
        phase="start",
        group_id=safe_id(f"{origin.episode_id}/forks"),
        task_id=_task(origin),
        task=None if episode is None else episode.task,
        split=None if episode is None else episode.split,
        inference_only=None if episode is None else episode.inference_only,
        forked_from_episode_id=origin.episode_id,
        forked_from_call_id=fork.after,
        started_at=fork.started_at,
        meta=raw({"replay": meta}),
    )


def end(fork: Fork, *, ended_at: int) -> Item:
    """The event that ends a fork; how it ended is for whoever scores it to say.

    Args:
        ended_at: UTC nanoseconds.
    """
    return made(Episode, id=fork.episode_id, phase="end", ended_at=ended_at)


def _task(origin: Origin) -> str:
    """What an export sets an episode aside for evaluation by (`Spec.validation`): a fork is set aside with
    its origin, also where that names no task."""
    episode, group = origin.episode, origin.group
    known: Sequence[str | None] = (
        None if episode is None else episode.task_id,
        None if group is None else group.task_id,
        None if episode is None else episode.group_id,
    )
    return next((one for one in known if one is not None), origin.episode_id)


def agents(fork: Fork, origin: Origin, agent_id: str | None) -> Iterator[Item]:
    """The start of one of the origin's agents in a fork, and of those above it."""
    seen: set[str] = set()
    while agent_id is not None and agent_id not in seen and agent_id in origin.agents:
        seen.add(agent_id)
        agent = origin.agents[agent_id]
        parent = agent.parent_agent_id
        yield made(
            Agent,
            id=agent_in(fork, origin.episode_id, agent_id),
            phase="start",
            episode_id=fork.episode_id,
            role=agent.role,
            name=agent.name,
            depth=agent.depth,
            stage=agent.stage,
            parent_agent_id=None if parent is None else agent_in(fork, origin.episode_id, parent),
            scope_prompt=agent.scope_prompt,
            trainable=agent.trainable,
            meta=raw({"replay": {"agent_id": agent_id}}),
        )
        agent_id = parent
