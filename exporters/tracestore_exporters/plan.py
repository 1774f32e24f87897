"""Groups of a snapshot -> which group goes into which shard file, fixed before any of them is written.

So workers may write shards in any order, and a run that goes on where another was killed writes what that
one would have: files, their contents and the manifest stay the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import BaseModel, ConfigDict

import tracestore
from tracestore.graph.model import Graph
from tracestore.shards.manifest import Manifest
from tracestore.shards.schema import schema_hash
from tracestore.wire.episode import Episode
from tracestore.wire.group import Group
from tracestore_exporters.spec import Spec

if TYPE_CHECKING:
    from tracestore.tokens.chat import Chat


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group by its ids."""

    group_id: str | None
    episode_ids: tuple[str, ...]
    ended: bool = False
    """Whether an end event of the group has come."""

    @property
    def order(self) -> tuple[bool, str]:
        """Groups by id, then the episodes on their own by id."""
        return self.group_id is None, self.group_id if self.group_id is not None else self.episode_ids[0]


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """One shard file to be."""

    file: str
    groups: tuple[PlannedGroup, ...]


def shard_plan(groups: Iterable[PlannedGroup], *, shard_rows: int) -> tuple[PlannedShard, ...]:
    """`shard_rows` groups a file, in order of their ids."""
    ordered = sorted(groups, key=lambda group: group.order)
    return tuple(
        PlannedShard(file=f"shard-{number:05d}.arrow", groups=tuple(ordered[start : start + shard_rows]))
        for number, start in enumerate(range(0, len(ordered), shard_rows))
    )


@dataclass(frozen=True, slots=True)
class Means:
    """What the bytes of an export depend on beside the store and the spec."""

    tokenizer_hash: str | None
    template_hash: str | None
    libraries: Mapping[str, str]
    """Versions by name."""
    schema_hash: str

    @classmethod
    def here(cls, chat: Chat | None) -> Means:
        """Those of this process."""
        versions = {"numpy": np.__version__, "pyarrow": pa.__version__, "tracestore": tracestore.__version__}
        return cls(
            tokenizer_hash=None if chat is None else chat.tokenizer_hash,
            template_hash=None if chat is None else chat.template_hash,
            libraries=versions | ({} if chat is None else chat.libraries),
            schema_hash=schema_hash(),
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """What an export will be, all of it: whoever carries it out, and in how many goes."""

    project: str
    snapshot: int
    spec: Spec
    means: Means
    tombstones: tuple[dict[str, Any], ...]
    shards: tuple[PlannedShard, ...]

    @property
    def num_groups(self) -> int:
        return sum(len(shard.groups) for shard in self.shards)

    @property
    def asked(self) -> Asked:
        return Asked.of(self.project, self.snapshot, self.spec, self.means)

    def record(self) -> PlanRecord:
        """What is kept of it while it is carried out."""
        means = self.means
        return _record(self.asked, means.libraries, means.schema_hash, self.tombstones, self.shards)


class Asked(BaseModel):
    """What whoever wants an export says of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    project: str
    snapshot: int
    spec: dict[str, Any]
    tokenizer_hash: str | None
    template_hash: str | None

    @classmethod
    def of(cls, project: str, snapshot: int, spec: Spec, means: Means) -> Asked:
        return cls(
            project=project,
            snapshot=snapshot,
            spec=spec.model_dump(mode="json"),
            tokenizer_hash=means.tokenizer_hash,
            template_hash=means.template_hash,
        )

    def is_of(self, manifest: Manifest) -> bool:
        """Whether an export is this one."""
        return all(getattr(self, name) == getattr(manifest, name) for name in Asked.model_fields)

    def differences(self, other: Asked) -> list[str]:
        """Names of what is asked for otherwise; the fields of the spec by their own."""
        names = [name for name in Asked.model_fields if name != "spec"]
        fields = sorted(self.spec.keys() | other.spec.keys())
        return [
            *(name for name in names if getattr(self, name) != getattr(other, name)),
            *(name for name in fields if self.spec.get(name) != other.spec.get(name)),
        ]


class PlanRecord(BaseModel):
    """A plan in a file beside the shards that are finished: what was asked for, and a hash of it all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["tracestore-plan"] = "tracestore-plan"
    asked: Asked
    plan_hash: str
    """sha256, hex, of everything that the bytes of the export depend on, the ids of its groups included."""


def _record(
    asked: Asked,
    libraries: Mapping[str, str],
    schema_hash: str,
    tombstones: Sequence[Mapping[str, Any]],
    shards: Iterable[PlannedShard],
) -> PlanRecord:
    rest = [dict(libraries), schema_hash, tombstones]
    digest = hashlib.sha256(_canonical([asked.model_dump(mode="json"), rest]))
    for shard in shards:
        groups = [(group.group_id, group.episode_ids, group.ended) for group in shard.groups]
        digest.update(_canonical([shard.file, groups]))
    return PlanRecord(asked=asked, plan_hash=digest.hexdigest())


def record_of(manifest: Manifest, shards: Iterable[PlannedShard]) -> PlanRecord:
    """The plan that a manifest says it is of, with the groups of the store in their shards."""
    asked = Asked(**{name: getattr(manifest, name) for name in Asked.model_fields})
    return _record(asked, manifest.libraries, manifest.schema_hash, manifest.tombstones, shards)


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def largest_first(shards: Iterable[PlannedShard]) -> list[PlannedShard]:
    """Shards as several workers take them, so that none begins a large one last: by episodes."""
    return sorted(shards, key=lambda one: (-sum(len(group.episode_ids) for group in one.groups), one.file))


def closed_by(group: Group | None, graphs: Sequence[Graph], *, ended: bool = False) -> str | None:
    """What closed a group, or None while it is open.

    A group is closed by its end event, by as many ended episodes as its declared size, or, when nothing was
    posted of the group itself or it states neither, once every episode in it has ended. A group posted
    whole ends only if it says when or why: without that it declares the group. An episode has ended when it
    has a status or its event is not just a start; one of which only the parts were posted counts as ended,
    since its harness marks no ends.

    Args:
        ended: an end event of the group has come; merged with its start it looks like a whole one.
    """
    num_ended = sum(has_ended(graph.episode) for graph in graphs)
    if group is not None:
        if group.closed_by is not None:
            return group.closed_by
        if ended or group.phase == "end" or (group.phase == "whole" and group.ended_at is not None):
            return "event"
        if group.size is not None:
            return "size" if num_ended >= group.size else None
        if group.phase == "start":
            return None
    return "episodes" if num_ended == len(graphs) else None


def has_ended(episode: Episode | None) -> bool:
    """Whether an episode will not go on, as far as its events say."""
    return episode is None or episode.status is not None or episode.phase != "start"
