from __future__ import annotations

from typing import Literal

from tracestore.wire.base import Count, EpisodeEvent, Id, Ordinal


class ContextEdit(EpisodeEvent):
    """What was replaced by what in an agent's context, by whom and whether it was accepted."""

    kind: Literal["context_edit"] = "context_edit"
    agent_id: Id
    edit: Literal["compaction", "fold", "rewrite", "truncation", "tool_result_clearing"]
    trigger: Literal["rule", "tool_call"] | None = None
    trigger_call_id: Id | None = None
    trigger_tool_call_id: str | None = None
    author: Literal["policy", "other_model", "harness"] | None = None
    """Who wrote the replacement; only a policy's own text trains."""
    author_call_id: Id | None = None
    """The call whose completion is the replacement (the summary)."""
    author_completion: Ordinal | None = None
    before_call_id: Id | None = None
    """Last call that saw the old context."""
    after_call_id: Id | None = None
    """First call that saw the new one."""
    replaced_call_ids: tuple[Id, ...] | None = None
    """Calls whose messages the replacement stands for. None: unknown, which is not everything."""
    kept_call_ids: tuple[Id, ...] | None = None
    """Calls whose messages were sent again after it (the kept tail)."""
    tokens_before: Count | None = None
    tokens_after: Count | None = None
    status: Literal["accepted", "rejected", "cancelled", "failed"] | None = None
    reason: str | None = None
