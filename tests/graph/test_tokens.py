"""Token ids come back as recorded, resolved through the parents of deltas."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from tests.factories import answer, call, completion, system, user
from tests.scenarios import SCENARIOS
from tests.strategies import Recording, recordings
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.graph.tokens import completion_ids, is_ids_incomplete, prompt_ids
from tracestore.wire.call import Usage


@settings(max_examples=40)
@given(recordings())
def test_prompt_ids_are_what_the_call_read(recording: Recording) -> None:
    graph = build(recording.events)
    for call_id, truth in recording.prompt_ids.items():
        if _is_certain(graph, call_id):
            ids = prompt_ids(graph, call_id)
            assert (None if ids is None else tuple(ids)) == truth


def _is_certain(graph: Graph, call_id: str) -> bool:
    """Whether the delta ids of a call follow answers that their calls name without doubt."""
    while graph.calls[call_id].prompt_token_ids_delta is not None:
        link = graph.links[call_id]
        if link.how != "named" or link.parent is None:
            return False
        call_id = link.parent[0]
    return True


def test_delta_ids_follow_the_parents_prompt_and_answer() -> None:
    graph = build(
        [
            call("c0", [system("s")], answer("a", ids=[3, 4]), prompt_ids=[1, 2]),
            call("c1", [user("u")], answer("b", ids=[7]), parent="c0", delta=True, prompt_ids_delta=[5, 6]),
            call("c2", [user("u")], parent="c1", delta=True, prompt_ids_delta=[8]),
        ]
    )
    ids = prompt_ids(graph, "c2")
    assert ids is not None
    assert ids.dtype == np.int32
    assert ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert completion_ids(graph, ("c1", 0)) is not None


def test_a_delta_after_something_unrecorded_is_unknown() -> None:
    without_answer = [
        call("c0", (), answer("a"), prompt_ids=[1]),
        call("c1", (), parent="c0", prompt_ids_delta=[5]),
    ]
    assert prompt_ids(build(without_answer), "c1") is None
    assert prompt_ids(build(without_answer[1:]), "c1") is None
    assert completion_ids(build(without_answer), ("c0", 0)) is None
    assert completion_ids(build(without_answer), ("c9", 0)) is None


def test_a_delta_after_a_completion_whose_call_has_not_come_is_unknown() -> None:
    events = [completion("c0", 0, answer("a", ids=[2])), call("c1", (), parent="c0", prompt_ids_delta=[5])]
    assert prompt_ids(build(events), "c1") is None
    with pytest.raises(KeyError):
        prompt_ids(build(events), "c0")


def test_deltas_in_a_circle_are_unknown() -> None:
    circle = [
        call("a", (), answer("x", ids=[1]), parent="b", prompt_ids_delta=[1]),
        call("b", (), answer("x", ids=[1]), parent="a", prompt_ids_delta=[1]),
    ]
    assert prompt_ids(build(circle), "a") is None


def test_no_ids_are_not_zero_ids() -> None:
    graph = build([call("c", (), answer("a", ids=[]), prompt_ids=[])])
    ids = completion_ids(graph, ("c", 0))
    assert ids is not None
    assert len(ids) == 0
    assert prompt_ids(graph, "c") is not None


@pytest.mark.parametrize(
    ("ids", "counted", "is_incomplete"),
    [
        ([[1, 2]], 2, False),
        ([[1, 2]], 3, True),
        ([[1, 2]], 1, True),
        ([[1, 2], [3]], 3, False),
        ([[1, 2], None], 3, True),
        ([None], 3, False),
        ([[1, 2]], None, False),
    ],
)
def test_ids_are_incomplete_when_usage_counts_others(
    ids: list[list[int] | None], counted: int | None, is_incomplete: bool
) -> None:
    answers = [answer("a", ids=one) for one in ids]
    graph = build([call("c", (), *answers, usage=Usage(completion_tokens=counted))])
    assert is_ids_incomplete(graph, "c") is is_incomplete


@pytest.mark.parametrize("counted", [2, 3])
def test_a_stripped_stop_token_may_be_counted_or_not(counted: int) -> None:
    stripped = answer("a", ids=[1, 2], stop_token_stripped=True)
    assert not is_ids_incomplete(
        build([call("c", (), stripped, usage=Usage(completion_tokens=counted))]), "c"
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_extend_exactly_where_they_say(name: str) -> None:
    """Chains of `samples` are prefixes of each other's prompts, and no other call extends the end of
    one."""
    scenario = SCENARIOS[name]()
    graph = build(scenario.events)
    sampled = sum(len(body.token_ids or ()) for body in graph.completions.values())
    assert sampled == scenario.sampled_tokens
    for chain in scenario.samples:
        for before, after in itertools.pairwise(chain):
            prompt, more = prompt_ids(graph, before[0]), completion_ids(graph, before)
            follows = prompt_ids(graph, after[0])
            assert prompt is not None
            assert more is not None
            assert follows is not None
            whole = [*prompt, *more]
            assert list(follows[: len(whole)]) == whole


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("linear", 16 + 16 + 16),
        ("fork_after_sampled", 13 + 17 + 17),
        ("bestof4", 4 * 25 + 12),
        ("bestof_identical", 19 + 19),
        ("retokenized_parent", 13 + 16),
        ("interleaved_subagents", 3 * 11 + 3 * 10),
        ("compaction", 3 * 11 + 27 + 2 * 13),
        ("rewritten_assistant", 13 + 16),
        ("tools_change", 13 + 16),
    ],
)
def test_scenarios_sample_the_tokens_they_say(name: str, tokens: int) -> None:
    assert SCENARIOS[name]().sampled_tokens == tokens
