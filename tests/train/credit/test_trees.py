"""Tree-GRPO and TreeRL: branches against branches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.train.credit.agents import Agent, agents_row, by_completion, notes, say
from tests.train.rows import row
from tracestore.shards.row import Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, MissingFact, combine

SCORES = [[1.0, 0.0], [1.0, 1.0]]


def two_trees(*, rewards: Any = ()) -> Row:
    """Two episodes, each an answer of two tokens that two answers of one token continue.

    prompt - [0] - [1]        prompt - [3] - [4]
                 - [2]                     - [5]
    """
    made = row(
        [
            (-1, [1, 2], -1),
            (0, [3, 4], 0),
            (1, [5], 1),
            (1, [6], 2),
            (0, [7, 8], 3),
            (4, [9], 4),
            (4, [10], 5),
        ],
        [
            (0, [0, 1, 2], [0, 1]),
            (0, [0, 1, 3], [0, 2]),
            (1, [0, 4, 5], [3, 4]),
            (1, [0, 4, 6], [3, 5]),
        ],
        rewards=rewards,
    )
    if rewards:
        return made
    leaves = {1: SCORES[0][0], 2: SCORES[0][1], 4: SCORES[1][0], 5: SCORES[1][1]}
    said = [say("em", value, episode=int(one > 2), completion=one) for one, value in leaves.items()]
    return replace(made, rewards=tuple(said))


def of_leaves(made: Row, rule: str) -> list[Any]:
    values = advantages(made, rule=rule, context=Context()).values
    return [values[index, sample.completions[-1]] for index, sample in enumerate(made.samples)]


def test_tree_grpo_adds_what_a_leaf_is_in_its_tree_and_in_the_group() -> None:
    # intra: mean .5, std sqrt(.25 + .25) = .7071; equal -> 0. inter: mean .75, std sqrt(12/16/3) = .5
    intra, inter = [0.5 / 0.5**0.5, -0.5 / 0.5**0.5, 0, 0], [0.5, -1.5, 0.5, 0.5]
    given = of_leaves(two_trees(), "tree-grpo:epsilon=0")
    assert given == pytest.approx([a + b for a, b in zip(intra, inter, strict=True)])
    assert given == pytest.approx([1.2071, -2.2071, 0.5, 0.5], abs=5e-5)
    assert of_leaves(two_trees(), "tree-grpo") == pytest.approx([1.207105, -2.207103, 0.5, 0.5], abs=1e-5)


def test_a_shared_answer_gets_the_mean_of_its_leaves() -> None:
    made = two_trees()
    credit = combine(made, advantages(made, rule="tree-grpo:epsilon=0", context=Context()))
    # (1.2071 - 2.2071) / 2 = -.5
    assert (credit.plus_T + credit.minus_T)[2:4] == pytest.approx([-0.5, -0.5])


def test_a_tree_of_one_leaf_gets_its_raw_reward_or_nothing() -> None:
    made = agents_row([Agent(0), Agent(1)], rewards=[1, 0])
    # intra r = 1 and 0; inter mean .5, std .7071
    assert by_completion(made, "tree-grpo:epsilon=0") == pytest.approx([1 + 0.5**0.5, -(0.5**0.5)])
    assert by_completion(made, "tree-grpo:epsilon=0,singleton=zero") == pytest.approx([0.5**0.5, -(0.5**0.5)])
    alone = agents_row([Agent(0)], rewards=[1])
    assert by_completion(alone, "tree-grpo:epsilon=0") == [2.0]  # both means are of one leaf
    assert by_completion(alone, "tree-grpo:singleton=zero") == [0.0]


@pytest.mark.parametrize("rule", ["tree-grpo:epsilon=0,singleton=zero", "treerl"])
def test_an_episode_in_several_samples_is_one_leaf_where_no_branch_was_scored(rule: str) -> None:
    cut = agents_row([Agent(0, chains=((1,), (1,), (1,))), Agent(1)], rewards=[1, 0])
    whole = agents_row([Agent(0), Agent(1)], rewards=[1, 0])
    assert by_completion(cut, rule)[2:] == by_completion(whole, rule)


@pytest.mark.parametrize("rule", ["tree-grpo:singleton=zero", "treerl"])
def test_equal_leaves_get_exactly_zero(rule: str) -> None:
    made = two_trees(rewards=[0.1, 0.1])
    given = advantages(made, rule=rule, context=Context())
    assert all(value == 0.0 for one in given.values.values() for value in ravel(one))


@pytest.mark.parametrize("rule", ["tree-grpo", "treerl"])
def test_a_branch_without_a_reward_beside_one_that_has_it_is_an_error(rule: str) -> None:
    made = two_trees()
    with pytest.raises(MissingFact, match=r"reward of a branch.*call-2:0"):
        advantages(replace(made, rewards=made.rewards[:1]), rule=rule, context=Context())


def test_subagents_are_no_leaves() -> None:
    made = agents_row([Agent(0), Agent(0, parent=0), Agent(1)], rewards=[1, 0])
    assert by_completion(made, "tree-grpo")[1] is None
    assert notes(made, "treerl") == {"samples_below_the_root_agent": 1}


def test_treerl_pays_a_node_for_what_it_raised() -> None:
    # leaves 1 and .5 below one answer (V = .75), .25 and .25 below the other (V = .25): V_root = .5
    made = two_trees()
    values = (1.0, 0.5, 0.25, 0.25)
    made = replace(
        made, rewards=tuple(replace(r, value=v) for r, v in zip(made.rewards, values, strict=True))
    )
    given = by_completion(made, "treerl")
    assert given[0] == pytest.approx([(0.25 + 0.25) / 2**0.5] * 2)
    assert given[0] == pytest.approx([0.3536] * 2, abs=5e-5)
    assert (given[1], given[2]) == ([(1 - 0.5) + (1 - 0.75)], [(0.5 - 0.5) + (0.5 - 0.75)])
    assert (given[1], given[2]) == ([0.75], [-0.25])
    assert given[3] == pytest.approx([(-0.25 - 0.25) / 2**0.5] * 2)
    assert given[4] == given[5] == [-0.25]  # (.25 - .5) + (.25 - .25)


def test_treerl_with_leaves_against_the_others_is_n_over_n_minus_1_times_it() -> None:
    plain, rloo = by_completion(two_trees(), "treerl"), by_completion(two_trees(), "treerl:leaf_values=rloo")
    for one, other in zip(plain, rloo, strict=True):
        assert other == pytest.approx([4 / 3 * value for value in one])


def test_a_fork_inside_an_answer_cuts_its_node() -> None:
    # tokens 3 and 4 are one answer; the second attempt was forced through 3 and went on with 5
    made = row(
        [(-1, [1], -1), (0, [3], 0), (1, [4], 0), (1, [5], 1)],
        [(0, [0, 1, 2], [0]), (1, [0, 1, 3], [1])],
        rewards=[1, 0],
    )
    given = by_completion(made, "treerl")
    # token 3 is below both leaves: the root's own node, 0; token 4: (1 - .5) + (1 - .5)
    assert given == [[0.0, 1.0], [-1.0]]


def test_forks_of_an_episode_are_leaves_of_its_tree() -> None:
    fork = {"forked_from_episode_id": "episode-0"}
    made = agents_row(
        [Agent(0), Agent(1), Agent(2), Agent(3)],
        rewards=[1, 0, 1, 1],
        episode={1: fork, 3: {"forked_from_episode_id": "episode-2"}},
    )
    assert by_completion(made, "tree-grpo:epsilon=0") == pytest.approx([1.2071, -2.2071, 0.5, 0.5], abs=5e-5)


def ravel(value: Any) -> list[float]:
    return [value] if isinstance(value, float) else value.tolist()
