from __future__ import annotations

import pytest

from tests.train.credit.agents import Agent, agents_row, by_agent
from tracestore.shards.row import Row
from tracestore.train.credit.base import MissingFact
from tracestore.train.credit.options import BadOption
from tracestore.train.credit.parl import Parl, auxiliary

RULE = "parl:anneal_steps=100"


def swarm(*statuses: str | None) -> Row:
    """An orchestrator that succeeded with frozen subagents of these statuses, and one that failed alone."""
    below = [Agent(0, parent=0, fields={"status": s, "trainable": False}) for s in statuses]
    return agents_row([Agent(0), Agent(1), *below], rewards=[1, 0])


def test_the_auxiliary_rewards_and_where_they_end() -> None:
    made = swarm("ok", "ok", "failed")
    at = [agent.depth or 0 for agent in made.agents]
    options = Parl(anneal_steps=100)
    # .2 * 1 + .1 * 2/3 = .2667
    assert 1 + auxiliary(made, 0, at, step=0, options=options) == pytest.approx(1.2667, abs=5e-5)
    # half way: half of it
    assert auxiliary(made, 0, at, step=50, options=options) == pytest.approx((0.2 + 0.2 / 3) / 2)
    assert auxiliary(made, 0, at, step=99, options=options) > 0
    for step in (100, 101, 10**9):
        assert 1 + auxiliary(made, 0, at, step=step, options=options) == 1.0
    assert auxiliary(made, 1, at, step=0, options=options) == 0.0  # delegated nothing


def test_the_orchestrator_alone_gets_an_advantage() -> None:
    # r = (1.2667, 0): mean .6333
    given = by_agent(swarm("ok", "ok", "failed"), RULE)
    reward = 1 + 0.2 + 0.1 * 2 / 3
    assert given == pytest.approx([reward / 2, -reward / 2, None, None, None])
    assert by_agent(swarm("ok", "ok", "failed"), RULE, step=100) == [0.5, -0.5, None, None, None]


def test_as_many_subagents_as_wanted_are_worth_all_of_it() -> None:
    # 1 of 4 wanted: .2 * 1/4 + .1 * 1
    given = by_agent(swarm("ok"), f"{RULE},subagents=4")
    assert given[0] == pytest.approx((1 + 0.05 + 0.1) / 2)


def test_a_subagent_of_unknown_fate_is_an_error_while_it_counts() -> None:
    with pytest.raises(MissingFact, match=r"status of a subagent.*agent-2"):
        by_agent(swarm(None), RULE)
    assert by_agent(swarm(None), RULE, step=100) == [0.5, -0.5, None]
    assert by_agent(swarm(None), f"{RULE},finish=0")[0] == pytest.approx(1.2 / 2)


def test_the_schedule_that_the_paper_does_not_disclose_has_no_default() -> None:
    with pytest.raises(BadOption, match="anneal_steps: Field required"):
        by_agent(swarm("ok"), "parl")
