from __future__ import annotations

from typing import Literal

from tracestore.wire.base import Id, PhasedEvent, Raw

EpisodeStatus = Literal[
    "ok", "failed", "budget_exhausted", "infra_error", "cancelled", "interrupted", "timeout", "invalid"
]


class Episode(PhasedEvent):
    """One attempt at one task: a tree of agents."""

    kind: Literal["episode"] = "episode"
    group_id: Id | None = None
    """None: an episode on its own, exported as a group of one."""
    task_id: Id | None = None
    task: Raw | None = None
    split: Literal["train", "eval", "test"] | None = None
    """None is unknown and exported as train; eval and test are never trained."""
    status: EpisodeStatus | None = None
    """infra_error is no failure: such an episode leaves the group statistics. budget_exhausted stays in."""
    error: str | None = None
    stop_reason: str | None = None
    forked_from_episode_id: Id | None = None
    forked_from_call_id: Id | None = None
    """The last call of the origin whose history this fork shares."""
    inference_only: bool | None = None
    """True: recorded for reading, never trained."""
