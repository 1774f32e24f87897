"""A search over steps, as the harness records and the export cuts it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from sample_traces.tree_search.harness import play
from tests.exporters.planned import chains, key, planned
from tests.sample_traces.scripted import Kept, Repeating, Scripted, kept
from tests.sample_traces.traces import episodes_of, graphs_of, scripted_events
from tracestore.shards.pairs import pairs
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, combine
from tracestore_exporters.spec import Spec

client = pytest.fixture(kept)


def trees(*, spec: Spec | None = None) -> list[Row]:
    """The rows of the two tasks."""
    episodes = episodes_of(scripted_events("tree_search"))
    return [planned(*episodes[:2], spec=spec), planned(*episodes[2:], spec=spec)]


def test_each_leaf_is_a_sample_and_a_shared_step_stands_once() -> None:
    row, _ = trees()
    assert chains(row) == tuple(
        ((f"tree_search-{tree}/main/0", 0), (f"tree_search-{tree}/main/1", leaf))
        for tree in (0, 1)
        for leaf in (0, 1)
    )
    assert sorted(sample.cause for sample in row.samples) == ["fork", "fork", "root", "root"]
    sampled = row.segments.length[row.segments.completion >= 0].sum()
    assert sampled == sum(entry.num_tokens for entry in row.completions)


def test_an_answer_that_was_drawn_twice_is_two_leaves() -> None:
    graph = graphs_of(scripted_events("tree_search"))[1]
    first, second = (graph.completions["tree_search-1/main/1", leaf] for leaf in (0, 1))
    assert first.token_ids == second.token_ids
    row, _ = trees()
    leaves = [chain for chain in chains(row) if chain[0][0] == "tree_search-1/main/0"]
    assert [chain[-1][1] for chain in leaves] == [0, 1]


def test_a_shared_step_trains_once_with_the_mean_of_its_branches() -> None:
    row, _ = trees()
    credit = combine(row, advantages(row, rule="tree-grpo", context=Context()))
    of = {
        key(row, completion): float((credit.plus_T + credit.minus_T)[start])
        for start, completion in zip(row.segments.start, row.segments.completion, strict=True)
        if completion >= 0
    }
    # (1.2071 - 2.2071) / 2 = -.5, and (.5 + .5) / 2 = .5
    assert of["tree_search-0/main/0", 0] == pytest.approx(-0.5, abs=1e-5)
    assert of["tree_search-1/main/0", 0] == pytest.approx(0.5, abs=1e-5)
    assert of["tree_search-0/main/1", 1] == pytest.approx(-2.2071, abs=5e-5)


@pytest.mark.parametrize("spec", [Spec(objective="preference"), Spec(candidates="pairs")])
def test_of_two_steps_from_one_state_the_better_is_preferred_where_they_differ(spec: Spec) -> None:
    found, left_out = [], Counter[str]()
    for row in trees(spec=spec):
        for pair in pairs(row, left_out):
            found.append((pair.entry.candidate_set_id, pair.chosen.member.score, pair.rejected.member.score))
            chosen, rejected = pair.chosen.ids, pair.rejected.ids
            assert np.array_equal(chosen[: pair.shared], rejected[: pair.shared])
            assert chosen[pair.shared] != rejected[pair.shared]
            assert pair.chosen.mask[pair.shared :].all()
    assert sorted(found) == [
        ("tree_search-0/main/1/steps", 1.0, 0.0),
        ("tree_search-2/main/0/steps", 0.75, 0.25),
        ("tree_search-2/main/1/steps", 1.0, 0.5),
    ]
    assert left_out == {"ties": 2}


def test_both_steps_of_the_root_are_gone_on_with_and_one_is_kept() -> None:
    graph = graphs_of(scripted_events("tree_search"))[2]
    [selection] = [
        one
        for one in graph.candidate_selections.values()
        if one.candidate_set_id == "tree_search-2/main/0/steps"
    ]
    assert (selection.selected, selection.continued) == ((0,), (0, 1))
    assert {graph.links[f"tree_search-2/main/{call}"].parent for call in (1, 2)} == {
        ("tree_search-2/main/0", 0),
        ("tree_search-2/main/0", 1),
    }


@pytest.mark.parametrize("text", ["", "ten", "+", "+8", "*999", "- 12..."])
@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_says_anything_ends_an_episode(client: Kept, text: str, seed: int) -> None:
    assert 0.0 <= play(client.episode("e"), Repeating(text), seed) <= 1.0
    [graph] = graphs_of(client.events)
    assert graph.episode is not None
    assert graph.episode.status == "ok"
    ends = {key for key in graph.completions if key not in {link.parent for link in graph.links.values()}}
    graded = {
        (reward.target.call_id, reward.target.completion)
        for reward in graph.rewards.values()
        if reward.name == "reached"
    }
    assert graded == ends


def test_a_step_is_worth_the_mean_of_its_leaves(client: Kept) -> None:
    # 2 + 4 = 6: then + 4 = 10 (1), and no step (0); 2 * 2 = 4: then + 2 = 6 (.5), + 4 = 8 (.75)
    assert play(client.episode("e"), Scripted("+4", "*2", "+4", "?", "+2", "+4"), 2) == 1.0
    [graph] = graphs_of(client.events)
    scores = [member.score for member in graph.candidate_sets["e/main/0/steps"].members]
    assert scores == [(1 + 0) / 2, (0.5 + 0.75) / 2]
