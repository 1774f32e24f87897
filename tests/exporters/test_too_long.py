from __future__ import annotations

from typing import Any

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.exporters.planned import planned, reasons
from tracestore.shards.row import Row
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec
from tracestore_exporters.verify import verify_export


def grown() -> list[AnyEvent]:
    """A call of 3 tokens in all, one that goes on from it to 6, and another that does to 8."""
    return [
        make.call("a", [make.user("u")], make.answer("x", ids=[2, 3]), prompt_ids=[1], ordinal=0),
        make.call("b", [make.user("v")], make.answer("y", ids=[5, 6]), prompt_ids=[1, 2, 3, 4], ordinal=1),
        make.call("c", [make.user("w")], make.answer("z", ids=[7] * 4), prompt_ids=[1, 2, 3, 9], ordinal=2),
    ]


def lengths(row: Row) -> dict[str, tuple[int, int, int]]:
    """Sample -> (tokens, those it owns, why it does not train)."""
    return {one.sample_id: (one.num_tokens, one.num_owned, one.reason) for one in row.samples}


def test_a_sample_that_is_too_long_leaves_what_it_shares_to_a_shorter_one() -> None:
    row = planned(grown(), spec=Spec(max_tokens=6))
    assert reasons(row) == {"a": ["trained"] * 2, "b": ["trained"] * 2, "c": ["too_long"] * 4}
    assert lengths(row) == {"b:0": (6, 4, 0), "c:0": (8, 0, 15)}


def test_what_only_samples_hold_that_are_too_long_does_not_train() -> None:
    row = planned(grown(), spec=Spec(max_tokens=5))
    assert reasons(row) == {"a": ["too_long"] * 2, "b": ["too_long"] * 2, "c": ["too_long"] * 4}
    assert row.num_trained == 0


def test_a_cut_trains_what_lies_before_the_limit() -> None:
    row = planned(grown(), spec=Spec(max_tokens=5, beyond_max="cut"))
    # Places 0 to 4 train: prompt 1, [2 3], then 4 or 9, then the first token of b or of c.
    assert reasons(row) == {
        "a": ["trained"] * 2,
        "b": ["trained", "too_long"],
        "c": ["trained"] + ["too_long"] * 3,
    }
    assert lengths(row) == {"b:0": (6, 3, 0), "c:0": (8, 1, 0)}


def test_an_earlier_reason_stands_before_the_length() -> None:
    judged = make.call("j", [make.user("q")], make.answer("r", ids=[8] * 9), prompt_ids=[1], purpose="judge")
    row = planned([*grown(), judged], spec=Spec(max_tokens=6))
    assert set(reasons(row)["j"]) == {"purpose"}


@pytest.mark.parametrize("beyond_max", ["exclude", "cut"])
@pytest.mark.parametrize("max_tokens", [1, 3, 5, 6, 8])
def test_verify_recomputes_what_a_limit_leaves(tmp_path: Any, max_tokens: int, beyond_max: Any) -> None:
    source = MemorySource([make.episode(status="ok"), *grown()])
    spec = Spec(max_tokens=max_tokens, beyond_max=beyond_max)
    manifest = export(source, "p", tmp_path / "out", spec)
    assert manifest.conservation.sampled_tokens == 8
    assert manifest.rows == 1, "what is only too long stays in the shards: another limit may train it"
    assert verify_export(source, "p", tmp_path / "out").findings == []
