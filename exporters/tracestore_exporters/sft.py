"""A row -> records for supervised training on given tokens: `input_ids` and `labels`, nothing else.

TRL's SFTTrainer and transformers' Trainer take them as they are, and so does a fine-tuning service that reads
tokenised Parquet. A label stands at its token's own index (the model shifts), -100 where nothing is trained.
A label says "do so" of whatever it stands at, so the rejected candidates of an export for another objective,
which credit or a pair would tell from the others, have none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tracestore.errors import TracestoreError
from tracestore.shards.candidates import rejected_completions
from tracestore.shards.reasons import Reason
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
        left_out: told the samples that are in no record, by why, and the rejected candidates without a label.

    Raises:
        WeightsNotCarried: the export's ownership is `tree_mean`.
    """
    if options.ownership != "train_once":
        raise WeightsNotCarried(ownership=options.ownership, hint="export with ownership: train_once")
    if options.objective != "sft":
        row = _without_rejected(row, left_out)
    for record in flat.usable(row, options, left_out):
        labels = np.where(record["loss_mask"], record["input_ids"], np.int32(IGNORED))
        yield {"input_ids": record["input_ids"], "labels": labels}


def _without_rejected(row: Row, left_out: Counter[str]) -> Row:
    """The row with the tokens of its rejected candidates masked."""
    rejected = rejected_completions(row)
    if not rejected:
        return row
    completion_T = np.repeat(row.segments.completion, row.segments.length)
    is_out_T = np.isin(completion_T, list(rejected)) & (row.reason == Reason.TRAINED)
    left_out += Counter(rejected_candidates=len(np.unique(completion_T[is_out_T])))
    reason = np.where(is_out_T, np.uint8(Reason.CANDIDATE_EXCLUDED), row.reason)
    return replace(row, reason=reason)
