"""A reward of weight 0 is on record and grades nothing: no total, credit or mask changes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import factories as make
from tests.exporters.planned import planned, reasons
from tests.train.credit.agents import Agent, agents_row, say
from tests.train.credit.sql import RULES
from tests.train.credit.test_sql import branching, by_rules, trees_of_agents
from tests.train.rows import candidates, episodes_of_one_call
from tracestore.errors import TracestoreError
from tracestore.graph.build import build
from tracestore.shards.candidates import worth
from tracestore.shards.reasons import label_of
from tracestore.shards.rewards import reward_terms
from tracestore.shards.row import RewardEntry, Row
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context
from tracestore.train.credit.facts import own_scores
from tracestore.train.credit.leaves import leaves
from tracestore.wire.reward import Reward, counted
from tracestore_exporters.expected import expected_of_group
from tracestore_exporters.spec import Spec

PLACES = ("episode", "agent", "call", "completion", "candidate")
VALUES = st.floats(allow_nan=False, allow_infinity=False, width=32)


def test_a_term_is_value_times_weight_and_of_weight_0_there_is_none() -> None:
    assert [counted(0.5, None), counted(0.5, 2.0), counted(0.0, 1.0)] == [0.5, 0.5 * 2, 0.0]
    assert counted(0.5, 0.0) is counted(float("inf"), -0.0) is None


def weightless(draw: st.DrawFn, made: Row, number: int) -> RewardEntry:
    """A reward of weight 0 on something of the row."""
    target = draw(st.sampled_from(PLACES))
    nothing = dict.fromkeys(
        ("agent", "call", "completion", "candidate_set", "member", "token_start", "token_length")
    )
    named: dict[str, Any] = dict(nothing)
    episode = draw(st.integers(0, len(made.episodes) - 1))
    if target == "agent":
        named["agent"] = draw(st.integers(0, len(made.agents) - 1))
        episode = made.agents[named["agent"]].episode
    elif target == "candidate":
        named |= {"candidate_set": 0, "member": draw(st.integers(0, 1))}
    elif target != "episode":
        named["completion"] = draw(st.integers(0, len(made.completions) - 1))
        named["call"] = made.completions[named["completion"]].call
        named["completion"] = named["completion"] if target == "completion" else None
    return RewardEntry(
        reward_id=f"weightless-{number}",
        target=target,
        episode=episode,
        name=draw(st.sampled_from(["em", "style", "env"])),
        value=draw(VALUES),
        weight=draw(st.sampled_from([0.0, -0.0])),
        scorer=None,
        scorer_version=None,
        seq=0,
        **named,
    )


@st.composite
def with_and_without(draw: st.DrawFn) -> tuple[Row, Row]:
    """A row, and the same one with rewards of weight 0 anywhere among its own."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    made = draw(st.sampled_from([trees_of_agents, branching]))(rng, "g")
    scores = (None, 0.5) if rng.random() < 0.5 else (None, None)
    made = replace(made, candidate_sets=(candidates("shared", scores),))
    rewards = list(made.rewards)
    for number in range(draw(st.integers(1, 4))):
        rewards.insert(draw(st.integers(0, len(rewards))), weightless(draw, made, number))
    return made, replace(made, rewards=tuple(rewards))


def outcome(made: Row, rule: str) -> object:
    """The credit of a row, or what is said of one that lacks what the rule reads."""
    try:
        return by_rules([made], rule)
    except TracestoreError as error:
        return str(error)


@given(rows=with_and_without())
def test_rewards_of_weight_0_change_no_total_and_no_credit(rows: tuple[Row, Row]) -> None:
    bare, more = rows
    assert len(more.rewards) > len(bare.rewards)
    every = range(len(bare.episodes))
    assert reward_terms(more, every) == reward_terms(bare, every)
    assert own_scores(more) == own_scores(bare)
    assert [worth(more, 0, member) for member in range(2)] == [worth(bare, 0, member) for member in range(2)]
    for rule in RULES:
        assert outcome(more, rule) == outcome(bare, rule), rule


def judged(draw: st.DrawFn, name: str, weights: Sequence[float | None]) -> list[Reward]:
    """Rewards of a few values on candidates of the set and on the episode."""
    targets: list[dict[str, Any]] = [{}, *({"candidate_set_id": "s", "member": n} for n in range(3))]
    parts = st.tuples(st.sampled_from(targets), st.sampled_from([0.0, 1.0, 2.0]), st.sampled_from(weights))
    return [
        make.reward(f"{name}{number}", value, name="em", weight=weight, **target)
        for number, (target, value, weight) in enumerate(draw(st.lists(parts, min_size=1, max_size=5)))
    ]


@st.composite
def chosen_with_and_without(draw: st.DrawFn) -> tuple[list[Any], list[Any]]:
    """An episode with a candidate set that was chosen from, without and with rewards of weight 0."""
    answers = [make.answer("a", ids=[5 + n]) for n in range(3)]
    score = st.sampled_from([None, None, 0.5])
    bare: list[Any] = [
        make.episode(),
        make.agent(),
        make.call("c", [make.user("u")], *answers, prompt_ids=[1]),
        make.candidate_set("s", *(make.member("c", n, score=draw(score)) for n in range(3))),
        make.selection("x", "s", draw(st.integers(0, 2))),
        *judged(draw, "r", [None, 0.5, 1.0, -1.0]),
    ]
    return bare, [*bare, *judged(draw, "weightless", [0.0])]


@given(events=chosen_with_and_without())
def test_rewards_of_weight_0_change_no_mask_nor_what_the_verifier_expects(
    events: tuple[list[Any], list[Any]],
) -> None:
    for objective in ("rl", "preference"):
        spec = Spec(objective=objective)
        bare, more = (reasons(planned(these, spec=spec))["c"] for these in events)
        assert bare == more
        for these in events:
            expected = expected_of_group({"e": build(these)}, spec)
            assert [label_of(int(one.reason[0])) for _, one in sorted(expected.items())] == bare


def test_an_episode_of_which_no_reward_counts_is_ungraded() -> None:
    made = episodes_of_one_call([1.0, 0.5, [(0.9, 0.0)]])
    given = advantages(made, rule="shared", context=Context())
    # The mean is (1 + .5) / 2 = .75; the third is in no mean and has no advantage.
    assert given.values == {(0, 0): 0.25, (1, 1): -0.25}
    assert given.notes["ungraded_episodes"] == 1


def test_an_agent_of_which_no_reward_counts_has_the_score_it_was_posted_with() -> None:
    agents = [Agent(0), Agent(0, parent=0, fields={"score": 0.75}), Agent(0, parent=0)]
    said = [replace(say("em", 1.0, agent=agent), weight=0.0) for agent in (1, 2)]
    assert own_scores(agents_row(agents, rewards=[1.0], said=said)) == {0: 1.0, 1: 0.75}


def test_a_branch_of_which_no_reward_counts_is_no_leaf() -> None:
    made = episodes_of_one_call([1.0])
    beside = replace(made, rewards=(*made.rewards, replace(say("em", 9.0, completion=0), weight=0.0)))
    assert leaves(beside, rule="treerl") == leaves(made, rule="treerl")
    assert [leaf.value for leaf in leaves(beside, rule="treerl")[0]] == [1.0]


@pytest.mark.parametrize(
    ("recorded", "stated", "expected"),
    [
        (0.0, None, "trained"),  # neither candidate is known to be worth anything
        (1.0, None, "not_paired"),  # both are worth 1
        (1.0, 0.0, "trained"),  # the spec's weight overrides the recorded one
        (0.0, 1.0, "not_paired"),
    ],
)
def test_the_weight_of_the_spec_decides_where_it_states_one(
    recorded: float, stated: float | None, expected: str
) -> None:
    events: list[Any] = [
        make.episode(),
        make.agent(),
        make.call("c", [make.user("u")], *(make.answer("a", ids=[5 + n]) for n in range(2)), prompt_ids=[1]),
        make.candidate_set("s", make.member("c", 0), make.member("c", 1)),
        make.selection("x", "s", 1),
    ]
    events += [
        make.reward(f"r{n}", 1.0, name="em", candidate_set_id="s", member=n, weight=recorded)
        for n in range(2)
    ]
    spec = Spec(objective="preference", rewards={"em": stated})
    assert reasons(planned(events, spec=spec))["c"] == [expected] * 2
    graph = build(events)
    found = expected_of_group({"e": graph}, spec)
    assert {bool(one.reason[0]) for one in found.values()} == {expected != "trained"}
    weights = {spec.weight_of(one) for one in graph.rewards.values()}
    assert weights == {recorded if stated is None else stated}
