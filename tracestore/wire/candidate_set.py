from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tracestore.wire.base import EpisodeEvent, Id, Ordinal, Wire

Treatment = Literal["shared", "negative", "runner_up", "pairs", "exclude"]
"""What the exporter does with the candidates' own tokens; None leaves it to the export."""


class Member(Wire):
    """One sampled alternative: a completion, or all that an agent did."""

    call_id: Id | None = None
    completion: Ordinal = 0
    agent_id: Id | None = None
    score: float | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if (self.call_id is None) == (self.agent_id is None):
            raise ValueError("a member names a call_id (and completion) or an agent_id")
        return self


class CandidateSet(EpisodeEvent):
    """Sampled alternatives at one point. Equal members are still several."""

    kind: Literal["candidate_set"] = "candidate_set"
    agent_id: Id | None = None
    generator: str | None = None
    members: Annotated[tuple[Member, ...], Field(min_length=1)]


class MemberScore(Wire):
    member: Ordinal
    """Index into the set's members."""
    score: float


class CandidateSelection(EpisodeEvent):
    """Which members were chosen, by whom; may come later than the set, and more than once.

    Several selections of one set each choose: a member is rejected only if none of them chose it. Where
    they name different treatments, that of the last by id holds.
    """

    kind: Literal["candidate_selection"] = "candidate_selection"
    candidate_set_id: Id
    selector: Literal["policy", "search", "judge", "human"] | None = None
    selector_version: str | None = None
    selector_call_id: Id | None = None
    """The call that chose, when a model did; a policy's choice is sampled and trains."""
    selected: tuple[Ordinal, ...]
    """Indexes into the set's members; () rejects them all."""
    continued: tuple[Ordinal, ...] | None = None
    """Members that later calls build on, where that differs from `selected`."""
    scores: tuple[MemberScore, ...] | None = None
    treatment: Treatment | None = None
    reason: str | None = None
