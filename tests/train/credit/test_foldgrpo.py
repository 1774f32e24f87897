from __future__ import annotations

from typing import Any

import pytest

from tests.train.credit.agents import Agent, agents_row, by_completion, notes, say
from tracestore.shards.row import Row
from tracestore.train.credit.base import MissingFact

TEN = "foldgrpo:context_limit=10,unsaid_tools=ok"
"""More than 5 tokens read is more than half."""
MEAN = 0.25  # of [1, 0, 0, 1, 0, 0, 0, 0]
STD = {0: (1.5 / 8) ** 0.5, 1: (1.5 / 7) ** 0.5}  # 2 * .75^2 + 6 * .25^2 = 1.5


def group(first: list[Agent], *, first_reward: float = 1, said: Any = ()) -> Row:
    """The paper's eight rollouts, R = [1, 0, 0, 1, 0, 0, 0, 0], of which the first is given."""
    others = [Agent(i) for i in range(1, 8)]
    return agents_row([*first, *others], rewards=[first_reward, 0, 0, 1, 0, 0, 0, 0], said=said)


@pytest.mark.parametrize("ddof", [0, 1])
def test_each_penalty_of_the_paper(ddof: int) -> None:
    rule = f"{TEN},ddof={ddof}"
    # turns of one token after prompts of 2, 4, 6 and 8 tokens; the third creates the branch
    main = Agent(0, chains=((1, 1, 1, 1),))
    branch = Agent(0, parent=0, fields={"spawned_by_completion": 2})
    given = by_completion(group([main, branch], said=[say("in_scope", 0, agent=1)]), rule)
    normal, unfolded, outside = ((clipped - MEAN) / STD[ddof] for clipped in (1, max(0, 1 - 1), 1 - 0.2))
    assert given[:5] == pytest.approx([normal, normal, normal, unfolded, outside], abs=1e-12)
    worked = {0: (1.7321, -0.5774, 1.2702), 1: (1.6202, -0.5401, 1.1881)}[ddof]
    assert (normal, unfolded, outside) == pytest.approx(worked, abs=5e-5)
    assert given[5] == pytest.approx((0 - MEAN) / STD[ddof])


def test_a_penalty_is_a_fraction_and_not_rounded_to_an_integer() -> None:
    branch = Agent(0, parent=0)
    inside = by_completion(group([Agent(0), branch], said=[say("in_scope", 1, agent=1)]), TEN)
    outside = by_completion(group([Agent(0), branch], said=[say("in_scope", 0, agent=1)]), TEN)
    # .2 / std; as int8 the penalty would be 0
    assert inside[1] - outside[1] == pytest.approx(0.2 / STD[1])


def test_the_clip_makes_every_penalty_a_no_op_on_a_failure() -> None:
    main = Agent(0, chains=((1, 1, 1),), tools={0: True})  # the third read 6 tokens
    branch = Agent(0, parent=0)
    said = [say("in_scope", 0, agent=1)]
    made = agents_row([main, branch, Agent(1)], rewards=[0, 1], said=said)
    # mean .5, std sqrt(.5): everything of the failure is (0 - .5) / .7071
    assert by_completion(made, TEN) == pytest.approx([-(0.5**0.5)] * 4 + [0.5**0.5])


def test_a_turn_with_a_failed_tool_call_gets_as_if_it_had_failed() -> None:
    main = Agent(0, chains=((1, 1),), tools={0: True, 1: False})
    others = [Agent(i, tools={0: False}) for i in range(1, 8)]
    made = agents_row([main, *others], rewards=[1, 0, 0, 1, 0, 0, 0, 0])
    given = by_completion(made, "foldgrpo:context_limit=10")
    assert given[:2] == pytest.approx([(0 - MEAN) / STD[1], (1 - MEAN) / STD[1]])


def test_all_successes_with_penalties_have_no_spread_and_get_exactly_zero() -> None:
    made = agents_row([Agent(0, chains=((1, 1, 1),)), Agent(1)], rewards=[1, 1])
    assert by_completion(made, TEN) == [0.0, 0.0, 0.0, 0.0]
    assert notes(made, TEN) == {"groups_without_spread": 1}


def test_a_judge_below_a_branch_needs_no_verdict_and_is_penalised_for_nothing() -> None:
    judge = Agent(0, parent=1, fields={"trainable": False}, tools={0: True})
    made = group([Agent(0), Agent(0, parent=0), judge], said=[say("in_scope", 0, agent=1)])
    given = by_completion(made, TEN)
    assert given[1:3] == pytest.approx([(1 - 0.2 - MEAN) / STD[1], (1 - MEAN) / STD[1]])


def test_a_branch_without_a_verdict_and_an_episode_silent_about_its_tools_are_errors() -> None:
    with pytest.raises(MissingFact, match=r"scope verdict.*agent-1.*'in_scope'"):
        by_completion(group([Agent(0), Agent(0, parent=0)]), TEN)
    with pytest.raises(
        MissingFact, match=r"outcomes of tool calls.*episode-0.*tool_call events.*unsaid_tools=ok"
    ):
        by_completion(group([Agent(0)]), "foldgrpo")
