"""What a credit rule gave, in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock, patch

from tracestore.store import Store, credit
from tracestore.store.credit import Given, Kept, Rule


def given(episode: str = "e", agent: str = "main", sample: str = "c0:0", **fields: Any) -> Given:
    """What a branch got: a half on each of two tokens."""
    numbers = dict.fromkeys(("advantage_min", "advantage_mean", "advantage_max"), 0.5)
    usual = {"cause": "root", "reward": 1.0, "tokens": 2, "notes": None}
    named = {"episode_id": episode, "agent_id": agent, "sample_id": sample}
    return Given(**{**named, **numbers, **usual, **fields})


def rule(name: str = "shared", **fields: Any) -> Rule:
    return Rule(
        **{"export_hash": "h", "rows_hash": "h", "rule": name, "reward_terms": None, "step": 0, **fields}
    )


def kept(store: Store, project: str, rule: Rule, given: Sequence[Given]) -> Kept:
    """Kept at a time that is the same in every store."""
    with patch.object(credit, "time", Mock(time_ns=lambda: 5)):
        return credit.keep(store, project, rule, given)
