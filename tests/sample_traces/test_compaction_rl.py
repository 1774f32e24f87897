"""Windows, what is kept of them, what trains, and a critic's step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sample_traces.compaction_rl import harness
from sample_traces.systems import system as system_named
from tests.exporters.planned import causes, chains, whole_reason
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import graphs_of, row_of, scripted_events
from tests.train.exports import export_of
from tests.train.models import tiny
from tracestore.graph.model import Graph
from tracestore.shards.row import Row
from tracestore.shards.views import flat_samples
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore.train.critic import CriticSettings
from tracestore.train.loop import Settings, train

client = pytest.fixture(kept)

ZERO = "compaction-rl:critic=zero"


@pytest.fixture(scope="module")
def row() -> Row:
    return row_of(scripted_events("compaction_rl"))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters are tokens here, so that a window needs room for more of them."""
    monkeypatch.setattr(harness, "CONTEXT", 500)
    monkeypatch.setattr(harness, "RESERVE", 100)


def played(client: Kept, *answers: str) -> tuple[float, Graph]:
    reward = system_named("compaction_rl").play(client.episode("e"), Scripted(*answers), 0)
    (graph,) = graphs_of(client.events)
    return reward, graph


def by_call(row: Row) -> dict[str, np.ndarray]:
    given = advantages(row, rule=ZERO, context=Context()).values
    return {
        row.calls[row.completions[c].call].call_id: np.atleast_1d(value) for (_, c), value in given.items()
    }


def test_a_summary_ends_the_sample_of_its_window_and_the_next_window_begins_one(row: Row) -> None:
    of_second = [[call.split("/")[-1] for call, _ in chain] for chain in chains(row)]
    by_name = {chain[0][0]: numbers for chain, numbers in zip(chains(row), of_second, strict=True)}
    assert by_name["compaction_rl-1/main/0"] == ["0", "1", "2", "3", "4", "5"]
    assert by_name["compaction_rl-1/main/6"] == ["6", "7", "8"]
    assert by_name["compaction_rl-1/main/9"] == ["9", "10", "11"]
    assert by_name["compaction_rl-1/main/12"] == ["12", "13"]
    assert sorted(causes(row).values()) == ["compaction"] * 5 + ["root"] * 8


def test_summaries_train_and_what_is_read_of_them_again_does_not(row: Row) -> None:
    summaries = [call.call_id for call in row.calls if call.purpose == "summarize"]
    assert len(summaries) == 5
    assert {whole_reason(row, call_id) for call_id in summaries} == {"trained"}
    for flat in flat_samples(row):
        if flat.sample.cause == "compaction":
            assert not flat.mask[: int(np.flatnonzero(flat.completion >= 0)[0])].any()
            own = np.isin(flat.completion, flat.sample.completions)
            assert np.array_equal(flat.mask, own)


def test_titles_do_not_train_and_part_no_segments(row: Row) -> None:
    titles = [call.call_id for call in row.calls if call.purpose == "title"]
    assert {whole_reason(row, call_id) for call_id in titles} == {"agent_not_trainable"}
    assert titles[0] not in {call for call, value in by_call(row).items() if value.any()}


def test_each_compaction_says_what_it_replaced_and_kept() -> None:
    graphs = {
        graph.episode.id: graph for graph in graphs_of(scripted_events("compaction_rl")) if graph.episode
    }
    edits = [
        graphs["compaction_rl-1"].context_edits[f"compaction_rl-1/main/{i}/compaction"] for i in (5, 8, 11)
    ]
    numbers = [[one.split("/")[-1] for one in edit.kept_call_ids or ()] for edit in edits]
    assert numbers == [["3", "4"], ["6", "7"], ["9", "10"]]
    # The steps that one window kept are in the next one's context, and replaced there.
    assert edits[1].replaced_call_ids == ("compaction_rl-1/main/3", "compaction_rl-1/main/4")
    assert {edit.author for edit in edits} == {"policy"}
    # Two steps of the last episode do not fit behind its summary, one does.
    (shrunk,) = graphs["compaction_rl-3"].context_edits.values()
    assert shrunk.kept_call_ids == ("compaction_rl-3/main/1",)
    assert shrunk.replaced_call_ids == ("compaction_rl-3/main/0",)
    assert harness.RESERVE / harness.CONTEXT == 10_240 / 65_536


def test_segments_fade_by_the_tokens_that_train_after_them(row: Row) -> None:
    given = by_call(row)
    # Ten tokens each: lambda = 1 - 1/15, its tenth power .5016, its twentieth .2516.
    last = [given[f"compaction_rl-0/main/{i}"][-1] for i in (4, 5, 7)]
    assert last == pytest.approx([0.2516, 0.5016, 1.0], abs=5e-5)


def test_an_exhausted_budget_trains_with_nothing_to_gain(row: Row) -> None:
    tokens = [f"compaction_rl-1/main/{i}" for i in range(14)]
    assert {whole_reason(row, call_id) for call_id in tokens} == {"trained"}
    assert not any(by_call(row)[call_id].any() for call_id in tokens)


def test_a_critic_learns_from_a_step_that_begins_where_it_says_nothing(row: Row, tmp_path: Path) -> None:
    model = tiny("llama", vocab_size=49_152, max_position_embeddings=512, hidden_size=16)
    settings = Settings(
        credit="compaction-rl", critic=CriticSettings(lr=1e-2), old_logprobs="recomputed", steps=1, lr=1e-3
    )
    (metrics,) = train(model, export_of([row], tmp_path / "out"), settings=settings).metrics
    assert metrics.trained_tokens == 160
    assert metrics.grad_norm is not None
    assert metrics.grad_norm > 0
    # At V = 0 the targets are the advantages themselves: half their mean square is what is left to learn.
    squares = sum(float((value**2).sum()) for value in by_call(row).values())
    assert metrics.value_loss == pytest.approx(squares / 2 / 160, rel=1e-5)


@pytest.mark.usefixtures("wide")
def test_a_summary_that_leaves_no_room_is_a_failed_compaction(client: Kept) -> None:
    reward, graph = played(client, "Drawers", *["1"] * 4, "x" * 300)
    assert reward == 0.0
    assert graph.episode is not None
    assert graph.episode.status == "budget_exhausted"
    (edit,) = graph.context_edits.values()
    assert (edit.status, edit.after_call_id) == ("failed", None)
    assert edit.author_call_id is not None
    assert whole_reason(row_of(client.events), edit.author_call_id) == "edit_not_accepted"


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize(
    "text", ["", "largest", "no number...", "99", "1", "The largest is 3", "70 is largest"]
)
def test_whatever_a_model_says_the_episode_ends(client: Kept, text: str) -> None:
    reward = system_named("compaction_rl").play(client.episode("e"), Repeating(text), 0)
    (graph,) = graphs_of(client.events)
    assert graph.episode is not None
    answers = text in ("The largest is 3", "70 is largest")
    assert graph.episode.status == ("ok" if answers else "budget_exhausted")
    assert reward == float(text == "70 is largest")
    assert sum(call.purpose == "act" for call in graph.calls.values()) <= harness.MAX_STEPS
