from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.train.models import VOCAB, tiny
from tests.train.rows import episodes_of_one_call, random_row
from tracestore.shards.row import Row
from tracestore.shards.views import flattened
from tracestore.train.engine import Engine
from tracestore.train.recompute import recompute

MODEL = tiny("llama", attention="sdpa")


def as_sampled(made: Row, *, temperature_of: dict[int, float] | None = None) -> Row:
    """The row with the logprobs that the model itself gives, one sample at a time."""
    logprobs = np.zeros(len(made.token_ids))
    for index in range(len(made.samples)):
        flat = flattened(made, index)
        ids = torch.as_tensor(flat.token_ids.astype(np.int64))
        with torch.no_grad():
            logits = MODEL(input_ids=ids[None]).logits[0, :-1].double()
        scale = torch.tensor([(temperature_of or {}).get(c, 1.0) for c in flat.completion[1:].tolist()])
        taken = torch.log_softmax(logits / scale[:, None], -1).gather(-1, ids[1:, None])[:, 0]
        logprobs[flat.token_index[1:]] = taken.numpy()
    return replace(made, logprobs=np.where(made.has_logprob, logprobs, 0.0))


def test_a_model_recomputes_what_it_sampled() -> None:
    rows = []
    for seed in range(6):
        made = random_row(seed, vocab=VOCAB)
        scales = {i: c.temperature for i, c in enumerate(made.calls) if c.logprobs_are == "processed"}
        rows.append(as_sampled(made, temperature_of={i: t for i, t in scales.items() if t is not None}))
    seen: list[int] = []
    drift = recompute(Engine(MODEL), rows, micro_batch_tokens=100, on_row=seen.append)
    assert drift.max_logprob_diff is not None
    assert drift.max_logprob_diff < 1e-5
    assert seen == [len(row.token_ids) for row in rows]
    sampled = sum(
        int(np.count_nonzero(row.has_logprob)) - int(np.count_nonzero(row.reason == 2)) for row in rows
    )
    assert drift.compared_tokens == sampled


def test_the_largest_difference_is_named() -> None:
    made = as_sampled(episodes_of_one_call([1, 0]))
    assert made.logprobs is not None
    logprobs = made.logprobs.copy()
    logprobs[5] -= 0.25
    drift = recompute(Engine(MODEL), [replace(made, logprobs=logprobs)], micro_batch_tokens=100)
    assert drift.max_logprob_diff == pytest.approx(0.25, abs=1e-4)
    assert drift.worst is not None
    assert (drift.worst.call_id, drift.worst.completion, drift.worst.token) == ("call-1", 0, 1)


def test_what_top_p_has_renormalised_is_counted_and_not_compared() -> None:
    processed = {"logprobs_are": "processed", "temperature": 1.0, "top_p": 0.5}
    made = as_sampled(episodes_of_one_call([1, 0], call={1: processed}))
    drift = recompute(Engine(MODEL), [made], micro_batch_tokens=100)
    assert (drift.compared_tokens, drift.not_comparable_tokens) == (2, 2)


def test_without_recorded_logprobs_the_difference_is_unknown() -> None:
    made = replace(episodes_of_one_call([1]), logprobs=None, has_logprob=np.zeros(4, dtype=bool))
    drift = recompute(Engine(MODEL), [made], micro_batch_tokens=100)
    assert (drift.max_logprob_diff, drift.compared_tokens) == (None, 0)
