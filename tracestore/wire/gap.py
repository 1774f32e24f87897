from __future__ import annotations

from typing import Final, Literal

from tracestore.wire.base import EpisodeEvent, Id

STALE_OBSERVATION: Final = "stale_observation"
"""Cause where a call read what an environment had answered to something else than was sampled before: what it
would have answered is missing."""


class Gap(EpisodeEvent):
    """Something known to be missing, with its cause; a gap that is stated is not a loss."""

    kind: Literal["gap"] = "gap"
    agent_id: Id | None = None
    call_id: Id | None = None
    cause: str
    """unrecorded_stream, no_token_ids, missing_prompt, stale_observation, ..."""
    detail: str | None = None
