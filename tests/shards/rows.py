"""Rows as an exporter could have made them, for tests of the file contract."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tracestore.shards import row as rows
from tracestore.shards.row import Row, Segments

TINY = {
    "project": "p",
    "group_id": "g",
    "task_id": None,
    "part": 0,
    "num_parts": 1,
    "closed_by": "event",
}


def tiny_row(**fields: Any) -> Row:
    """Prompt [7, 8], answers [1, 2] and [1, 3] by one call, the first of them continued: 5 trained tokens.

    [7 8] - [1 2] - [9] - [4]      samples (0,1,2,3) and (0,4)
          - [1 3]
    """
    reason = np.asarray([1, 1, 0, 0, 1, 0, 0, 0], np.uint8)
    logprobs = np.where(reason == 0, -0.5, 0).astype(np.float32)
    made: dict[str, Any] = {
        **TINY,
        "token_ids": np.asarray([7, 8, 1, 2, 9, 4, 1, 3], np.int32),
        "logprobs": logprobs,
        "has_logprob": reason == 0,
        "reason": reason,
        "segments": Segments(
            parent=np.asarray([-1, 0, 1, 2, 0], np.int32),
            start=np.asarray([0, 2, 4, 5, 6], np.int64),
            length=np.asarray([2, 2, 1, 1, 2], np.int32),
            completion=np.asarray([-1, 0, -1, 2, 1], np.int32),
        ),
        "episodes": (rows.EpisodeEntry("e", "ok", None, None, None, 0, True),),
        "agents": (agent_entry("main", 0),),
        "calls": (call_entry("c0"), call_entry("c1")),
        "completions": (completion_entry(0, 0, 2), completion_entry(0, 1, 2), completion_entry(1, 0, 1)),
        "policy_runs": (rows.PolicyRun(2, 2, "policy", 1), rows.PolicyRun(5, 3, "policy", None)),
        "samples": (
            rows.Sample("c1:0", 0, 0, (0, 1, 2, 3), (0, 2), "root", 6, 3),
            rows.Sample("c0:1", 0, 0, (0, 4), (1,), "root", 4, 2),
        ),
    }
    return Row(**(made | fields))


def agent_entry(agent_id: str, episode: int) -> rows.AgentEntry:
    return rows.AgentEntry(
        agent_id, episode, None, "main", 0, None, None, None, True, 0.5, "ok", None, None, None, None
    )


def call_entry(call_id: str) -> rows.CallEntry:
    return rows.CallEntry(
        call_id, 0, 0, 0, None, "m", "policy", 1, "ok", "raw", 0.7, None, 40, '{"top_k":40}', None, "none"
    )


def completion_entry(call: int, index: int, num_tokens: int | None) -> rows.CompletionEntry:
    return rows.CompletionEntry(call, index, "stop", None, None, num_tokens)


_NAMES = st.text(alphabet="aé\x00\U0001d11e", max_size=3)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_I32 = st.integers(-(2**31), 2**31 - 1)
_I64 = st.integers(-(2**63), 2**63 - 1)
_F64 = st.floats(allow_nan=False)
_MEMBERS = st.lists(
    st.builds(
        rows.MemberEntry,
        _maybe(_I32),
        _maybe(_I32),
        _maybe(_F64),
        _maybe(st.booleans()),
        _maybe(st.booleans()),
    ),
    max_size=3,
).map(tuple)


@st.composite
def any_rows(draw: st.DrawFn) -> Row:
    """Any row that the schema can hold, sense or not."""
    size = draw(st.integers(0, 12))
    dtype = draw(st.sampled_from([None, np.float32, np.float64]))
    has = np.asarray(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    logprobs = None
    if dtype is None:
        has = np.zeros(size, bool)
    else:
        drawn = draw(st.lists(st.floats(-50, 0, width=32), min_size=size, max_size=size))
        logprobs = np.where(has, np.asarray(drawn, dtype), 0).astype(dtype)
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=size, max_size=size))
    reasons = draw(st.lists(st.integers(0, 255), min_size=size, max_size=size))
    num = draw(st.integers(0, 3))
    ints = [np.asarray(draw(st.lists(st.integers(-1, 9), min_size=num, max_size=num))) for _ in range(4)]
    text = _maybe(_NAMES)
    edit = st.builds(
        rows.EditEntry,
        *(_NAMES, _I32, _I32, _NAMES, text, text, _maybe(_I32), _maybe(_I32), _maybe(_I32)),
        *(_maybe(st.lists(_I32, max_size=2).map(tuple)), _maybe(_I64), _maybe(_I64), text),
    )
    candidates = st.builds(
        rows.CandidateSetEntry, _NAMES, _I32, _maybe(_I32), text, text, text, _NAMES, _MEMBERS
    )
    return tiny_row(
        group_id=draw(text),
        task_id=draw(text),
        closed_by=draw(text),
        token_ids=np.asarray(ids, np.int32),
        logprobs=logprobs,
        has_logprob=has,
        reason=np.asarray(reasons, np.uint8),
        segments=Segments(
            parent=ints[0].astype(np.int32),
            start=ints[1].astype(np.int64),
            length=ints[2].astype(np.int32),
            completion=ints[3].astype(np.int32),
        ),
        edits=tuple(draw(st.lists(edit, max_size=2))),
        candidate_sets=tuple(draw(st.lists(candidates, max_size=2))),
    )


def same_row(left: Row, right: Row) -> bool:
    """Whether two rows say the same, dtypes included."""
    for name in Row.__dataclass_fields__:
        one, other = getattr(left, name), getattr(right, name)
        if isinstance(one, Segments):
            pairs = [(getattr(one, f), getattr(other, f)) for f in Segments.__dataclass_fields__]
        else:
            pairs = [(one, other)]
        for a, b in pairs:
            if isinstance(a, np.ndarray):
                if not isinstance(b, np.ndarray) or a.dtype != b.dtype or a.tobytes() != b.tobytes():
                    return False
            elif a != b:
                return False
    return True
