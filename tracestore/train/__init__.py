"""Shards -> rows -> credit -> loss -> weights. The only place with torch; imports shards only."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracestore.train.own_loop import MicroBatch as MicroBatch
    from tracestore.train.own_loop import batches as batches
    from tracestore.train.own_loop import padded_batches as padded_batches
    from tracestore.train.transformers import RecordedTrainer as RecordedTrainer

_WHERE = {
    "MicroBatch": "own_loop",
    "batches": "own_loop",
    "padded_batches": "own_loop",
    "RecordedTrainer": "transformers",
}


def __getattr__(name: str) -> Any:
    # Late: what asks for no tensor loads no torch.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
