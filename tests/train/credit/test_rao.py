from __future__ import annotations

from collections import Counter

import pytest

from tests.train.credit.agents import Agent, agents_row, by_agent, notes
from tracestore.shards.row import Row
from tracestore.train.credit import counted
from tracestore.train.credit.base import MissingFact
from tracestore.train.credit.rao import MissingCounts, counts

PLAIN = "rao:depth_weights=no"


def four_trees(first: list[Agent]) -> Row:
    """Roots with s = 1, 0, 1, 0, the first with what is below it."""
    return agents_row([Agent(0), *first, Agent(1), Agent(2), Agent(3)], rewards=[1, 0, 1, 0])


def child(score: float | None, *, parent: int = 0, status: str = "ok") -> Agent:
    return Agent(0, parent=parent, fields={"score": score, "status": status})


def test_a_node_gets_its_score_and_its_childrens_against_the_other_trees_roots() -> None:
    # R = 1 + .4 * (0 + 1) / 2 = 1.2; b = (0 + 1 + 0)/3, (1.2 + 1 + 0)/3, (1.2 + 0 + 0)/3, 2.2/3
    given = by_agent(four_trees([child(0), child(1)]), PLAIN)
    assert given == pytest.approx([1.2 - 1 / 3, -1 / 3, 1 - 1 / 3, -2.2 / 3, 1 - 1.2 / 3, -2.2 / 3])
    assert given == pytest.approx([0.8667, -0.3333, 0.6667, -0.7333, 0.6, -0.7333], abs=5e-5)


def test_a_grandchild_counts_for_its_parent_by_its_base_score_and_not_for_the_root() -> None:
    # child R = 0 + .4 * 1 = .4, but the root's R takes its s = 0: 1 + .4 * 0 = 1
    given = by_agent(four_trees([child(0), child(1, parent=1)]), PLAIN)
    assert given[:3] == pytest.approx([1 - 1 / 3, 0.4 - 1 / 3, 1 - 1 / 3])


def test_lambda_0_is_the_plain_leave_one_out() -> None:
    given = by_agent(four_trees([child(0), child(1)]), f"{PLAIN},lambda=0")
    assert [given[0], *given[3:]] == pytest.approx([2 / 3, -2 / 3, 2 / 3, -2 / 3])


def test_depths_weigh_by_trajectory_over_the_whole_batch() -> None:
    # two rows: each one root and four children -> N_0 = 2, N_1 = 8; alpha 10/2 = 5, w = [2.5, .625]
    rows = [agents_row([Agent(0), *(child(float(i % 2)) for i in range(4))], rewards=[1]) for _ in range(2)]
    batch = counted(rows, rule="rao")
    assert batch == {0: 2, 1: 8}
    assert 2 * 2.5 + 8 * 0.625 == 10
    made = agents_row([Agent(0), child(1), Agent(1)], rewards=[1, 0])
    # R = (1.4, 0): A_root 1.4, its child 1, the other root -1.4; each times the weight of its depth
    assert by_agent(made, "rao", batch_counts=batch) == pytest.approx([2.5 * 1.4, 0.625 * 1, 2.5 * -1.4])


def test_the_weights_do_not_depend_on_how_the_batch_is_cut() -> None:
    rows = [agents_row([Agent(0), child(1)], rewards=[1]), agents_row([Agent(0)], rewards=[0])]
    cut = Counter(counts(rows[0])) + Counter(counts(rows[1]))
    assert counted(rows, rule="rao") == cut == {0: 2, 1: 1}


def test_without_the_batchs_counts_depths_cannot_weigh() -> None:
    with pytest.raises(MissingCounts, match="depth_weights=no"):
        by_agent(four_trees([child(1)]), "rao")
    with pytest.raises(MissingCounts, match="depth=1"):
        by_agent(four_trees([child(1)]), "rao", batch_counts={0: 4})


def test_a_broken_tree_is_left_out_whole_and_also_of_the_baselines() -> None:
    made = four_trees([child(1), child(0, status="interrupted")])
    # roots [0, 1, 0] are left: b = .5, 0, .5
    assert by_agent(made, PLAIN) == pytest.approx([None, None, None, -0.5, 1.0, -0.5])
    assert notes(made, PLAIN) == {"broken_trees": 1}
    assert counts(made) == {0: 3}


def test_a_subagent_out_of_its_budget_has_failed_and_trains() -> None:
    made = four_trees([child(0, status="budget_exhausted")])
    # R = 1 + .4 * 0 = 1
    assert by_agent(made, PLAIN)[:2] == pytest.approx([2 / 3, -1 / 3])


def test_the_only_tree_of_a_group_gets_zero() -> None:
    made = agents_row([Agent(0), child(1)], rewards=[1])
    assert by_agent(made, PLAIN) == [0.0, 0.0]
    assert notes(made, PLAIN) == {"singleton_groups": 1}


def test_equal_roots_give_exactly_zero_and_their_children_what_they_differ() -> None:
    made = agents_row([Agent(0), child(0.5), Agent(1), Agent(2)], rewards=[0.1, 0.1, 0.1])
    given = by_agent(made, f"{PLAIN},lambda=0")
    assert (given[0], given[2], given[3]) == (0.0, 0.0, 0.0)
    assert given[1] == pytest.approx(0.4)


def test_a_judge_that_is_not_trainable_is_no_node_and_two_roots_are_an_error() -> None:
    judge = Agent(0, fields={"trainable": False, "role": "judge"})
    below = Agent(0, parent=0, fields={"trainable": False, "role": "judge"})
    made = agents_row([Agent(0), judge, below, Agent(1)], rewards=[1, 0])
    assert by_agent(made, PLAIN) == [1.0, None, None, -1.0]
    with pytest.raises(MissingFact, match=r"the root agent.*agent-0.*agent-1"):
        by_agent(agents_row([Agent(0), Agent(0), Agent(1)], rewards=[1, 0]), PLAIN)


def test_a_node_without_a_score_is_an_error() -> None:
    with pytest.raises(MissingFact, match="rule='rao', fact='own score', agent_id='agent-1'"):
        by_agent(four_trees([child(None)]), PLAIN)
