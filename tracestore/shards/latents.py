"""Latents that agents handed on, with what is needed to compute them again: the file between a store and
`train-links`.

    latents.arrow     one row an episode: its calls in order, what each read, and the tensors
    latents.json      counts, what was left out and why, sha256 of the other

A shard has token ids and no place for what stands between them, and the trainer reads no store: so latents
have a file of their own, which exporter and trainer both know. Tensors are kept as the bytes that were
recorded, with their dtype, because numpy has no bfloat16 and a rounded latent is another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracestore.errors import TracestoreError

SCHEMA_VERSION = 1
DATA_FILE = "latents.arrow"
MANIFEST_FILE = "latents.json"
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""Bytes of a number, by the dtypes that latents are read in."""


class NotLatents(TracestoreError):
    """This is no folder that `tracestore export --format latents` wrote"""

    exit_code = 2


class LatentsCorrupt(TracestoreError):
    """The latents are not what their manifest says"""


@dataclass(frozen=True)
class Tensor:
    """Recorded bytes of an array, row by row."""

    dtype: str
    """One of `ITEM_BYTES`."""
    shape: tuple[int, ...]
    data: bytes

    @property
    def is_whole(self) -> bool:
        """Whether there are as many bytes as dtype and shape say."""
        return len(self.data) == ITEM_BYTES.get(self.dtype, 0) * prod(self.shape)


@dataclass(frozen=True)
class Read:
    """A latent that a call read beside its prompt."""

    step: int
    """Which step of the episode computed it."""
    position: int
    """Prompt token before which it stands; as many as the prompt has for behind it."""
    link: str | None
    """sha256 of the link that carried it here; None: not recorded."""


@dataclass(frozen=True)
class Step:
    """One call of an episode."""

    call_id: str
    agent: str
    """Name of the agent, else its id."""
    round: int
    """From 0: which call of its agent it is."""
    model: str | None
    """Hash of the agent's frozen weights, as recorded; None: not recorded."""
    prompt_ids: tuple[int, ...]
    reads: Read | None
    """None: the prompt alone."""
    latent: Tensor | None
    """[m + 1, d]: last-layer hidden states of the prompt's end and of m latent steps; None: it decoded."""
    latent_hash: str | None
    """sha256 of the latent's bytes."""
    token_ids: tuple[int, ...] | None
    """What it decoded; None: it handed a latent on."""


@dataclass(frozen=True)
class LatentEpisode:
    """One episode: steps in an order in which each comes after what it reads."""

    episode_id: str
    group_id: str | None
    task: Any
    """As the harness states it, of the episode, else of its group; None: unknown."""
    steps: tuple[Step, ...]

    @property
    def transfers(self) -> int:
        """How often a latent was handed on: 2 agents in n rounds, the last of which decodes: 2n - 1."""
        return sum(step.reads is not None for step in self.steps)


@dataclass(frozen=True)
class LatentsManifest:
    """What was written, from what, and what was left out."""

    project: str
    snapshot: int
    episodes: int
    transfers: int
    sha256: str
    """Of `latents.arrow`."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Episodes that are not in the file, by why."""
    schema_version: int = SCHEMA_VERSION


_TENSOR = pa.struct(
    [
        pa.field("dtype", pa.string()),
        pa.field("shape", pa.list_(pa.int64())),
        pa.field("data", pa.large_binary()),
    ]
)
_READ = pa.struct(
    [
        pa.field("step", pa.int32()),
        pa.field("position", pa.int32()),
        pa.field("link", pa.string()),
    ]
)
_STEP = pa.struct(
    [
        pa.field("call_id", pa.string()),
        pa.field("agent", pa.string()),
        pa.field("round", pa.int32()),
        pa.field("model", pa.string()),
        pa.field("prompt_ids", pa.list_(pa.int32())),
        pa.field("reads", _READ),
        pa.field("latent", _TENSOR),
        pa.field("latent_hash", pa.string()),
        pa.field("token_ids", pa.list_(pa.int32())),
    ]
)
SCHEMA = pa.schema(
    [
        pa.field("episode_id", pa.string()),
        pa.field("group_id", pa.string()),
        pa.field("task", pa.large_string()),
        pa.field("steps", pa.list_(_STEP)),
    ]
)


def write_latents(
    folder: Path,
    episodes: Sequence[LatentEpisode],
    *,
    project: str,
    snapshot: int,
    left_out: Mapping[str, int] | None = None,
) -> LatentsManifest:
    """Writes both files into an empty folder, the manifest last."""
    path = folder / DATA_FILE
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for episode in episodes:
            row = asdict(episode) | {"task": None if episode.task is None else json.dumps(episode.task)}
            writer.write_batch(pa.RecordBatch.from_pylist([row], schema=SCHEMA))
    manifest = LatentsManifest(
        project=project,
        snapshot=snapshot,
        episodes=len(episodes),
        transfers=sum(episode.transfers for episode in episodes),
        sha256=sha256(path.read_bytes()).hexdigest(),
        left_out=dict(left_out or {}),
    )
    (folder / MANIFEST_FILE).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
    return manifest


def read_latents(folder: Path) -> tuple[LatentsManifest, list[LatentEpisode]]:
    """What `write_latents` wrote.

    Raises:
        NotLatents: the folder is another one, or of another version.
        LatentsCorrupt: the data are not those of the manifest.
    """
    try:
        told = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
        data = (folder / DATA_FILE).read_bytes()
    except (OSError, ValueError) as error:
        hint = "name the folder of `tracestore export --format latents --out FOLDER`"
        raise NotLatents(folder=str(folder), problem=str(error), hint=hint) from error
    if told.get("schema_version") != SCHEMA_VERSION:
        hint = "export the latents again"
        raise NotLatents(
            folder=str(folder), found=told.get("schema_version"), expected=SCHEMA_VERSION, hint=hint
        )
    found = sha256(data).hexdigest()
    if found != told["sha256"]:
        raise LatentsCorrupt(file=DATA_FILE, expected=told["sha256"], found=found, hint="copy them again")
    rows = pa.ipc.open_file(pa.BufferReader(data)).read_all().to_pylist()
    return LatentsManifest(**told), [_episode(row) for row in rows]


def _episode(row: Mapping[str, Any]) -> LatentEpisode:
    steps = tuple(_step(step) for step in row["steps"])
    task = None if row["task"] is None else json.loads(row["task"])
    return LatentEpisode(**{**row, "task": task, "steps": steps})


def _step(row: Mapping[str, Any]) -> Step:
    latent, reads, ids = row["latent"], row["reads"], row["token_ids"]
    return Step(
        **{
            **row,
            "prompt_ids": tuple(row["prompt_ids"]),
            "reads": None if reads is None else Read(**reads),
            "latent": None if latent is None else Tensor(**{**latent, "shape": tuple(latent["shape"])}),
            "token_ids": None if ids is None else tuple(ids),
        }
    )
