"""Samples -> which of them, and which of their tokens, are longer than a spec allows.

A limit never takes a token that trains in a shorter sample too: what several samples share is lost only with
all of them.

    S segments, T tokens of a row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracestore.shards.reasons import Reason
from tracestore.shards.row import Sample, Segments
from tracestore.shards.views import segment_positions
from tracestore_exporters.spec import Spec


def limited(samples: Sequence[Sample], spec: Spec) -> tuple[Sample, ...]:
    """The samples, those that do not train because of their length marked."""
    if spec.max_tokens is None or spec.beyond_max == "cut":
        return tuple(samples)
    too_long = int(Reason.TOO_LONG)
    return tuple(replace(s, reason=too_long) if s.num_tokens > spec.max_tokens else s for s in samples)


def too_long(samples: Sequence[Sample], segments: Segments, spec: Spec) -> np.ndarray:
    """bool [T]: sampled tokens that the limit leaves no sample to train in. `samples` are `limited`."""
    is_sampled_T = np.repeat(segments.completion >= 0, segments.length)
    if spec.max_tokens is None:
        return np.zeros_like(is_sampled_T)
    if spec.beyond_max == "cut":
        offset_S = segment_positions(segments) - segments.start
        position_T = np.arange(len(is_sampled_T)) + np.repeat(offset_S, segments.length)
        is_beyond_T: np.ndarray = is_sampled_T & (position_T >= spec.max_tokens)
        return is_beyond_T
    held = {c for sample in samples if sample.reason == Reason.TRAINED for c in sample.completions}
    is_lost_S = np.asarray([c >= 0 and c not in held for c in segments.completion.tolist()], dtype=bool)
    return np.repeat(is_lost_S, segments.length)
