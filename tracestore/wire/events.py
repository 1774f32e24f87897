"""The one union of everything a harness may post."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, TypeAdapter

from tracestore.wire.agent import Agent
from tracestore.wire.blob import Blob
from tracestore.wire.call import Call
from tracestore.wire.candidate_set import CandidateSelection, CandidateSet
from tracestore.wire.completion import Completion
from tracestore.wire.consumption import Consumption
from tracestore.wire.context_edit import ContextEdit
from tracestore.wire.episode import Episode
from tracestore.wire.gap import Gap
from tracestore.wire.group import Group
from tracestore.wire.reward import Reward
from tracestore.wire.snapshot import Snapshot
from tracestore.wire.tool_call import ToolCall

AnyEvent = (
    Group
    | Episode
    | Agent
    | Call
    | Completion
    | ToolCall
    | ContextEdit
    | CandidateSet
    | CandidateSelection
    | Reward
    | Gap
    | Snapshot
    | Blob
    | Consumption
)
Event = Annotated[AnyEvent, Field(discriminator="kind")]
EVENT: TypeAdapter[AnyEvent] = TypeAdapter(Event)

MODELS: dict[str, type[AnyEvent]] = {model.model_fields["kind"].default: model for model in AnyEvent.__args__}
KINDS = tuple(MODELS)


def phase_of(event: AnyEvent) -> str:
    """`start`, `end` or `whole`; kinds without phases are whole."""
    return getattr(event, "phase", "whole")


def revision_of(event: AnyEvent) -> int:
    """The revision of an event: the higher holds, and one that states none is 0."""
    return event.revision or 0


def episode_id_of(event: AnyEvent) -> str | None:
    """The episode an event belongs to; None for a group."""
    if isinstance(event, Group):
        return None
    if isinstance(event, Episode):
        return event.id
    if isinstance(event, Reward):
        return event.target.episode_id
    return event.episode_id
