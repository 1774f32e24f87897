"""An orchestrator that trains, and frozen readers at work at the same time."""

from __future__ import annotations

import pytest

from sample_traces.agent_swarm.harness import MAX_STEPS, MAX_TURNS, SYSTEM
from tests.exporters.planned import whole_reason
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, row_of, scripted_events
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore.wire.call import Call

client = pytest.fixture(kept)


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("agent_swarm"))


def test_readers_of_one_stage_work_at_the_same_time_and_those_of_two_do_not(client: Kept) -> None:
    SYSTEM.play(client.episode("together"), Scripted(script=SYSTEM.scripts[0]), 0)
    SYSTEM.play(client.episode("apart"), Scripted(script=SYSTEM.scripts[3]), 0)
    calls = [event.id for event in client.events if isinstance(event, Call)]
    assert calls[:5] == [f"together/{who}" for who in ("main/0", "reader0/0", "reader1/0", "reader2/0")] + [
        "together/reader0/1"
    ]
    assert calls[-10:] == [
        *("apart/main/0", "apart/reader0/0", "apart/reader0/1", "apart/reader0/2", "apart/main/1"),
        *("apart/reader1/0", "apart/reader1/1", "apart/reader1/2", "apart/reader1/3", "apart/main/2"),
    ]


def test_the_orchestrator_trains_and_no_reader_does(row: Row) -> None:
    reasons = {call.call_id: whole_reason(row, call.call_id) for call in row.calls}
    assert {
        reason: {call.partition("/")[2][:4] for call in reasons if reasons[call] == reason}
        for reason in set(reasons.values())
    } == {"trained": {"main"}, "agent_not_trainable": {"read"}}


def test_each_context_is_one_sample_and_what_readers_returned_begins_none(row: Row) -> None:
    assert [sample.cause for sample in row.samples].count("root") == len(row.episodes) == 4
    assert [sample.cause for sample in row.samples].count("subagent_root") == 9
    assert len(row.samples) == 13


def test_what_is_paid_for_delegating_ends_at_exactly_nothing(row: Row) -> None:
    rule = "parl:anneal_steps=10"
    at_the_end, plain = (
        advantages(row, rule=rule, context=Context(step=10)).values,
        advantages(row, rule="shared", context=Context()).values,
    )
    assert at_the_end == {key: value for key, value in plain.items() if key in at_the_end}
    assert set(at_the_end.values()) == {0.5, -0.5}
    # Half way: 1 + .1 * 1 + .05 * 2/3 = 1.1333, 1, .1, .1 + .05 = .15; mean 2.3833/4 = .5958
    half = advantages(row, rule=rule, context=Context(step=5)).values
    assert sorted({round(float(value), 4) for value in half.values()}) == [-0.4958, -0.4458, 0.4042, 0.5375]


def test_a_reader_that_runs_out_of_steps_is_assigned_and_not_finished() -> None:
    first = graphs_of(scripted_events("agent_swarm"))[0]
    reader = first.agents["agent_swarm-0/reader1"]
    assert (reader.status, reader.stage, reader.checkpoint) == ("budget_exhausted", 0, "reader-0")
    assert sum(call.agent_id == reader.id for call in first.calls.values()) == MAX_STEPS
    (assigned,) = (
        use
        for use in first.tool_calls.values()
        if use.call_id == "agent_swarm-0/main/0" and use.tool_call_id == reader.spawned_by_tool_call_id
    )
    assert assigned.status == "timeout"


@pytest.mark.parametrize(
    ("text", "status", "calls"),
    [
        ("", "failed", 1),
        ("Once upon a time", "failed", 1),
        ("answer", "failed", 1),
        ("answer many", "ok", 1),
        ("open nothing 0", "budget_exhausted", MAX_TURNS),
        # Each turn assigns a reader, which may not assign and so fails at once.
        ("assign you: go on\nassign me: go on", "budget_exhausted", 3 * MAX_TURNS),
        ("assign a: b\n" * 30 + "...", "budget_exhausted", 9 * MAX_TURNS),
    ],
)
def test_nonsense_ends_with_a_status(client: Kept, text: str, status: str, calls: int) -> None:
    assert SYSTEM.play(client.episode("e"), Repeating(text), 0) == 0.0
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    assert (graph.episode.status, len(graph.calls)) == (status, calls)
    assert all(agent.status for agent in graph.agents.values())
