from __future__ import annotations

from typing import Literal

from tracestore.wire.base import EpisodeEvent, Id


class Gap(EpisodeEvent):
    """Something known to be missing, with its cause; a gap that is stated is not a loss."""

    kind: Literal["gap"] = "gap"
    agent_id: Id | None = None
    call_id: Id | None = None
    cause: str
    """unrecorded_stream, no_token_ids, missing_prompt, ..."""
    detail: str | None = None
