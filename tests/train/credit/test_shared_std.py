from __future__ import annotations

from dataclasses import replace

import pytest

from tests.train.credit.agents import by_agent
from tests.train.rows import episodes_of_one_call, row
from tracestore.shards.row import Row
from tracestore.train.credit import RULES, choose
from tracestore.train.credit.options import BadOption


def test_mean_and_std_with_either_ddof() -> None:
    # mean .5, squares 4 * .25 = 1: std sqrt(1/4) = .5 with ddof 0, sqrt(1/3) = .57735 with ddof 1
    made = episodes_of_one_call([1, 0, 0, 1])
    assert by_agent(made, "shared-std:ddof=0") == [1.0, -1.0, -1.0, 1.0]
    of_one = 0.5 / (1 / 3) ** 0.5
    assert by_agent(made, "shared-std") == pytest.approx([of_one, -of_one, -of_one, of_one], abs=1e-15)
    assert of_one == pytest.approx(0.8660, abs=1e-4)


def test_epsilon_is_added_to_the_std() -> None:
    # .5 / (.5 + .5) = .5
    assert by_agent(episodes_of_one_call([1, 0]), "shared-std:ddof=0,epsilon=0.5") == [0.5, -0.5]


@pytest.mark.parametrize("rule", ["shared-std", "supo", "resum"])
def test_equal_rewards_give_exactly_zero_without_an_epsilon(rule: str) -> None:
    assert by_agent(episodes_of_one_call([0.1, 0.1, 0.1]), rule) == [0.0, 0.0, 0.0]


def test_four_segments_of_one_rollout_weigh_as_much_as_one() -> None:
    # R = 1 in four segments, three R = 0: mean 1/4, where a mean over segments says 4/7 = .5714.
    made = in_segments(4, rewards=[1, 0, 0, 0])
    given = by_sample(made, "shared")
    assert given == [0.75] * 4 + [-0.25] * 3


@pytest.mark.parametrize(("alias", "rule"), [("memagent", "shared"), ("resum", "shared-std")])
def test_an_alias_is_its_rule(alias: str, rule: str) -> None:
    made = in_segments(3, rewards=[0.3, 1, 0.5])
    assert by_sample(made, alias) == by_sample(made, rule)
    assert RULES[alias].credit is RULES[rule].credit


def test_supo_masks_a_rollout_that_ran_out_of_its_budget_and_keeps_it_in_the_statistics() -> None:
    # mean (1 + 0) / 2 still; the exhausted one trains not
    made = episodes_of_one_call([1, 0], episode={1: {"status": "budget_exhausted"}})
    assert by_agent(made, "supo:ddof=0") == [1.0, None]
    assert by_agent(made, "shared-std:ddof=0") == [1.0, -1.0]


def test_budget_exhaustion_is_a_reward_of_0_that_trains_and_an_infra_error_is_nothing() -> None:
    # mean (1 + 0) / 2: the exhausted one counts as 0; a broken one as 0 too would make it 1/3
    made = episodes_of_one_call(
        [1, None, None],
        episode={1: {"status": "budget_exhausted"}, 2: {"status": "infra_error", "in_statistics": False}},
    )
    assert by_agent(made, "shared") == [0.5, -0.5, None]


@pytest.mark.parametrize(
    "spelled", ["shared-std:ddof=2", "shared-std:epsilon=-1", "shared-std:epsilon=nan", "shared:ddof=1"]
)
def test_options_are_checked(spelled: str) -> None:
    with pytest.raises(BadOption):
        choose(spelled)


def in_segments(count: int, *, rewards: list[float]) -> Row:
    """The first episode in `count` samples, the others in one each."""
    homes = [0] * count + list(range(1, len(rewards)))
    made = row(
        [(-1, [1], -1), *((0, [2 + i], i) for i in range(len(homes)))],
        [(home, [0, 1 + i], [i]) for i, home in enumerate(homes)],
        rewards=rewards,
    )
    return replace(made, agents=made.agents)


def by_sample(made: Row, rule: str) -> list[float | None]:
    from tracestore.train.credit import advantages
    from tracestore.train.credit.base import Context

    values = advantages(made, rule=rule, context=Context()).values
    return [values.get((i, sample.completions[0])) for i, sample in enumerate(made.samples)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("rule", "whole"),
    [
        ("shared", "shared"),
        ("rao:depth_weights=no", "rao:lambda=0.4,depth_weights=no"),
        ("pkpo:k=4", "pkpo:k=4"),
        ("mem1:critic=zero,lambda=0.5", "mem1:critic=zero,lambda=0.5,gamma=1.0"),
    ],
)
def test_a_rule_is_spelled_with_every_option(rule: str, whole: str) -> None:
    assert sorted(choose(rule).spelled().partition(":")[2].split(",")) == sorted(
        whole.partition(":")[2].split(",")
    )
    assert choose(choose(rule).spelled()) == choose(rule)
