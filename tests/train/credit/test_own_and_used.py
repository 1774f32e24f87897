from __future__ import annotations

import numpy as np
import pytest

from tests.train.credit.agents import Agent, agents_row, by_agent, notes, say
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, MissingFact, combine

TREE = [
    Agent(0),
    Agent(0, parent=0, fields={"score": 0.9}),
    Agent(0, parent=0, fields={"score": 0.1}),
    Agent(1),
    Agent(1, parent=3, fields={"score": 0.2}),
]


def test_own_compares_agents_with_those_at_their_depth() -> None:
    # roots mean (1 + 0) / 2; subagents mean (.9 + .1 + .2) / 3 = .4
    given = by_agent(agents_row(TREE, rewards=[1, 0]), "own")
    assert given == pytest.approx([0.5, 0.5, -0.3, -0.5, -0.2])


def test_rewards_on_an_agent_are_its_own_score_and_facts_are_not() -> None:
    # .25 + .25 = .5 in place of the posted score .9; `used` says nothing of its score
    said = [say("em", 0.25, agent=1), say("style", 0.25, agent=1), say("used", 1, agent=1)]
    made = agents_row(TREE, rewards=[1, 0], said=said)
    mean = (0.5 + 0.1 + 0.2) / 3
    assert by_agent(made, "own") == pytest.approx([0.5, 0.5 - mean, 0.1 - mean, -0.5, 0.2 - mean])


def test_own_needs_the_score_of_every_agent_of_a_graded_episode() -> None:
    silent = Agent(0, parent=0)
    with pytest.raises(MissingFact, match=r"own score.*agent-1.*post `score`"):
        by_agent(agents_row([Agent(0), silent, Agent(1)], rewards=[1, 0]), "own")
    assert by_agent(agents_row([Agent(0), silent, Agent(1)], rewards=[None, 0]), "own") == [None, None, 0.0]


def test_own_leaves_out_an_agent_that_broke() -> None:
    broken = Agent(0, parent=0, fields={"status": "infra_error"})
    made = agents_row([*TREE, broken], rewards=[1, 0])
    assert by_agent(made, "own") == pytest.approx([0.5, 0.5, -0.3, -0.5, -0.2, None])
    assert notes(made, "own") == {"broken_agents": 1}


def test_equal_own_scores_give_exactly_zero() -> None:
    below = [Agent(0, parent=0, fields={"score": 0.1}) for _ in range(3)]
    assert by_agent(agents_row([Agent(0), *below], rewards=[1]), "own") == [0.0] * 4


def test_a_finding_that_was_ignored_gets_nothing_of_the_episodes_advantage() -> None:
    # A = 1 - (1 + 0) / 2 = .5; u = (1, 0)
    made = agents_row(
        [
            Agent(0),
            Agent(0, parent=0, fields={"finding_used": True}),
            Agent(0, parent=0, fields={"finding_used": False}),
            Agent(0, parent=2, fields={"finding_used": True}),  # used by one that was ignored: 1 * 0
            Agent(1),
        ],
        rewards=[1, 0],
    )
    assert by_agent(made, "used") == [0.5, 0.5, 0.0, 0.0, -0.5]


def test_a_reward_says_how_much_of_a_finding_was_used() -> None:
    # .5 * .25 = .125; a weight of the reward says nothing here
    used = Agent(0, parent=0, fields={"finding_used": True})
    made = agents_row([Agent(0), used, Agent(1)], rewards=[1, 0], said=[say("used", 0.25, agent=1)])
    assert by_agent(made, "used") == [0.5, 0.125, -0.5]


def test_a_finding_of_which_nobody_said_whether_it_was_used_is_an_error_never_0() -> None:
    made = agents_row([Agent(0), Agent(0, parent=0), Agent(1)], rewards=[1, 0])
    with pytest.raises(MissingFact, match=r"used finding.*agent-1.*finding_used"):
        by_agent(made, "used")


def test_nothing_of_an_advantage_is_an_advantage_and_none_is_not() -> None:
    made = agents_row(
        [Agent(0), Agent(0, parent=0, fields={"finding_used": False}), Agent(1), Agent(2)],
        rewards=[1, 0, None],
    )
    credit = combine(made, advantages(made, rule="used", context=Context()))
    sampled = np.repeat(made.segments.completion, made.segments.length)
    has = {int(one): bool(credit.has_T[sampled == one].all()) for one in set(sampled.tolist()) if one >= 0}
    # The ignored subagent (completion 1) counts in the denominator with 0; the ungraded episode (3) nowhere.
    assert has == {0: True, 1: True, 2: True, 3: False}
    assert (credit.plus_T[sampled == 1] == 0).all()
