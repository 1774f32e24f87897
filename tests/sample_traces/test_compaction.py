"""Attempts to write a context down, as the harness records and the default export cuts them."""

from __future__ import annotations

import pytest

from sample_traces.compaction.harness import attempts
from tests.exporters.planned import reasons
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, row_of, scripted_events
from tracestore.graph.model import Graph
from tracestore.shards.row import Row

client = pytest.fixture(kept)


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("compaction"))


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return graphs_of(scripted_events("compaction"))


def test_each_accepted_compaction_begins_a_sample_and_what_came_to_nothing_a_fork(row: Row) -> None:
    causes: dict[str, list[str]] = {episode.episode_id: [] for episode in row.episodes}
    for sample in row.samples:
        causes[row.episodes[sample.episode].episode_id].append(sample.cause)
    assert {episode: sorted(found) for episode, found in causes.items()} == {
        "compaction-0": ["compaction"] * 3 + ["root"],
        "compaction-1": ["compaction"] * 2 + ["root"],
        "compaction-2": ["compaction", "fork", "fork", "root"],
        "compaction-3": ["root"],
    }


@pytest.mark.parametrize("call", ["0/main/1", "0/main/3", "1/main/1", "1/main/4", "2/main/5"])
def test_an_accepted_summary_trains_where_it_was_sampled(row: Row, call: str) -> None:
    assert set(reasons(row)[f"compaction-{call}"]) == {"trained"}


@pytest.mark.parametrize("call", ["2/main/1", "2/main/3", "3/main/1", "3/main/3"])
def test_what_was_rejected_failed_or_cancelled_does_not_train(row: Row, call: str) -> None:
    assert set(reasons(row)[f"compaction-{call}"]) == {"edit_not_accepted"}


def test_the_copy_of_a_summary_is_read_and_not_sampled(graphs: list[Graph], row: Row) -> None:
    request = graphs[0].calls["compaction-0/main/2"].request
    assert request is not None
    assert "Before: Total 9." in request.value()["messages"][-1]["content"]
    [sample] = [one for one in row.samples if one.sample_id.startswith("compaction-0/main/3")]
    calls = [row.calls[row.completions[place].call].call_id for place in sample.completions]
    assert calls == ["compaction-0/main/2", "compaction-0/main/3"]


def test_an_attempt_says_who_asked_and_what_it_replaced(graphs: list[Graph]) -> None:
    edits = graphs[1].context_edits
    asked = edits["compaction-1/main/1/compaction"]
    assert (asked.trigger, asked.trigger_call_id, asked.trigger_tool_call_id) == (
        "tool_call",
        "compaction-1/main/1",
        "compact_0",
    )
    assert asked.replaced_call_ids == ("compaction-1/main/0", "compaction-1/main/1")
    assert asked.after_call_id == "compaction-1/main/2"
    rejected = graphs[2].context_edits["compaction-2/main/1/compaction"]
    assert (rejected.status, rejected.replaced_call_ids, rejected.after_call_id) == ("rejected", (), None)


def test_after_an_attempt_by_rule_that_came_to_nothing_the_old_context_goes_on(graphs: list[Graph]) -> None:
    request = graphs[2].calls["compaction-2/main/2"].request
    assert request is not None
    said = [message["content"] for message in request.value()["messages"]]
    assert said[-2:] == ["5 + 4 = 9", "Add 2."]
    assert graphs[2].links["compaction-2/main/2"].parent == ("compaction-2/main/0", 0)


@pytest.mark.parametrize("text", ["", "no", "compact:", "compact: 3", "7...", "compact: 7..."])
@pytest.mark.parametrize("seed", range(4))
def test_a_model_that_says_anything_ends_an_episode(client: Kept, text: str, seed: int) -> None:
    assert attempts(client.episode("e"), Repeating(text), seed) == 0.0
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status == "ok"


def test_the_total_after_three_summaries_is_graded(client: Kept) -> None:
    said = ["9", "Total 9", "11", "Total 11", "14", "Total 14", "19"]
    assert attempts(client.episode("e"), Scripted(*said), 0) == 1.0
