from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from tracestore.wire.arrays import Logprobs, TokenIds
from tracestore.wire.base import EpisodeEvent, Id, Int64, Ordinal, Raw, Wire


class VersionRun(Wire):
    """Which policy version sampled a run of tokens."""

    start: Ordinal
    """Index of the first token of the run inside the completion."""
    name: str
    version: Int64


class CompletionFields(Wire):
    """One answer of a call."""

    message: Raw | None = None
    """The assistant message as the server gave it. None: nothing came back."""
    finish_reason: str | None = None
    """stop, length, tool_calls, ...; length is a complete call."""
    token_ids: TokenIds | None = None
    """Sampled ids, the stop token included. None: the server gave none; []: a completion of 0 tokens."""
    logprobs: Logprobs | None = None
    """As long as `token_ids`."""
    top_logprobs: Raw | None = None
    versions: tuple[VersionRun, ...] | None = None
    """Runs in order of `start`, the first at 0; None: the call's policy sampled all of it."""
    partial: bool | None = None
    """True: an aborted stream, this is what had come."""
    stop_token_stripped: bool | None = None
    """True: the server sampled a stop token and left it out of `token_ids`."""

    @model_validator(mode="after")
    def _arrays_agree(self) -> Self:
        if self.logprobs is not None:
            if self.token_ids is None:
                raise ValueError("logprobs without token_ids: post the ids they belong to")
            if len(self.logprobs) != len(self.token_ids):
                raise ValueError(
                    f"{len(self.logprobs)} logprobs for {len(self.token_ids)} token_ids: one each per token"
                )
        if self.versions is not None:
            starts = [run.start for run in self.versions]
            if not starts or starts[0] != 0 or starts != sorted(set(starts)):
                raise ValueError("versions start at 0 and rise")
        return self


class CompletionBody(CompletionFields):
    """A completion inside its call; its index is its place in the call's `completions`."""


class Completion(EpisodeEvent, CompletionFields):
    """A completion posted on its own, for n > 1 answers that come at different times."""

    kind: Literal["completion"] = "completion"
    call_id: Id
    index: Ordinal
    non_finite: bool | None = None
    """True declares that NaN, Infinity and -Infinity may stand bare in this event."""
