"""Spans and the shape that all models share."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tracestore.wire.base import Raw
from tracestore.wire.events import EVENT, KINDS, MODELS
from tracestore.wire.gap import Gap
from tracestore.wire.reward import Reward, RewardTarget


def test_a_span_of_a_python_value_is_ascii_and_keeps_lone_surrogates() -> None:
    assert Raw.of({"a": ["é", "\ud83d"]}) == rb'{"a":["\u00e9","\ud83d"]}'
    assert Raw.of(Raw(b"[ 1 ]")) == b"[ 1 ]"


def test_a_span_can_be_looked_at_whatever_its_numbers() -> None:
    assert Raw(b'{"a": [1, 1e400]}').value() == {"a": [1, float("inf")]}
    assert Raw(b"[" + b"7" * 5000 + b"]").value() == [float("inf")]


def test_events_are_frozen_and_closed() -> None:
    event = Gap(id="g", episode_id="e", cause="x")
    with pytest.raises(ValidationError, match="frozen"):
        event.cause = "y"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        Gap(id="g", episode_id="e", cause="x", other=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_is_a_finite_number(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Reward(id="r", target=RewardTarget(episode_id="e"), name="x", value=value)


def test_every_kind_has_one_model_and_a_json_schema() -> None:
    assert [MODELS[kind].model_fields["kind"].default for kind in KINDS] == list(KINDS)
    assert set(EVENT.json_schema()["discriminator"]["mapping"]) == set(KINDS)
