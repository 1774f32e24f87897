"""What an export is asked for: one frozen model, kept in the manifest.

Which tokens a policy sampled (`rl`): those of a completion whose call names a policy of the spec, or, when
the spec names none, any policy. A call that names no policy counts when it has token ids, its agent is not
declared untrainable, and its model is not declared to be another one than its agent's: only an inference
server of one's own gives ids, and a harness that runs several models says so. As soon as the spec names
policies, a call without one is out.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tracestore.errors import TracestoreError
from tracestore.shards.write import Compression
from tracestore.wire.candidate_set import Treatment
from tracestore.wire.episode import EpisodeStatus

AUXILIARY = ("judge", "verify", "title")
"""Purposes that are not trained unless the spec names them."""

Names = Annotated[tuple[str, ...], Field(min_length=1)]


class BadSpec(TracestoreError):
    """The export spec is not valid."""


class Spec(BaseModel):
    """What is trained, and how it is cut into files. Two equal specs on one snapshot give equal bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: Literal["rl", "sft"] = "rl"
    """rl: what a policy sampled. sft: what any model wrote, with or without logprobs."""
    policies: Names | None = None
    """`rl`: names of the policies whose tokens train; None: any policy."""
    models: Names | None = None
    """`sft`: names of the models whose tokens train; None: any model."""
    purposes: Names | None = None
    """Purposes that train (a call without one acts); None: all but judge, verify and title."""
    splits: Annotated[tuple[Literal["train", "eval", "test"], ...], Field(min_length=1)] = ("train",)
    """Splits that train; an episode that names none is in train."""
    statuses: tuple[EpisodeStatus, ...] = ("ok", "failed", "budget_exhausted", "timeout")
    """How an episode that trains may have ended; one without a status trains. infra_error never does."""
    candidates: Treatment = "shared"
    """Treatment of the candidate sets whose selection names none. `exclude` masks the rejected members; the
    other treatments change credit, not masks."""
    render: bool = False
    """Whether episodes without any recorded token id get those that a chat template gives their text."""
    render_for_rl: bool = False
    """Whether they may in an export for `rl` too, though no policy sampled these ids."""
    keep_recorded: bool = False
    """With `render`: whether episodes with recorded ids train beside the rendered ones. They are left out
    otherwise, since nothing says that they are of the same tokenizer."""
    rewards: Names | None = None
    """Names of the rewards to carry; None: all."""
    max_row_bytes: Annotated[int, Field(ge=1)] = 256 * 1024 * 1024
    """A group whose tokens take more is cut into parts, by episode; an episode is never cut."""
    shard_rows: Annotated[int, Field(ge=1)] = 64
    """Groups per shard file."""
    compression: Compression = "zstd"

    def trains_purpose(self, purpose: str | None) -> bool:
        name = "act" if purpose is None else purpose
        return name in self.purposes if self.purposes is not None else name not in AUXILIARY

    @property
    def spec_hash(self) -> str:
        """sha256 of the canonical JSON, hex."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_spec(path: Path) -> Spec:
    """A spec from a JSON file. Raises BadSpec, naming what is wrong."""
    try:
        return Spec.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadSpec(path=str(path), problem=error.strerror, hint="--spec names a JSON file") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise BadSpec(path=str(path), problem=problems) from error
