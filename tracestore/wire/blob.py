from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tracestore.wire.base import Count, EpisodeEvent, Id, Ordinal


class Blob(EpisodeEvent):
    """A reference from something recorded to a large or binary payload, named by its hash."""

    kind: Literal["blob"] = "blob"
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """sha256 of the payload, hex."""
    role: str | None = None
    """image, latent, routed_experts, memory, workspace, ...

    Of latents that agents hand on: `latent` where a call reads one, `latent_output` where a call computed it,
    `link` the weights that carried it into what the call reads."""
    media_type: str | None = None
    dtype: str | None = None
    """Where it is a tensor: float32, bfloat16, uint8, ..."""
    shape: tuple[Count, ...] | None = None
    size: Count | None = None
    """Bytes."""
    agent_id: Id | None = None
    """Whose it is. A `latent` that a call reads, and its `link`, are of the agent that computed it."""
    call_id: Id | None = None
    completion: Ordinal | None = None
    position: Ordinal | None = None
    """Token index in the call's prompt ++ completion at which it stands (an image, a latent)."""
