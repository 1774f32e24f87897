"""The export benchmark counts what it says: a token once, however many calls read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from tests.factories import answer, call, episode
from tracestore.wire.encode import encode
from tracestore.wire.events import AnyEvent

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def _frame(*events: AnyEvent) -> bytes:
    # The workload names the kind before all else.
    told = [json.loads(encode(event, arrays="base64")) for event in events]
    lines = [json.dumps({"v": 1, "kind": one["kind"], **one}, separators=(",", ":")).encode() for one in told]
    return zstandard.ZstdCompressor().compress(b"\n".join(lines))


def test_a_token_is_counted_once_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from export import distinct_tokens  # type: ignore[import-not-found]

    one = _frame(
        episode("e", group_id="g"),
        call("c0", [], answer("a", ids=[3]), prompt_ids=[1, 2]),
        call("c1", [], answer("b", ids=[5]), parent="c0", delta=True, prompt_ids_delta=[4]),
    )
    two = _frame(
        episode("f", group_id="g"),
        call("d0", [], answer("a", ids=[6]), episode="f", prompt_ids=[1, 2]),
    )
    other = _frame(
        episode("h", group_id="other"),
        call("h0", [], answer("a", ids=[3]), episode="h", prompt_ids=[1, 2]),
    )
    assert distinct_tokens([one]) == 5  # 1 2, then 3, 4, 5
    assert distinct_tokens([one, two]) == 6  # and 6 after the same 1 2
    assert distinct_tokens([one, two, other]) == 9  # 1 2 3 again
