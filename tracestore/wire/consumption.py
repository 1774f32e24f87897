from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tracestore.wire.base import Count, EpisodeEvent, Id, Ordinal


class Consumption(EpisodeEvent):
    """That a completion was trained: in which sample, shard and optimizer step. Idempotent by its id."""

    kind: Literal["consumption"] = "consumption"
    call_id: Id
    completion: Ordinal = 0
    run: str
    step: Annotated[int, Field(ge=0, lt=2**63)]
    export_hash: str
    """The manifest's hash."""
    shard: str
    sample_id: str
    tokens: Count
    """Trained tokens of the completion in this step."""
