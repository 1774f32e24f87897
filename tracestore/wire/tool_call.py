from __future__ import annotations

from typing import Literal

from tracestore.wire.base import Id, Int64, Ordinal, PhasedEvent, Raw


class ToolCall(PhasedEvent):
    """The execution of one tool use of a completion."""

    kind: Literal["tool_call"] = "tool_call"
    episode_id: Id
    call_id: Id
    completion: Ordinal = 0
    tool_call_id: str | None = None
    """The model's own id of the tool use, as in its message; not unique across an episode. Where the harness
    reads tool uses out of text (code between fences), its own name of the use."""
    name: str | None = None
    arguments: str | None = None
    """The argument text as executed; what the model sampled stands in its message, parsable or not."""
    result: Raw | None = None
    status: Literal["ok", "failed", "cancelled", "timeout"] | None = None
    error: str | None = None
    exit_status: Int64 | None = None
