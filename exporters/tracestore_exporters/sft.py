"""A row -> records for supervised training on given tokens: `input_ids` and `labels`, nothing else.

TRL's SFTTrainer and transformers' Trainer take them as they are, and so does a fine-tuning service that reads
tokenised Parquet. A label stands at its token's own index (the model shifts), -100 where nothing is trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.shards.row import Row
from tracestore_exporters import flat

IGNORED = -100
SCHEMA = pa.schema(
    [
        pa.field("input_ids", pa.list_(pa.field("element", pa.int32()))),
        pa.field("labels", pa.list_(pa.field("element", pa.int32()))),
    ]
)


class WeightsNotCarried(TracestoreError):
    """The export weighs tokens that several samples share, and the format has no place for a weight."""

    exit_code = 2


def records(row: Row, options: flat.Options, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Each sample with a token to train.

    Args:
        left_out: told the samples that are in no record, by why.

    Raises:
        WeightsNotCarried: the export's ownership is `tree_mean`.
    """
    if options.ownership != "train_once":
        raise WeightsNotCarried(ownership=options.ownership, hint="export with ownership: train_once")
    for record in flat.usable(row, options, left_out):
        labels = np.where(record["loss_mask"], record["input_ids"], np.int32(IGNORED))
        yield {"input_ids": record["input_ids"], "labels": labels}
