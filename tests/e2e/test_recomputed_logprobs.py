"""The model that sampled a trace says of it what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import run_verb
from tests.sample_traces.traces import trace_path
from tracestore.shards.read import open_export
from tracestore.train import smollm2
from tracestore.train.engine import Engine
from tracestore.train.recompute import recompute


@pytest.fixture(scope="module")
def model() -> Any:
    try:
        return smollm2.load_model()
    except smollm2.ModelMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", ["linear", "subagents"])
def test_recorded_logprobs_come_back_from_one_forward_pass(
    name: str, model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db = f"sqlite:///{tmp_path / 'store.db'}"
    code, imported = run_verb(capsys, "import", "--db", db, trace_path(name))
    assert code == 0
    code, facts = run_verb(capsys, "export", "--db", db, "--out", tmp_path / "export")
    assert code == 0
    assert facts["sampled_tokens"] == facts["trained_tokens"] == imported["sampled_tokens"]
    drift = recompute(Engine(model), open_export(tmp_path / "export").rows(), micro_batch_tokens=1_024)
    assert (drift.compared_tokens, drift.not_comparable_tokens) == (imported["sampled_tokens"], 0)
    assert drift.max_logprob_diff is not None
    assert drift.max_logprob_diff <= 1e-3
