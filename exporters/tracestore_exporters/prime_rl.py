"""A row -> prime-rl's `TrainingSample`, one JSON object a line.

Fields by the names of `prime_rl.transport.types` (version of 2026: one flat sequence, and advantages per
token and loss), with which `TrainingSample(**line)` builds one; `env_name` is the project. A logprob that is
not recorded is 0.0 there, which stands outside the mask alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from tracestore.shards.row import Row
from tracestore_exporters import flat

LOSS = "rl"
"""prime-rl's name of its policy-gradient loss."""


def lines(row: Row, options: flat.Options, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Each sample with a token to train, as plain JSON values.

    Args:
        left_out: told the samples that are in no line, by why.

    Raises:
        MissingLogprob: one token of a mask has none.
    """
    for record in flat.usable(row, options, left_out):
        mask_N = record["loss_mask"]
        if bool(np.isnan(record["logprobs"][mask_N]).any()):
            raise flat.MissingLogprob(sample_id=record["sample_id"], hint="export with objective rl")
        mask = mask_N.tolist()
        yield {
            "token_ids": record["input_ids"].tolist(),
            "mask": mask,
            "logprobs": np.nan_to_num(record["logprobs"], nan=0.0, neginf=0.0, posinf=0.0).tolist(),
            "temperatures": flat.temperatures(record).tolist(),
            "env_name": row.project,
            "advantages": [{"loss": LOSS, "values": record["advantages"].tolist(), "mask": mask}],
            "reward": record["reward"],
        }
