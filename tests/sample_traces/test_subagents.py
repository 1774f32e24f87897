"""Subagents of the same and of another model, as the harness records and the export cuts them."""

from __future__ import annotations

import pytest

from sample_traces.subagents.harness import mixed
from tests.exporters.planned import planned, reasons
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import episodes_of, graphs_of, row_of, scripted_events
from tracestore.shards.row import Row
from tracestore_exporters.spec import Spec

client = pytest.fixture(kept)


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("subagents"))


def test_each_subagent_is_a_sample_of_its_own_below_the_call_that_asked(row: Row) -> None:
    below = [sample for sample in row.samples if sample.cause == "subagent_root"]
    assert len(below) == 6
    assert {row.agents[sample.agent].role for sample in below} == {"subagent"}
    assert sorted(len(one.completions) for one in row.samples if one.cause == "root") == [1, 2, 2, 2]


def test_a_finding_in_the_parents_prompt_is_read_and_not_sampled(row: Row) -> None:
    [main] = [one for one in row.samples if one.sample_id.startswith("subagents-0/main")]
    calls = [row.calls[row.completions[place].call].call_id for place in main.completions]
    assert calls == ["subagents-0/main/0", "subagents-0/main/1"]


def test_what_was_found_and_whether_it_was_used_is_recorded() -> None:
    graph = graphs_of(scripted_events("subagents"))[0]
    found = {
        agent.id: (agent.return_message.value()["content"], agent.score, agent.finding_used)
        for agent in graph.agents.values()
        if agent.return_message is not None
    }
    assert found == {"subagents-0/sub0": ("4", 1.0, True), "subagents-0/sub1": ("10", 0.0, False)}


def test_the_second_question_of_odd_episodes_goes_to_another_model() -> None:
    models = {
        call.agent_id: (call.model, call.policy and call.policy.name)
        for events in episodes_of(scripted_events("subagents"))
        for graph in graphs_of(events)
        for call in graph.calls.values()
    }
    other = {agent for agent, (model, policy) in models.items() if (model, policy) == ("helper-1b",) * 2}
    assert other == {"subagents-1/sub1", "subagents-3/sub1"}


def test_the_other_model_never_trains_and_is_counted() -> None:
    spec = Spec(policies=("smollm2-135m-instruct",))
    said = reasons(planned(*episodes_of(scripted_events("subagents")), spec=spec))
    other = {call for call, some in said.items() if set(some) == {"other_policy"}}
    assert other == {"subagents-1/sub1/0", "subagents-3/sub1/0"}
    assert {reason for call in said.keys() - other for reason in said[call]} == {"trained"}


@pytest.mark.parametrize("text", ["", "?", "What?\nWho?\nWhen?", "13", "13..."])
@pytest.mark.parametrize("seed", range(2))
def test_a_model_that_says_anything_ends_an_episode(client: Kept, text: str, seed: int) -> None:
    assert mixed(client.episode("e"), Repeating(text), seed) in (0.0, 0.5)
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status in ("ok", "failed")


def test_a_wrong_finding_can_be_ignored(client: Kept) -> None:
    said = ["What is 2 + 2?\nWhat is 6 + 3?", "4", "10", "4 + 9 = 13"]
    assert mixed(client.episode("e"), Scripted(*said), 0) == 1.0
