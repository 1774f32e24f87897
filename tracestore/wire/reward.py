from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tracestore.wire.base import EventBase, Id, Nanoseconds, Ordinal, Wire

Finest = Literal["tokens", "completion", "candidate", "call", "agent", "episode"]


class RewardTarget(Wire):
    """The finest thing named is scored: token span, completion, candidate, call, agent, episode."""

    episode_id: Id
    agent_id: Id | None = None
    call_id: Id | None = None
    completion: Ordinal | None = None
    candidate_set_id: Id | None = None
    member: Ordinal | None = None
    token_start: Ordinal | None = None
    """Index inside the completion's token ids."""
    token_length: Annotated[int, Field(ge=1, lt=2**31)] | None = None

    @model_validator(mode="after")
    def _finest_is_whole(self) -> Self:
        if (self.candidate_set_id is None) != (self.member is None):
            raise ValueError("a candidate is named by candidate_set_id and member together")
        if (self.token_start is None) != (self.token_length is None):
            raise ValueError("a token span has token_start and token_length")
        if self.token_start is not None and self.completion is None:
            raise ValueError("a token span lies in a completion: name call_id and completion")
        if self.completion is not None and self.call_id is None:
            raise ValueError("a completion is named by call_id and completion")
        return self

    @property
    def finest(self) -> Finest:
        """The finest thing named. A candidate is one answer or agent of several: finer than a call."""
        if self.token_start is not None:
            return "tokens"
        if self.completion is not None:
            return "completion"
        if self.candidate_set_id is not None:
            return "candidate"
        if self.call_id is not None:
            return "call"
        return "episode" if self.agent_id is None else "agent"


class Reward(EventBase):
    """A score of something recorded; several and late ones are allowed, none replaces another."""

    kind: Literal["reward"] = "reward"
    target: RewardTarget
    name: str
    value: float
    weight: float | None = None
    """Share in the composed reward; None leaves it to the export (1). 0: on record, and it grades nothing."""
    scorer: str | None = None
    scorer_version: str | None = None
    at: Nanoseconds | None = None


def counted(value: float, weight: float | None) -> float | None:
    """What a reward adds to the composed one: value times weight (None: 1). None for weight 0.

    Such a reward grades nothing: what has no other is ungraded, not graded 0.
    """
    if weight is None:
        return value
    return None if weight == 0 else value * weight
