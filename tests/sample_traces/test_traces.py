from __future__ import annotations

import json

import pytest

from tests.sample_traces.traces import NAMES, graphs_of, trace_events, trace_path
from tracestore.graph.model import Graph
from tracestore.graph.tokens import completion_ids, prompt_ids


def extends(graph: Graph, call_id: str) -> bool | None:
    """Whether a call's prompt begins with all that its parent read and sampled; None without a parent."""
    parent = graph.links[call_id].parent
    if parent is None:
        return None
    before, sampled, prompt = (
        prompt_ids(graph, parent[0]),
        completion_ids(graph, parent),
        prompt_ids(graph, call_id),
    )
    assert before is not None
    assert sampled is not None
    assert prompt is not None
    whole = [*before.tolist(), *sampled.tolist()]
    return bool(prompt[: len(whole)].tolist() == whole)


@pytest.mark.parametrize("name", NAMES)
def test_every_call_has_ids_and_a_logprob_for_each_sampled_token(name: str) -> None:
    for graph in graphs_of(trace_events(name)):
        for key, completion in graph.completions.items():
            assert completion.token_ids is not None
            assert completion.logprobs is not None
            assert len(completion.logprobs) == len(completion.token_ids) > 0
            assert completion.logprobs.dtype == "float32"
            assert completion.logprobs.array.max() <= 0
            assert graph.calls[key[0]].prompt_token_ids is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_continues_a_call_extends_its_ids(name: str) -> None:
    found = [extends(graph, call_id) for graph in graphs_of(trace_events(name)) for call_id in graph.calls]
    assert True in found
    assert False not in found


@pytest.mark.parametrize("name", NAMES)
def test_the_rewards_of_a_group_differ(name: str) -> None:
    rewards = [reward.value for graph in graphs_of(trace_events(name)) for reward in graph.rewards.values()]
    assert len(rewards) == len(graphs_of(trace_events(name))) >= 3
    assert len(set(rewards)) > 1


@pytest.mark.parametrize("name", NAMES)
def test_a_trace_is_small_and_names_no_time(name: str) -> None:
    lines = trace_path(name).read_text().splitlines()
    assert sum(map(len, lines)) < 64_000
    fields = {field for line in lines for field in json.loads(line)}
    assert fields.isdisjoint({"at", "started_at", "ended_at", "first_token_at"})


def test_a_compaction_begins_a_new_context_with_what_the_policy_wrote() -> None:
    for graph in graphs_of(trace_events("compaction")):
        assert graph.context_edits
        for edit in graph.context_edits.values():
            assert edit.author_call_id is not None
            assert edit.after_call_id is not None
            assert graph.calls[edit.author_call_id].purpose == "summarize"
            assert graph.links[edit.after_call_id].parent is None
            message = graph.completions[edit.author_call_id, 0].message
            assert message is not None
            request = graph.calls[edit.after_call_id].request
            assert request is not None
            assert message.value()["content"] in request.value()["messages"][-1]["content"]


def test_each_subagent_hangs_from_the_tool_call_that_asked() -> None:
    for graph in graphs_of(trace_events("subagents")):
        helpers = [agent for agent in graph.agents.values() if agent.role == "subagent"]
        assert len(helpers) == 2
        for helper in helpers:
            assert helper.spawned_by_call_id is not None
            message = graph.completions[helper.spawned_by_call_id, 0].message
            assert message is not None
            asked = {use["id"] for use in message.value()["tool_calls"]}
            assert helper.spawned_by_tool_call_id in asked
            assert helper.return_message is not None
            assert helper.score in (0.0, 1.0)


def test_four_candidates_come_from_one_prompt_and_the_kept_one_goes_on() -> None:
    for graph in graphs_of(trace_events("candidates")):
        ((set_id, candidates),) = graph.candidate_sets.items()
        (selection,) = graph.candidate_selections.values()
        assert selection.candidate_set_id == set_id
        assert len(candidates.members) == 4
        (kept,) = selection.selected
        scores = [member.score for member in candidates.members]
        assert scores[kept] == max(score for score in scores if score is not None)
        parents = {link.parent for link in graph.links.values()} - {None}
        assert parents == {(candidates.members[kept].call_id, candidates.members[kept].completion)}
