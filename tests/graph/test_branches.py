"""Branches: one for every end, equal siblings included."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.factories import answer, assistant, call, subagent, system, user
from tests.scenarios import SCENARIOS
from tests.strategies import Recording, recordings
from tracestore.graph.branches import branches
from tracestore.graph.build import build

S, U = system("s"), user("u")

ENDS = {
    "linear": ["c0 c1 c2"],
    "fork_after_sampled": ["a b", "a c"],
    "bestof4": ["p0", "p1", "p3", "p2 w"],
    "bestof_identical": ["p0", "p1"],
    "identical_siblings_continued": ["p0", "p1 w"],
    "retokenized_parent": ["a b"],
    "interleaved_subagents": ["A0 A1 A2", "B0 B1 B2"],
    "compaction": ["d0 d1", "c0 c1 c2 sum"],
    "rewritten_assistant": ["a", "b"],
    "tools_change": ["a b"],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios_have_a_branch_for_every_end(name: str) -> None:
    found = branches(build(SCENARIOS[name]().named.events))
    assert [" ".join(call_id for call_id, _ in branch.completions) for branch in found] == ENDS[name]


def test_a_call_that_nothing_came_back_from_is_an_end() -> None:
    (branch,) = branches(build([call("c0", [S, U], "a"), call("c1", [S, U, assistant("a"), U])]))
    assert branch.completions == (("c0", 0),)
    assert (branch.end_call_id, branch.end) == ("c1", None)
    assert len(branch.nodes) == 4


def test_a_continued_answer_in_other_words_is_an_end_too() -> None:
    events = [
        call("c0", [S], answer(assistant("a", reasoning="hm"))),
        call("c1", [S, assistant("a"), U], "b", parent="c0"),
    ]
    assert [branch.end for branch in branches(build(events))] == [("c0", 0), ("c1", 0)]


def test_a_branch_of_two_agents_names_both() -> None:
    events = [
        call("c0", [S], "a"),
        subagent("fold", spawned_by="c0", role="branch"),
        call("f0", [S, assistant("a"), U], "b", agent="fold"),
    ]
    (branch,) = branches(build(events))
    assert branch.agent_ids == ("main", "fold")


def test_pending_calls_are_on_no_branch() -> None:
    assert branches(build([call("c1", [U], "b", parent="c0", delta=True)])) == ()


@settings(max_examples=40)
@given(recordings())
def test_every_completion_is_on_a_branch_that_reaches_from_a_root_to_it(recording: Recording) -> None:
    graph = build(recording.events)
    found = branches(graph)
    assert {key for branch in found for key in branch.completions} == graph.completion_node.keys()
    for branch in found:
        assert [graph.nodes[key].depth for key in branch.nodes] == list(range(len(branch.nodes)))
        assert {graph.completion_node[key] for key in branch.completions} <= set(branch.nodes)
