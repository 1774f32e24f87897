from __future__ import annotations

from typing import Literal

from tracestore.wire.base import Id, Ordinal, PhasedEvent, Raw

AgentStatus = Literal[
    "ok", "failed", "budget_exhausted", "infra_error", "cancelled", "interrupted", "timeout"
]


class Agent(PhasedEvent):
    """One agent instance inside an episode, with the call, completion and tool call that spawned it."""

    kind: Literal["agent"] = "agent"
    episode_id: Id
    parent_agent_id: Id | None = None
    spawned_by_call_id: Id | None = None
    spawned_by_completion: Ordinal | None = None
    spawned_by_tool_call_id: str | None = None
    """The model's own id of the tool call, as in its message; or that of a `tool_call` event."""
    role: str | None = None
    """main, subagent, branch, sub_lm, harness, judge, curriculum, actor, verifier, ..."""
    name: str | None = None
    depth: Ordinal | None = None
    """0 for a root."""
    stage: Ordinal | None = None
    """Stage of the parent in which it was spawned, where the harness has stages (PARL)."""
    scope_prompt: Raw | None = None
    """What it was asked to do."""
    model: str | None = None
    checkpoint: str | None = None
    trainable: bool | None = None
    """False: its tokens are never trained. None is unknown; policy-sampled tokens then count as trainable."""
    score: float | None = None
    """Its own score, apart from the episode's reward."""
    return_message: Raw | None = None
    """What it handed back to its parent (the finding)."""
    finding_used: bool | None = None
    """Whether the parent used the finding, where the harness knows."""
    snapshot_id: Id | None = None
    """Memory it started from."""
    status: AgentStatus | None = None
    error: str | None = None
