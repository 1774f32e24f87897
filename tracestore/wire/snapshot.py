from __future__ import annotations

from typing import Literal

from tracestore.wire.base import EpisodeEvent, Id, Ordinal


class Snapshot(EpisodeEvent):
    """Agent memory at one moment."""

    kind: Literal["snapshot"] = "snapshot"
    agent_id: Id | None = None
    hash: str
    """Hash of the memory's bytes (its blob, where it was sent)."""
    parent_hash: str | None = None
    wave: Ordinal | None = None
    commit_order: Ordinal | None = None
    """Place among the commits of one wave."""
    frozen: bool | None = None
