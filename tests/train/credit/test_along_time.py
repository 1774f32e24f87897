"""MEM1 and CompactionRL: advantages that run along what an agent sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from tests.train.credit.agents import Agent, agents_row, by_completion
from tracestore.shards.reasons import Reason
from tracestore.train.credit import advantages
from tracestore.train.credit.base import Context, MissingFact
from tracestore.train.credit.compaction_rl import lambda_of
from tracestore.train.credit.gae import MissingValues, NoSequence, gae


def test_gae_of_two_segments_with_a_lambda_each() -> None:
    # 0 + .5 * 1 = .5, 1;  0 + .25 * 2 = .5, 2
    zero = np.zeros(2)
    assert gae(np.array([0.0, 1.0]), zero, gamma=1, lambda_=0.5).tolist() == [0.5, 1.0]
    assert gae(np.array([0.0, 2.0]), zero, gamma=1, lambda_=0.25).tolist() == [0.5, 2.0]


def test_gae_with_a_critic() -> None:
    # last: 1 - .5 = .5; first: 0 + .9 * .5 - .2 + .9 * .8 * .5 = .25 + .36 = .61
    given = gae(np.array([0.0, 1.0]), np.array([0.2, 0.5]), gamma=0.9, lambda_=0.8)
    assert given.tolist() == pytest.approx([0.61, 0.5])


@settings(max_examples=50)
@drawn(
    size=st.integers(0, 400),
    seed=st.integers(0, 2**32 - 1),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
)
def test_gae_in_blocks_is_gae_token_by_token(size: int, seed: int, gamma: float, lambda_: float) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=size), rng.normal(size=size)
    expected, following, value_after = np.zeros(size), 0.0, 0.0
    for i in reversed(range(size)):
        following = rewards[i] + gamma * value_after - values[i] + gamma * lambda_ * following
        expected[i], value_after = following, values[i]
    given_N = gae(rewards, values, gamma=gamma, lambda_=lambda_)
    assert np.allclose(given_N, expected, rtol=1e-11, atol=1e-11)


def test_mem1_runs_across_turns_in_sampling_order() -> None:
    # two turns of two tokens, samples of their own: .95^3, .95^2, .95, 1
    made = agents_row([Agent(chains=((2,), (2,)))], rewards=[1])
    given = by_completion(made, "mem1:lambda=0.95,critic=zero")
    assert given[0] == pytest.approx([0.95**3, 0.95**2])
    assert given[1] == pytest.approx([0.95, 1])
    assert (*given[0], *given[1]) == pytest.approx((0.8574, 0.9025, 0.95, 1), abs=5e-5)


def test_mem1_orders_by_the_calls_ordinals_and_not_by_their_place_in_the_row() -> None:
    made = agents_row([Agent(chains=((2,), (2,)))], rewards=[1])
    first, second = made.calls
    turned = replace(made, calls=(replace(first, ordinal=7), replace(second, ordinal=3)))
    given = by_completion(turned, "mem1:lambda=0.95,critic=zero")
    assert given[1] == pytest.approx([0.95**3, 0.95**2])
    assert given[0] == pytest.approx([0.95, 1])


def test_mem1_with_a_critic_says_what_it_should_have_said() -> None:
    # lambda = gamma = 1: A = 1 - V, and the return is 1 everywhere
    made = agents_row([Agent(chains=((2,),))], rewards=[1])
    values = np.array([0, 0, 0.25, 0.5])
    given = advantages(made, rule="mem1", context=Context(values=values))
    assert given.values[0, 0].tolist() == [0.75, 0.5]  # type: ignore[union-attr]
    assert given.returns[0, 0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("rule", ["mem1", "compaction-rl"])
def test_no_critic_is_V_0_only_where_the_user_says_so(rule: str) -> None:
    made = agents_row([Agent()], rewards=[1])
    with pytest.raises(MissingValues, match=f"{rule}:critic=zero"):
        by_completion(made, rule)
    with pytest.raises(MissingValues, match="values=1, tokens=3"):
        by_completion(made, rule, values=np.zeros(1))


def test_a_call_without_an_ordinal_or_with_two_answers_is_no_sequence() -> None:
    made = agents_row([Agent(chains=((2, 2),))], rewards=[1])
    first, second = made.calls
    with pytest.raises(MissingFact, match=r"ordinal of a call.*call-1"):
        by_completion(replace(made, calls=(first, replace(second, ordinal=None))), "mem1:critic=zero")
    with pytest.raises(NoSequence, match="ordinal=0"):
        by_completion(replace(made, calls=(first, replace(second, ordinal=0))), "mem1:critic=zero")


@pytest.mark.parametrize(
    ("length", "factors"), [(10, (1, 0.5016, 0.2516, 0.1262)), (1000, (1, 0.5133, 0.2635, 0.1352))]
)
def test_the_factor_of_equal_segments_by_how_many_come_after(length: int, factors: tuple[float]) -> None:
    made = agents_row([Agent(chains=((length,),) * 4)], rewards=[1])
    given = by_completion(made, "compaction-rl:critic=zero")
    # the last token of each segment has a local advantage of 1, so that the factor is its own
    assert [segment[-1] for segment in given][::-1] == pytest.approx(factors, abs=5e-5)
    assert given[0][-1] == pytest.approx(lambda_of(length) ** (3 * length))


def test_an_execution_and_its_summary_are_two_segments() -> None:
    # L = (2, 1): lambda 1 - 1/3 = 2/3 and 1 - 2/3 = 1/3; local [2/3, 1] and [1]; after (1, 0)
    made = agents_row([Agent(chains=((2, 1),), purposes={1: "summarize"})], rewards=[1])
    given = by_completion(made, "compaction-rl:critic=zero")
    assert given[0] == pytest.approx([2 / 3 * 2 / 3, 2 / 3])
    assert given[1] == pytest.approx([1])
    assert given[0] == pytest.approx([0.4444, 0.6667], abs=5e-5)


def test_turns_of_one_execution_are_one_segment() -> None:
    # L = 2: lambda 2/3; one segment of two turns: [2/3, 1]
    made = agents_row([Agent(chains=((1, 1),))], rewards=[1])
    assert by_completion(made, "compaction-rl:critic=zero") == [pytest.approx([2 / 3]), [1.0]]


def test_the_exponent_counts_trained_tokens_alone() -> None:
    # segments of 2 and 2, of the second one token is excluded: L = (2, 1), after (1, 0)
    made = agents_row([Agent(chains=((2,), (2,)))], rewards=[1])
    reason = made.reason.copy()
    reason[np.flatnonzero(made.segments.completion[made_segment(made)] == 1)[0]] = Reason.STALE
    given = by_completion(replace(made, reason=reason), "compaction-rl:critic=zero")
    assert given[0] == pytest.approx([2 / 3 * 2 / 3, 2 / 3])
    assert given[1] == [0.0, 1.0]  # the excluded token trains not, whatever stands there


def test_a_segment_without_a_trained_token_is_skipped() -> None:
    made = agents_row([Agent(chains=((2,), (1,), (1,)))], rewards=[1])
    reason = made.reason.copy()
    reason[made.segments.completion[made_segment(made)] == 1] = Reason.STALE
    given = by_completion(replace(made, reason=reason), "compaction-rl:critic=zero")
    assert given[1] is None
    assert given[0] == pytest.approx([2 / 3 * 2 / 3, 2 / 3])


def test_the_two_targets_of_the_critic() -> None:
    made = agents_row([Agent(chains=((1,), (1,)))], rewards=[1])
    # L = 1: lambda 1/3; V = .25 at both; local advantages 1 - .25 = .75; the first one fades to .25
    values = np.full(len(made.token_ids), 0.25)
    faded, local = (
        advantages(made, rule=f"compaction-rl:critic_target={name}", context=Context(values=values))
        for name in ("faded", "local")
    )
    assert faded.values[0, 0] == local.values[0, 0] == pytest.approx([0.25])
    assert faded.returns[0, 0] == pytest.approx([0.25 + 0.25])
    assert local.returns[0, 0] == pytest.approx([0.75 + 0.25])
    assert faded.returns[1, 1] == local.returns[1, 1] == pytest.approx([1.0])


def test_a_run_out_of_budget_trains_with_0() -> None:
    made = agents_row([Agent()], episode={0: {"status": "budget_exhausted"}})
    assert by_completion(made, "compaction-rl:critic=zero") == [[0.0]]


def made_segment(made: object) -> np.ndarray:
    """int [T], the segment each token lies in."""
    segments = made.segments  # type: ignore[attr-defined]
    return np.repeat(np.arange(len(segments)), segments.length)
