from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tracestore.wire.base import Id, PhasedEvent, Raw


class Group(PhasedEvent):
    """The episodes that share one task prompt; closed by its end, by its declared size, or by a timeout."""

    kind: Literal["group"] = "group"
    task_id: Id | None = None
    task: Raw | None = None
    """The task as the environment states it."""
    size: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    """Episodes the group will have; reaching it closes the group."""
    closed_by: Literal["event", "size", "timeout"] | None = None
    """Why the sender closed the group, on its end."""
