from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from tracestore.wire.arrays import TokenIds
from tracestore.wire.base import Count, Id, Int64, Nanoseconds, Ordinal, PhasedEvent, Raw, Wire
from tracestore.wire.completion import CompletionBody

Dialect = Literal["openai_chat", "openai_responses", "anthropic_messages", "text"]


class Policy(Wire):
    """Which weights answered, at dispatch."""

    name: str
    version: Int64 | None = None


class Usage(Wire):
    prompt_tokens: Count | None = None
    """Tokens the server read, cached ones included."""
    cached_tokens: Count | None = None
    """Part of prompt_tokens served from cache; None when the provider does not say, which is not 0."""
    cache_write_tokens: Count | None = None
    """Part of prompt_tokens that the server wrote to its cache, where it bills that apart."""
    completion_tokens: Count | None = None
    """Tokens the server sampled over all completions, reasoning included."""
    reasoning_tokens: Count | None = None
    """Part of completion_tokens."""
    cost_usd: float | None = None


class Attempt(Wire):
    """One try of the same call; a retry is not another call."""

    started_at: Nanoseconds | None = None
    ended_at: Nanoseconds | None = None
    status_code: Int64 | None = None
    error: str | None = None


class CallError(Wire):
    type: str | None = None
    message: str | None = None
    status_code: Int64 | None = None


class Call(PhasedEvent):
    """One model call: the exact request, and what came back."""

    kind: Literal["call"] = "call"
    episode_id: Id
    agent_id: Id
    ordinal: Ordinal | None = None
    """Place among the calls of its agent; None: unknown (never guessed from clocks)."""
    purpose: str | None = None
    """act, summarize, select, judge, verify, title, ..."""
    model: str | None = None
    policy: Policy | None = None
    """None: not sampled by a policy of ours (an outside model)."""
    provider_id: str | None = None
    """The provider's id of the response: data, never a key."""
    endpoint: str | None = None
    dialect: Dialect = "openai_chat"
    request: Raw | None = None
    """As sent: a JSON object with `messages`, `tools` and sampling parameters, kept byte for byte."""
    context: Literal["whole", "delta"] = "whole"
    """`delta`: the request's messages follow the parent's context and completion and do not repeat them."""
    parent_call_id: Id | None = None
    """The call this one continues. Required for `delta`."""
    parent_completion: Ordinal | None = None
    """Which completion of the parent is continued; required when the parent has several."""
    prompt_token_ids: TokenIds | None = None
    """Ids the server read. None: unknown."""
    prompt_token_ids_delta: TokenIds | None = None
    """Instead of the whole: the ids after the parent's prompt and completion ids."""
    logprobs_are: Literal["raw", "processed"] | None = None
    """raw: before temperature and top-p/k; processed: after them."""
    non_finite: bool | None = None
    """True declares that NaN, Infinity and -Infinity may stand bare in this event."""
    completions: tuple[CompletionBody, ...] | None = None
    """Answers, n >= 1; None: none yet (or posted as `completion` events)."""
    usage: Usage | None = None
    attempts: tuple[Attempt, ...] | None = None
    status: Literal["ok", "failed", "aborted"] | None = None
    error: CallError | None = None
    first_token_at: Nanoseconds | None = None

    @model_validator(mode="after")
    def _parent_named(self) -> Self:
        if self.phase != "end" and self.context == "delta" and self.parent_call_id is None:
            raise ValueError("context 'delta' needs parent_call_id: the call whose context it extends")
        if self.prompt_token_ids_delta is not None and self.phase != "end" and self.parent_call_id is None:
            raise ValueError("prompt_token_ids_delta needs parent_call_id")
        if self.prompt_token_ids is not None and self.prompt_token_ids_delta is not None:
            raise ValueError("post prompt_token_ids or prompt_token_ids_delta, not both")
        if self.parent_completion is not None and self.parent_call_id is None:
            raise ValueError("parent_completion needs parent_call_id")
        if self.parent_call_id is not None and self.parent_call_id == self.id:
            raise ValueError("a call cannot be its own parent")
        return self
