"""Flat records -> the arrays of a verl `DataProto`, with an advantage per token.

    B samples, P tokens of the longest prompt, R tokens of the longest response (see `padded`)

`DataProto.from_dict(tensors={name: torch.from_numpy(a) for name, a in batch.tensors.items()},
non_tensors=batch.non_tensors)` makes one (verl 0.9). verl's `response_mask` is what the loss counts, so it is
the mask of trained tokens. With `loss_agg_mode: token-mean` over the whole batch the loss is the mean over
trained tokens, as ours is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracestore.errors import TracestoreError
from tracestore_exporters.padded import one_temperature, padded


class NothingTrains(TracestoreError):
    """No record has a token to train."""


@dataclass(frozen=True)
class Batch:
    """What `DataProto.from_dict` takes."""

    tensors: dict[str, np.ndarray]
    """prompts [B, P], responses [B, R]; input_ids, attention_mask, position_ids [B, P + R]; response_mask
    [B, R], all int64. old_log_probs, rollout_log_probs, advantages, returns: float32 [B, R]."""
    non_tensors: dict[str, np.ndarray]
    """object [B]: `uid` (the group, or an episode on its own), `episode_uid`, `sample_id`, `reward`."""
    meta_info: dict[str, Any]
    """`temperature`: what verl divides the logits by."""


def batch(records: Sequence[Mapping[str, Any]], *, pad_token_id: int) -> Batch:
    """The records that train, in order, as one batch.

    Args:
        records: rows of `tracestore convert --to flat --advantages RULE`, as lists or arrays.

    Raises:
        NothingTrains: none of them does.
        NoAdvantages, MissingLogprob: see `padded`.
        SeveralTemperatures: the trained tokens were sampled at several.
    """
    rows = [record for record in records if any(record["loss_mask"])]
    if not rows:
        raise NothingTrains(records=len(records), hint="the manifest's conservation table says why")
    made = padded(rows, pad_token_id=pad_token_id)
    attention = np.concatenate([made.prompt_mask, made.response_mask], axis=1)
    return Batch(
        tensors={
            "prompts": made.prompt_ids,
            "responses": made.response_ids,
            "input_ids": np.concatenate([made.prompt_ids, made.response_ids], axis=1),
            "attention_mask": attention,
            "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0),
            "response_mask": made.loss_mask,
            "old_log_probs": made.logprobs,
            "rollout_log_probs": made.logprobs.copy(),
            "advantages": made.advantages,
            "returns": made.advantages.copy(),
        },
        non_tensors={
            "uid": _objects([row["group_id"] or row["episode_id"] for row in rows]),
            **{of: _objects([row[name] for row in rows]) for of, name in _NAMES.items()},
        },
        meta_info={"temperature": one_temperature(made)},
    )


_NAMES = {"episode_uid": "episode_id", "sample_id": "sample_id", "reward": "reward"}


def _objects(values: Sequence[Any]) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made
