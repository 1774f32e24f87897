"""Branches read what the main thread read, train on their own, and are folded into what they return."""

from __future__ import annotations

import numpy as np
import pytest

from sample_traces.context_folding import harness
from sample_traces.systems import system as system_named
from tests.exporters.planned import causes, chains, whole_reason
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, row_of, scripted_events
from tracestore.graph.model import Graph
from tracestore.shards.row import Row
from tracestore.shards.views import FlatSample, flat_samples
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, MissingFact

client = pytest.fixture(kept)


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters are tokens here, so that a context needs room for more of them."""
    monkeypatch.setattr(harness, "CONTEXT_LIMIT", 10_000)


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("context_folding"))


def played(client: Kept, *answers: str) -> tuple[float, Graph]:
    reward = system_named("context_folding").play(client.episode("e"), Scripted(*answers), 0)
    (graph,) = graphs_of(client.events)
    return reward, graph


def sample_of(row: Row, call_id: str) -> FlatSample:
    """The sample whose chain holds a call."""
    for flat in flat_samples(row):
        if call_id in {row.calls[row.completions[c].call].call_id for c in flat.sample.completions}:
            return flat
    raise AssertionError(call_id)


def trained(row: Row, flat: FlatSample) -> set[str]:
    return {
        row.calls[row.completions[c].call].call_id for c in np.unique(flat.completion[flat.mask]).tolist()
    }


def test_the_main_thread_is_one_sample_through_its_fold_and_the_branch_one_of_its_own(row: Row) -> None:
    of_first = [chain for chain in chains(row) if chain[0][0].startswith("context_folding-0/")]
    assert [[call.split("/", 1)[1] for call, _ in chain] for chain in of_first] == [
        ["branch0/0", "branch0/1"],
        ["branch0/judge/0"],
        ["main/0", "main/1", "main/2", "main/3"],
    ]
    assert set(causes(row).values()) == {"root", "subagent_root"}


def test_a_branch_reads_what_the_main_thread_sampled_and_does_not_train_it_again(row: Row) -> None:
    main, branch = sample_of(row, "context_folding-0/main/0"), sample_of(row, "context_folding-0/branch0/0")
    creator = np.flatnonzero(main.completion == main.sample.completions[2])
    read = main.token_ids[: creator[-1] + 1]
    assert branch.token_ids[: len(read)].tolist() == read.tolist()
    assert not branch.mask[: len(read)].any()
    assert trained(row, branch) == {f"context_folding-0/branch0/{i}" for i in range(2)}
    assert trained(row, main) == {f"context_folding-0/main/{i}" for i in range(4)}


def test_what_a_branch_did_is_not_in_the_main_thread_and_what_it_returned_does_not_train_there(
    row: Row,
) -> None:
    main, branch = sample_of(row, "context_folding-0/main/0"), sample_of(row, "context_folding-0/branch0/0")
    returned = branch.token_ids[branch.completion == branch.sample.completions[1]].tolist()
    eight, zero = returned[2:4]  # return (" 8 0 ") and the stop token
    creator = np.flatnonzero(main.completion == main.sample.completions[2])[-1]
    answer = np.flatnonzero(main.completion == main.sample.completions[3])[0]
    between = main.token_ids[creator + 1 : answer].tolist()
    assert [between[i : i + 2] for i in range(len(between))].count([eight, zero]) == 1
    assert not main.mask[creator + 1 : answer].any()
    assert len(branch.token_ids) - creator - 1 > 2 * len(between)


def test_the_judge_does_not_train(row: Row) -> None:
    judged = [call.call_id for call in row.calls if call.purpose == "judge"]
    assert len(judged) == 4
    assert {whole_reason(row, call_id) for call_id in judged} == {"agent_not_trainable"}


def test_a_fold_names_what_returned_and_what_it_stands_for() -> None:
    graph = graphs_of(scripted_events("context_folding"))[0]
    (fold,) = graph.context_edits.values()
    assert (fold.edit, fold.trigger, fold.author) == ("fold", "tool_call", "policy")
    assert fold.author_call_id == fold.trigger_call_id == fold.before_call_id == "context_folding-0/branch0/1"
    assert fold.replaced_call_ids == ("context_folding-0/branch0/0", "context_folding-0/branch0/1")
    assert fold.after_call_id == "context_folding-0/main/3"
    request = graph.calls["context_folding-0/main/3"].request
    assert request is not None
    assert request.value()["messages"][-1] == {"role": "tool", "tool_call_id": "use_6", "content": "80"}


def test_the_penalties_are_no_ops_on_failures_and_gone_without_their_facts(row: Row) -> None:
    def given(rule: str) -> dict[str, float]:
        values = advantages(row, rule=rule, context=Context()).values
        return {row.calls[row.completions[c].call].call_id: float(v) for (_, c), v in values.items()}

    told, free = given("foldgrpo:context_limit=160"), given("foldgrpo:unfolded=0,failed_tool=0")
    failures = [f"context_folding-{i}/" for i in (1, 2, 4, 5, 6, 7)]
    assert {told[call] == free[call] for call in told if call.startswith(tuple(failures))} == {True}
    assert [call for call in told if told[call] != free[call]] == [
        "context_folding-0/main/1",
        "context_folding-0/main/3",
    ]


def test_a_branch_makes_no_branch_and_the_main_thread_does_not_return(client: Kept) -> None:
    asked = 'branch("mill", "How old?")'
    said = ['return("80")', asked, asked, 'return("80")', "yes", 'answer("50")']
    reward, graph = played(client, *said)
    assert reward == 1.0
    assert sorted(agent.role or "" for agent in graph.agents.values()) == ["branch", "judge", "main"]
    status = {tool.call_id: tool.status for tool in graph.tool_calls.values()}
    assert status["e/main/0"] == status["e/branch0/0"] == "failed"
    assert status["e/main/1"] == status["e/branch0/1"] == "ok"


def test_a_branch_that_does_not_return_is_folded_by_the_harness(client: Kept) -> None:
    looked = ['search("mill")'] * 3
    _, graph = played(client, 'branch("mill", "How old?")', *looked, "No.", 'answer("50")')
    (fold,) = graph.context_edits.values()
    assert (fold.author, fold.author_call_id, fold.trigger) == ("harness", None, "rule")
    assert graph.agents["e/branch0"].status == "budget_exhausted"


def test_without_a_verdict_the_episode_says_nothing_of_the_policy(client: Kept) -> None:
    reward, graph = played(client, 'branch("mill", "How old?")', 'return("80")', "Perhaps.")
    assert (reward, graph.rewards) == (0.0, {})
    assert graph.episode is not None
    assert graph.episode.status == "infra_error"
    (fold,) = graph.context_edits.values()
    assert fold.after_call_id is None


@pytest.mark.parametrize(
    "text", ["", "no tool...", "search()", "answer(1)", 'answer("1")', 'branch("a", "b")', "search(["]
)
def test_whatever_a_model_says_the_episode_ends(client: Kept, text: str) -> None:
    assert system_named("context_folding").play(client.episode("e"), Repeating(text), 0) == 0.0
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status in ("ok", "budget_exhausted", "infra_error")
    assert sum(call.agent_id == "e/main" for call in graph.calls.values()) <= harness.MAX_TURNS


def test_a_branch_that_nobody_judged_has_no_credit() -> None:
    events = [e for e in scripted_events("context_folding") if getattr(e, "name", None) != "in_scope"]
    with pytest.raises(MissingFact, match="scope verdict"):
        advantages(row_of(events), rule="foldgrpo", context=Context())


def test_a_full_context_ends_the_episode(client: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "CONTEXT_LIMIT", 300)
    _, graph = played(client, *['search("old")'] * 2)
    assert graph.episode is not None
    assert (graph.episode.status, len(graph.calls)) == ("budget_exhausted", 2)
