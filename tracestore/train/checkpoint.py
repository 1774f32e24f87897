"""Model, optimizer and the place in the data -> one folder that transformers loads, whole or not at all.

What a run needs to go on as if it had not stopped: weights, the optimizer's state and the schedule's, the
place of the loader and how often groups were used, what was counted, and old logprobs that an earlier state
of the model gave.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from tracestore.errors import TracestoreError
from tracestore.shards.durable import fsync_folder
from tracestore.train.lora import has_lora, save_lora
from tracestore.train.ranks import ALONE, Ranks
from tracestore.train.sharding import full_parameters

CHECKPOINT_FOLDER = "checkpoint"
CRITIC_FOLDER = "critic"
OPTIMIZER_FILE = "optimizer.pt"
STATE_FILE = "trainer.json"
OLD_LOGPROBS_FILE = "old_logprobs.safetensors"
_TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "chat_template*",
    "added_tokens.json",
)


class NoCheckpoint(TracestoreError):
    """The folder holds no checkpoint to go on from."""

    exit_code = 2


class OtherRun(TracestoreError):
    """The checkpoint is of a run with other settings, or of another export."""

    exit_code = 2


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stood."""

    folder: Path
    state: Mapping[str, Any]
    """What `save_checkpoint` was given."""
    optimizer: Mapping[str, Any]
    old_logprobs: Mapping[str, np.ndarray]

    def require(self, **wanted: Any) -> None:
        """Raises OtherRun, naming what differs, unless the state says the same."""
        mine = json.loads(json.dumps(wanted))
        other = {name: self.state.get(name) for name, value in mine.items() if self.state.get(name) != value}
        if other:
            raise OtherRun(
                checkpoint=str(self.folder),
                **{name: _difference(other[name], mine[name]) for name in other},
                hint="go on with what the run began with, or begin a new one in another folder",
            )


def save_checkpoint(
    out: Path,
    *,
    model: Any,
    optimizer: Mapping[str, Any],
    state: Mapping[str, Any],
    critic: Any = None,
    old_logprobs: Mapping[str, np.ndarray] | None = None,
    tokenizer_from: Path | None = None,
    ranks: Ranks = ALONE,
) -> Path:
    """Weights as safetensors, optimizer state, `state` as JSON; an older checkpoint there is replaced.

    Of a model with adapters, these are the weights.

    A run that is killed at any moment leaves the older one or this one, never a part.

    Args:
        optimizer: what is to be stored of optimizer and schedule, for `torch.save`.
        critic: a second model, in a folder of its own inside; None: there is none.
        tokenizer_from: folder whose tokenizer files are copied, so that the checkpoint can be served.
        ranks: that hold the model in pieces; all of them call, the first one writes.
    """
    whole = ranks.size == 1 and not has_lora(model)
    weights = None if whole else full_parameters(model, keep=ranks.is_first, trained_only=has_lora(model))
    of_critic = None
    if critic is not None and ranks.size > 1:
        of_critic = full_parameters(critic, keep=ranks.is_first)
    if ranks.is_first:
        _write(
            out / CHECKPOINT_FOLDER,
            model=model,
            weights=weights,
            optimizer=optimizer,
            state=state,
            critic=critic,
            critic_weights=of_critic,
            old_logprobs=old_logprobs,
            tokenizer_from=tokenizer_from,
        )
    return ranks.from_first(lambda: out / CHECKPOINT_FOLDER)


def _write(
    folder: Path,
    *,
    model: Any,
    weights: Mapping[str, torch.Tensor] | None,
    optimizer: Mapping[str, Any],
    state: Mapping[str, Any],
    critic: Any,
    critic_weights: Mapping[str, torch.Tensor] | None,
    old_logprobs: Mapping[str, np.ndarray] | None,
    tokenizer_from: Path | None,
) -> None:
    with replaced(folder, optimizer=optimizer, state=state) as partial:
        if has_lora(model):
            save_lora(model, partial, weights or {})
        else:
            model.save_pretrained(partial, safe_serialization=True, state_dict=weights)
        if critic is not None:
            critic.save_pretrained(
                partial / CRITIC_FOLDER, safe_serialization=True, state_dict=critic_weights
            )
            _sync(partial / CRITIC_FOLDER)
        if old_logprobs:
            save_file(dict(old_logprobs), partial / OLD_LOGPROBS_FILE)
        if tokenizer_from is not None:
            for pattern in _TOKENIZER_FILES:
                for file in sorted(tokenizer_from.glob(pattern)):
                    shutil.copy(file, partial / file.name)


@contextmanager
def replaced(folder: Path, *, optimizer: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[Path]:
    """A folder to write weights into. At the end of the block optimizer and state join them, and it takes the
    name of the checkpoint, in place of the older one."""
    partial, old = _partial(folder), _old(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    torch.save(dict(optimizer), partial / OPTIMIZER_FILE)
    (partial / STATE_FILE).write_text(json.dumps(dict(state), indent=1) + "\n", encoding="utf-8")
    _sync(partial)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(partial, folder)
    fsync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def checkpoint_in(out: Path) -> Checkpoint:
    """The checkpoint of a run's folder.

    Raises:
        NoCheckpoint: there is none, or it was written before a run could go on.
    """
    folder = CHECKPOINT_FOLDER
    at = next((at for at in (out / folder, _old(out / folder)) if (at / STATE_FILE).is_file()), None)
    if at is None:
        raise NoCheckpoint(path=str(out), hint="name the folder that the run was given as --out")
    old = at / OLD_LOGPROBS_FILE
    return Checkpoint(
        folder=at,
        state=json.loads((at / STATE_FILE).read_text(encoding="utf-8")),
        optimizer=torch.load(at / OPTIMIZER_FILE, weights_only=True),
        old_logprobs=load_file(old) if old.is_file() else {},
    )


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def _old(folder: Path) -> Path:
    """Where the older one lies while the new one takes its place."""
    return folder.with_name(f".{folder.name}.old")


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    fsync_folder(folder)


def _difference(theirs: Any, mine: Any) -> str:
    if isinstance(theirs, dict) and isinstance(mine, dict):
        names = sorted(name for name in theirs.keys() | mine.keys() if theirs.get(name) != mine.get(name))
        return ", ".join(f"{name} {theirs.get(name)!r} there, {mine.get(name)!r} here" for name in names)
    return f"{theirs!r} there, {mine!r} here"
