"""Flat records -> one padded batch: prompts to the left, the rest to the right, an advantage per token.

    B samples, P tokens of the longest prompt, R tokens of the longest response

The prompt of a sample is what stands before its first trained token, padded on the left. The response is the
rest, padded on the right; tool results and other agents' tokens in it are attended to and not trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracestore.errors import TracestoreError
from tracestore_exporters.flat import MissingLogprob, NoAdvantages, temperatures


class SeveralTemperatures(TracestoreError):
    """The trained tokens of a batch were sampled at several temperatures."""


@dataclass(frozen=True)
class Padded:
    """A batch. Values outside the mask they belong to are 0, token ids the pad token's."""

    prompt_ids: np.ndarray
    """int64 [B, P]."""
    prompt_mask: np.ndarray
    """int64 [B, P], 0 where padded."""
    response_ids: np.ndarray
    """int64 [B, R]."""
    response_mask: np.ndarray
    """int64 [B, R], 0 where padded."""
    loss_mask: np.ndarray
    """int64 [B, R], 1 where trained."""
    logprobs: np.ndarray
    """float32 [B, R], as recorded, of the trained tokens."""
    advantages: np.ndarray
    """float32 [B, R]."""
    temperatures: np.ndarray
    """float64 [B, R], what logits are divided by; 1 where padded."""


def padded(records: Sequence[Mapping[str, Any]], *, pad_token_id: int) -> Padded:
    """The records as a batch, in order.

    Args:
        records: rows of `tracestore convert --to flat --advantages RULE`, as lists or arrays; at least one.

    Raises:
        NoAdvantages: the records were made without a rule.
        MissingLogprob: a trained token has none.
    """
    rows = [_Row(record) for record in records]
    width, length = max(row.first for row in rows), max(len(row.ids) - row.first for row in rows)
    ids = np.full((len(rows), width + length), pad_token_id, dtype=np.int64)
    attention = np.zeros_like(ids)
    mask = np.zeros((len(rows), length), dtype=np.int64)
    values: dict[str, np.ndarray] = {
        name: np.zeros((len(rows), length), dtype=np.float32) for name in ("logprobs", "advantages")
    }
    values["temperatures"] = np.ones((len(rows), length))
    for place, row in enumerate(rows):
        whole = slice(width - row.first, width - row.first + len(row.ids))
        ids[place, whole] = row.ids
        attention[place, whole] = 1
        mask[place, : len(row.ids) - row.first] = row.mask[row.first :]
        for name, target in values.items():
            target[place, : len(row.ids) - row.first] = row.values[name][row.first :]
    return Padded(
        prompt_ids=ids[:, :width],
        prompt_mask=attention[:, :width],
        response_ids=ids[:, width:],
        response_mask=attention[:, width:],
        loss_mask=mask,
        **values,
    )


def one_temperature(batch: Padded) -> float:
    """What the logits of every trained token are divided by, for a trainer that has one number for all.

    Raises:
        SeveralTemperatures: they were sampled at several.
    """
    found = np.unique(batch.temperatures[batch.loss_mask == 1]).tolist()
    if len(found) > 1:
        raise SeveralTemperatures(temperatures=found, hint="put samples of one temperature into a batch")
    return float(found[0]) if found else 1.0


class _Row:
    def __init__(self, record: Mapping[str, Any]) -> None:
        if record["advantages"] is None:
            raise NoAdvantages(
                sample_id=record["sample_id"], hint="tracestore convert EXPORT --to flat --advantages RULE"
            )
        self.ids = np.asarray(record["input_ids"], dtype=np.int64)
        self.mask = np.asarray(record["loss_mask"], dtype=bool)
        # A first token is never trained: nothing stands before it.
        self.first = max(1, int(self.mask.argmax()))
        logprobs = np.asarray(record["logprobs"], dtype=np.float64)  # None becomes NaN
        if bool(np.isnan(logprobs[self.mask]).any()):
            raise MissingLogprob(sample_id=record["sample_id"], hint="export with objective rl")
        self.values = {
            "logprobs": np.where(self.mask, logprobs, 0.0),
            "advantages": np.asarray(record["advantages"], dtype=np.float64),
            "temperatures": temperatures(record),
        }
