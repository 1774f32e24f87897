"""The model that sampled a trace says of it what was recorded, and its first step has ratios of 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.commands import run_verb
from tests.sample_traces.traces import NAMES, trace_path
from tracestore.train import smollm2
from tracestore.train.engine import Engine
from tracestore.train.own_loop import steps
from tracestore.train.step import recorded_diff


@pytest.fixture(scope="module")
def model() -> Any:
    try:
        return smollm2.load_model()
    except smollm2.ModelMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", NAMES)
def test_recorded_logprobs_come_back_from_one_forward_pass_over_each_trace(
    name: str, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = f"sqlite:///{tmp_path / 'store.db'}"
    code, imported = run_verb(capsys, "import", "--db", db, trace_path(name))
    assert code == 0
    code, facts = run_verb(capsys, "export", "--db", db, "--out", tmp_path / "export")
    assert code == 0
    assert facts["sampled_tokens"] == facts["trained_tokens"] == imported["sampled_tokens"]
    engine = Engine(model)
    diffs, ratios = [], []
    with torch.no_grad():
        for step in steps(tmp_path / "export", micro_batch_tokens=1_024):
            for units in step.plan.micro_batches:
                for pack, logprob_N in engine.passes(units):
                    diffs.append(recorded_diff(pack, logprob_N))
                    ratios.append((logprob_N.double() - pack.old_logprob_N).exp())
    assert not engine.reasons
    # Every sampled token was compared, and the step trains every one of them.
    assert len(torch.cat(diffs)) == len(torch.cat(ratios)) == imported["sampled_tokens"]
    assert torch.cat(diffs).max() <= 1e-3
    assert (torch.cat(ratios) - 1.0).abs().max() <= 1.001e-3  # e^.001 - 1
