"""One optimizer step by every rule."""

from __future__ import annotations

import math

import pytest

from tests.train.credit.agents import Agent, agents_row, say
from tests.train.exports import export_of
from tests.train.models import tiny
from tracestore.shards.read import Export
from tracestore.train.credit import RULES
from tracestore.train.loop import Settings, train

TOLD = {
    "pkpo": "pkpo:k=2",
    "parl": "parl:anneal_steps=10",
    "mem1": "mem1:critic=zero",
    "compaction-rl": "compaction-rl:critic=zero",
}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """A success that delegated and compacted, and a failure that did not; every fact is said."""
    made = agents_row(
        [
            Agent(0, chains=((2, 1), (2,)), purposes={1: "summarize"}, tools={0: False}),
            Agent(0, parent=0, fields={"score": 1.0, "finding_used": True}),
            Agent(0, parent=0, fields={"score": 0.0, "finding_used": False}),
            Agent(1, tools={0: True}),
        ],
        rewards=[1, 0],
        said=[say("in_scope", 1, agent=1), say("in_scope", 0, agent=2)],
    )
    return export_of([made], tmp_path_factory.mktemp("trains") / "x")


@pytest.mark.parametrize("name", RULES)
def test_a_step_is_trained(name: str, export: Export) -> None:
    settings = Settings(credit=TOLD.get(name, name), reward_terms={"length": -0.01}, steps=1)
    [metrics] = train(tiny("llama"), export, settings=settings).metrics
    # 5 + 1 + 1 + 1 sampled tokens; what a rule says nothing of is in no denominator
    assert metrics.trained_tokens == (6 if name in ("parl", "tree-grpo", "treerl") else 8)
    assert math.isfinite(metrics.loss)
    assert metrics.grad_norm > 0
