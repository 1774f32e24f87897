"""Waves from one memory, commits in order, verdicts that say nothing, and an evaluator that nobody hears."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sample_traces.rsi_agent.harness import SYSTEM, Machine, Offline
from tests import factories as make
from tests.exporters.memory import MemorySource
from tests.factories import posted
from tests.fixtures import REPO
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, scripted_events
from tracestore.cli.demo_system import read_show
from tracestore.graph.model import Graph
from tracestore.store.engine import connect
from tracestore.store.store import Store
from tracestore.wire.call import Call
from tracestore.wire.snapshot import Snapshot
from tracestore_exporters.export import export
from tracestore_exporters.spec import Spec

client = pytest.fixture(kept)
EPISODE = "rsi_agent-0"


@pytest.fixture(scope="module")
def learned() -> Graph:
    return graphs_of(scripted_events("rsi_agent"))[0]


def verdicts(graph: Graph) -> dict[str, float]:
    return {
        str(reward.target.agent_id).partition("/")[2]: reward.value
        for reward in graph.rewards.values()
        if reward.name == "verdict"
    }


def test_the_branches_of_a_wave_begin_from_the_memory_before_it_and_commit_in_the_order_proposed(
    client: Kept,
) -> None:
    SYSTEM.play(client.episode("e"), Scripted(script=SYSTEM.scripts[0]), 0)
    (graph,) = graphs_of(client.events)
    assert graph.agents["e/actor0"].snapshot_id == graph.agents["e/actor1"].snapshot_id == "e/memory/0"
    order = [event.id for event in client.events if isinstance(event, (Call, Snapshot))]
    wave = order[order.index("e/curriculum/0") + 1 : order.index("e/curriculum/1")]
    # Both work and are judged at the same time; nothing is committed before the second one has ended.
    assert wave == [
        *("e/actor0/0", "e/actor1/0", "e/actor0/1", "e/actor1/1", "e/verifier0/0", "e/verifier1/0"),
        *("e/actor0/2", "e/memory/1", "e/actor1/2", "e/memory/2"),
    ]
    first, second = graph.snapshots["e/memory/1"], graph.snapshots["e/memory/2"]
    assert (first.wave, first.commit_order, second.wave, second.commit_order) == (0, 0, 0, 1)
    assert first.parent_hash == graph.snapshots["e/memory/0"].hash
    assert second.parent_hash == first.hash


def test_unresolved_and_offline_are_no_fail_and_commit_nothing(learned: Graph) -> None:
    assert verdicts(learned) == {"actor0": 1.0, "actor1": 0.0, "actor4": 1.0}
    assert learned.agents[f"{EPISODE}/actor2"].status == "ok"
    assert learned.agents[f"{EPISODE}/actor3"].status == "infra_error"
    assert {snapshot.agent_id for snapshot in learned.snapshots.values()} == {
        None,
        *(f"{EPISODE}/actor{number}" for number in (0, 1, 4)),
    }
    with pytest.raises(Offline):
        Machine(4).press("gray")


def test_an_actor_without_a_claim_has_used_up_its_steps_and_can_fail() -> None:
    exhausted = graphs_of(scripted_events("rsi_agent"))[1]
    assert exhausted.agents["rsi_agent-1/actor0"].status == "budget_exhausted"
    assert verdicts(exhausted) == {"actor0": 0.0}


def test_a_verifier_reads_the_claim_and_what_it_sees_itself_and_no_word_more(learned: Graph) -> None:
    request = learned.calls[f"{EPISODE}/verifier1/0"].request
    assert request is not None
    texts = [message["content"] for message in request.value()["messages"]]
    assert texts == ["Say PASS, FAIL or UNRESOLVED.", "Claim: blue adds 8. blue: 5 -> 15."]


def test_every_memory_is_kept_by_the_hash_of_its_snapshot(client: Kept) -> None:
    SYSTEM.play(client.episode("e"), Scripted(script=SYSTEM.scripts[0]), 0)
    (graph,) = graphs_of(client.events)
    texts = {name: client.payloads[one.hash].decode() for name, one in graph.snapshots.items()}
    assert texts["e/memory/0"] == ""
    assert texts["e/memory/1"]
    assert texts["e/memory/2"].startswith(texts["e/memory/1"] + "\n")
    assert texts["e/memory/frozen"] == texts["e/memory/3"]


def test_why_learning_ended_is_recorded() -> None:
    ended = [graph.episode.stop_reason for graph in graphs_of(scripted_events("rsi_agent")) if graph.episode]
    assert ended == ["verifier_pass", "curriculum_review"]


@pytest.mark.parametrize("objective", ["rl", "sft"])
def test_nothing_of_it_trains_and_the_reason_is_counted(objective: Any, tmp_path: Path) -> None:
    source = MemorySource(scripted_events("rsi_agent"))
    table = export(source, "p", tmp_path / "out", Spec(objective=objective)).conservation
    assert table.trained_tokens == 0
    assert table.excluded == {"inference_only": table.sampled_tokens}


def test_the_question_for_a_leak_finds_one(tmp_path: Path) -> None:
    leaks = [
        # An actor is told in the words of another what an evaluator said, behind what a preview shows.
        make.agent("told", episode="rsi_agent-1", role="actor"),
        make.call(
            "told/0",
            [make.user(f"{'What a day. ' * 10}It came out WRONG, I heard.")],
            "oh",
            episode="rsi_agent-1",
            agent="told",
        ),
        # An actor starts from a memory that an evaluator wrote.
        make.snapshot("written", "f" * 64, episode=EPISODE, agent_id=f"{EPISODE}/evaluator5"),
        make.agent("reader", episode=EPISODE, role="actor", snapshot_id="written"),
        make.call("reader/0", [make.user("Go on.")], "on", episode=EPISODE, agent="reader"),
    ]
    url = f"sqlite:///{tmp_path / 't.db'}"
    with Store.open(url) as store:
        store.ingest("default", [posted(event) for event in (*scripted_events("rsi_agent"), *leaks)])
    question = read_show(REPO / "sample_traces" / "rsi_agent").questions[2].sql
    engine = connect(url)
    with engine.connect() as connection:
        found = {role: behind for role, _, behind in connection.exec_driver_sql(question)}
    engine.dispose()
    assert found["evaluator"] == 2


@pytest.mark.parametrize("text", ["", "Once upon a time", "learn red", "learn gray", "press red", "PASS"])
def test_nonsense_ends_with_a_status(client: Kept, text: str) -> None:
    assert SYSTEM.play(client.episode("e"), Repeating(text), 0) == 0.0
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status == "ok"
    assert all(agent.status for agent in graph.agents.values())
