from __future__ import annotations

from dataclasses import replace

import pytest

from tests.train.credit.agents import Agent, agents_row, by_agent
from tests.train.rows import row
from tracestore.train.credit.base import MissingFact, episode_rewards
from tracestore.train.credit.critical import critical_steps
from tracestore.train.credit.terms import TERMS, UnknownTerm, with_terms

FORKED = row(
    [(-1, [1, 2, 3], -1), (0, [4, 5], 0), (1, [6, 7, 8], 1), (1, [9], 2)],
    [(0, [0, 1, 2], [0, 1]), (0, [0, 1, 3], [0, 2])],
    rewards=[1],
)
"""A shared answer of two tokens, continued by answers of three and one."""


def test_what_branches_share_is_counted_once() -> None:
    # 2 + 3 + 1 = 6, where a sum over branches says (2 + 3) + (2 + 1) = 8
    assert TERMS["length"](FORKED) == {0: 6}
    # and the prompt of three once: 9, not 3 + 5 + 3 + 3 = 14
    assert TERMS["tokens"](FORKED) == {0: 9}


def test_a_term_is_added_to_the_reward_of_each_graded_episode() -> None:
    made = agents_row([Agent(0, chains=((4,),)), Agent(1), Agent(2)], rewards=[1, 0, None])
    paid = with_terms(made, {"length": -0.125, "calls": -0.5})
    # 1 - .125 * 4 - .5 = 0;  0 - .125 - .5 = -.625; ungraded stays ungraded
    assert episode_rewards(paid, range(3)) == {0: 0.0, 1: -0.625}
    assert by_agent(paid, "shared") == [0.3125, -0.3125, None]
    assert with_terms(made, {}) is made


def test_terms_work_with_rules_that_read_own_scores() -> None:
    made = agents_row([Agent(0), Agent(0, parent=0, fields={"score": 1.0}), Agent(1)], rewards=[1, 0])
    # roots 1 - .25 * 2 = .5 and 0 - .25 = -.25: mean .125
    assert by_agent(with_terms(made, {"calls": -0.25}), "own") == [0.375, 0.0, -0.375]


def test_critical_steps_of_stages() -> None:
    # (1; [3, 10, 4]), (2; []): 1 + 10 + 2 = 13, one after the other 20
    below = [
        Agent(0, parent=0, chains=((1,) * calls,), fields={"spawned_by_call": 0}) for calls in (3, 10, 4)
    ]
    made = agents_row([Agent(0, chains=((1, 1, 1),)), *below], rewards=[1])
    assert critical_steps(made) == [13, 3, 10, 4]
    assert TERMS["critical_steps"](made) == {0: 13}
    assert TERMS["calls"](made) == {0: 20}


def test_ten_subagents_cost_what_the_slowest_one_costs() -> None:
    below = [Agent(0, parent=0, chains=((1,) * (i + 1),), fields={"stage": 0}) for i in range(10)]
    assert critical_steps(agents_row([Agent(0), *below], rewards=[1]))[0] == 1 + 10


def test_spawns_of_two_calls_follow_each_other_unless_the_harness_names_one_stage() -> None:
    def main(*fields: dict[str, int]) -> int:
        below = [
            Agent(0, parent=0, chains=((1,) * 3,), fields={"spawned_by_call": i, **one})
            for i, one in enumerate(fields)
        ]
        return critical_steps(agents_row([Agent(0, chains=((1, 1),)), *below], rewards=[1]))[0]

    assert main({}, {}) == 2 + 3 + 3
    assert main({"stage": 0}, {"stage": 0}) == 2 + 3  # they overlap: closed when the last returns


def test_a_nested_subagent_costs_its_own_critical_steps() -> None:
    # main 1 + (child 2 + grandchild 3) = 6
    made = agents_row(
        [Agent(0), Agent(0, parent=0, chains=((1, 1),)), Agent(0, parent=1, chains=((1, 1, 1),))], rewards=[1]
    )
    assert critical_steps(made) == [6, 5, 3]


def test_an_answer_without_ids_has_no_length() -> None:
    [first, *others] = FORKED.completions
    silent = replace(FORKED, completions=(replace(first, num_tokens=None), *others))
    with pytest.raises(MissingFact, match="term='length', fact='token ids', call_id='call-0'"):
        with_terms(silent, {"length": -1})
    judged = replace(silent, agents=tuple(replace(one, trainable=False) for one in silent.agents))
    assert TERMS["length"](judged) == {}  # a judge's answers cost the policy nothing


def test_a_part_of_a_group_does_not_know_the_tokens_of_the_others() -> None:
    with pytest.raises(MissingFact, match="max_row_bytes"):
        with_terms(replace(FORKED, num_parts=2), {"tokens": -1})
    assert with_terms(replace(FORKED, num_parts=2), {"length": -1}).rewards


def test_an_unknown_term_names_those_there_are() -> None:
    with pytest.raises(UnknownTerm, match="calls, critical_steps, length, tokens"):
        with_terms(FORKED, {"cost": 1.0})
