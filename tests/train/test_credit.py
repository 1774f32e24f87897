from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.train.rows import candidates, episodes_of_one_call, row
from tracestore.shards.reasons import Reason
from tracestore.shards.row import MemberEntry, Row
from tracestore.train.credit import UnknownRule, advantages
from tracestore.train.credit.base import Advantages, Context, NonFiniteCredit, WrongLength, combine
from tracestore.train.credit.candidates import MissingScore, UnsupportedTreatment
from tracestore.train.credit.options import BadOption


def given(made: Row, rule: str) -> dict[tuple[int, int], Any]:
    return dict(advantages(made, rule=rule, context=Context()).values)


def by_sample(made: Row, rule: str) -> list[float | None]:
    """The advantage of each sample, whose completions must agree on it."""
    values = given(made, rule)
    result: list[float | None] = []
    for index, sample in enumerate(made.samples):
        found = {values.get((index, completion)) for completion in sample.completions}
        assert len(found) == 1
        result.append(found.pop())
    return result


def test_shared_is_the_reward_minus_the_group_mean() -> None:
    # mean (1 + 0 + 0 + 1) / 4 = 0.5
    assert by_sample(episodes_of_one_call([1, 0, 0, 1]), "shared") == [0.5, -0.5, -0.5, 0.5]


def test_rloo_leaves_the_episode_out_of_its_baseline() -> None:
    # 1 - (0 + 0 + 1) / 3 = 2/3,  0 - (1 + 0 + 1) / 3 = -2/3
    assert by_sample(episodes_of_one_call([1, 0, 0, 1]), "rloo") == pytest.approx(
        [2 / 3, -2 / 3, -2 / 3, 2 / 3]
    )


def test_pkpo_gives_the_wrong_ones_what_the_others_earn_in_the_best_of_k() -> None:
    # right k/n = 2/4; wrong 2/4 * (1 - C(2, 1) / C(3, 1)) = 1/2 * 1/3
    made = episodes_of_one_call([1, 0, 0, 0])
    assert by_sample(made, "pkpo:k=2") == pytest.approx([0.5, 1 / 6, 1 / 6, 1 / 6])
    assert by_sample(episodes_of_one_call([1, 1]), "pkpo:k=2") == [1.0, 1.0]  # never centred


def test_pkpo_says_nothing_of_a_group_smaller_than_k() -> None:
    made = episodes_of_one_call([1, None, 0])
    assert given(made, "pkpo:k=3") == {}
    notes = advantages(made, rule="pkpo:k=3", context=Context()).notes
    assert notes == {"ungraded_episodes": 1, "groups_smaller_than_k": 1}


def test_pkpo_without_its_k_says_which_option_is_missing() -> None:
    with pytest.raises(BadOption, match=r"k: Field required.*options: k"):
        given(episodes_of_one_call([1, 0]), "pkpo")


def test_the_group_mean_is_over_episodes_however_many_samples_they_were_cut_into() -> None:
    # Three samples of episode 0 (reward 1) and one of episode 1 (reward 0): mean (1 + 0) / 2, not 3 / 4.
    made = row(
        [(-1, [1], -1), (0, [2], 0), (0, [3], 1), (0, [4], 2), (0, [5], 3)],
        [(0, [0, 1], [0]), (0, [0, 2], [1]), (0, [0, 3], [2]), (1, [0, 4], [3])],
        rewards=[1, 0],
    )
    assert by_sample(made, "shared") == [0.5, 0.5, 0.5, -0.5]
    assert by_sample(made, "rloo") == [1.0, 1.0, 1.0, -1.0]


@pytest.mark.parametrize("rule", ["shared", "rloo"])
def test_equal_rewards_give_exactly_zero(rule: str) -> None:
    assert sum([0.1] * 3) / 3 != 0.1  # what a plain mean leaves
    made = episodes_of_one_call([0.1, 0.1, 0.1])
    assert by_sample(made, rule) == [0.0, 0.0, 0.0]
    assert advantages(made, rule=rule, context=Context()).notes == {"groups_without_spread": 1}


@pytest.mark.parametrize("rule", ["shared", "rloo"])
def test_a_singleton_group_gets_zero_and_is_counted(rule: str) -> None:
    made = episodes_of_one_call([0.7])
    assert by_sample(made, rule) == [0.0]
    assert advantages(made, rule=rule, context=Context()).notes == {"singleton_groups": 1}


def test_an_episode_reward_is_the_weighted_sum_of_its_own_rewards() -> None:
    # 1 * 0.5 + 2 * 0.25 = 1.0;  a weight that is not known counts 1: 0.5
    made = episodes_of_one_call([[(1.0, 0.5), (2.0, 0.25)], [(0.5, None)]])
    assert by_sample(made, "shared") == [0.25, -0.25]  # mean 0.75


def test_an_episode_without_a_reward_has_no_advantage_which_is_not_zero() -> None:
    made = episodes_of_one_call([1, None, 0])
    assert by_sample(made, "shared") == [0.5, None, -0.5]
    assert advantages(made, rule="shared", context=Context()).notes == {"ungraded_episodes": 1}
    credit = combine(made, advantages(made, rule="shared", context=Context()))
    assert credit.has_T.tolist() == [False, False, True, True, False, False, True, True]


def test_an_infra_error_leaves_the_statistics() -> None:
    # mean (1 + 0) / 2; with the broken episode's 0 it would be 1/3
    made = episodes_of_one_call([1, 0, 0], episode={2: {"status": "infra_error", "in_statistics": False}})
    assert by_sample(made, "shared") == [0.5, -0.5, None]
    assert advantages(made, rule="shared", context=Context()).notes == {"excluded_episodes": 1}


def test_forks_are_compared_with_each_other_and_not_with_their_origin() -> None:
    fork = {"forked_from_episode_id": "episode-0"}
    made = episodes_of_one_call([1, 0, 5, 3], episode={2: fork, 3: fork})
    assert by_sample(made, "shared") == [0.5, -0.5, 1.0, -1.0]


def test_forks_of_one_origin_are_not_compared_with_those_of_another() -> None:
    # two forks of episode 0: mean (5 + 3) / 2 = 4;  two of an episode that is not here: mean (2 + 1) / 2
    of = [{"forked_from_episode_id": name} for name in ("episode-0", "elsewhere")]
    made = episodes_of_one_call([1, 0, 5, 3, 2, 1], episode={2: of[0], 3: of[0], 4: of[1], 5: of[1]})
    assert by_sample(made, "shared") == [0.5, -0.5, 1.0, -1.0, 0.5, -0.5]


def test_forks_that_the_export_excluded_leave_the_statistics_of_the_forks() -> None:
    # mean (1 + 0) / 2 of the two forks that are left; with the 100s it would be 201 / 4
    fork = {"forked_from_episode_id": "episode-0"}
    out = fork | {"in_statistics": False}
    made = episodes_of_one_call(
        [1, 0, 1, 0, 100, 100], episode={2: fork, 3: fork, 4: out | {"status": "cancelled"}, 5: out}
    )
    assert by_sample(made, "shared") == [0.5, -0.5, 0.5, -0.5, None, None]
    assert advantages(made, rule="shared", context=Context()).notes == {"excluded_episodes": 2}


@pytest.mark.parametrize(
    ("rule", "rewards"),
    [
        ("rloo", [1e308, -1e308]),  # 1e308 - -1e308
        ("shared", [1e308, 1.5e308]),  # their sum, on the way to the mean
        ("shared", [[(1e308, None), (1e308, None)], 0]),
        ("shared", [[(1e308, 10.0)], 0]),
        ("shared", [float("nan"), 0]),
    ],
)
def test_rewards_without_a_finite_advantage_are_an_error_that_names_the_group(
    rule: str, rewards: list[Any]
) -> None:
    with pytest.raises(NonFiniteCredit, match="group_id='g'"):
        given(episodes_of_one_call(rewards), rule)


def test_a_reward_that_is_no_number_stops_nothing_in_an_episode_that_is_left_out() -> None:
    broken = {"status": "infra_error", "in_statistics": False}
    made = episodes_of_one_call([1, 0, float("nan")], episode={2: broken})
    assert by_sample(made, "shared") == [0.5, -0.5, None]


def test_rewards_of_finer_targets_are_not_the_episodes() -> None:
    made = episodes_of_one_call([1, 0])
    finer = replace(made.rewards[0], target="call", call=0, value=100.0)
    assert by_sample(replace(made, rewards=(*made.rewards, finer)), "shared") == [0.5, -0.5]


def test_an_unknown_rule_names_those_there_are() -> None:
    with pytest.raises(UnknownRule, match="pkpo, rao, resum, rloo, shared"):
        advantages(episodes_of_one_call([1, 0]), rule="grpo", context=Context())


SHARED = row(
    [(-1, [1, 2], -1), (0, [3, 4], 0), (1, [5], 1), (1, [6], 2), (1, [7], 3), (1, [8], 4)],
    [(0, [0, 1, 2], [0, 1]), (1, [0, 1, 3], [0, 2]), (2, [0, 1, 4], [0, 3]), (3, [0, 1, 5], [0, 4])],
)
"""One sampled prefix of two tokens under four leaves."""


def test_a_shared_token_keeps_positive_and_negative_advantages_apart() -> None:
    leaves = [1.0, -1.0, -1.0, -1.0]
    values = {(i, c): a for i, a in enumerate(leaves) for c in SHARED.samples[i].completions}
    credit = combine(SHARED, Advantages("test", values))
    # prefix: plus (1 + 0 + 0 + 0) / 4, minus (0 - 1 - 1 - 1) / 4
    assert credit.plus_T.tolist() == [0, 0, 0.25, 0.25, 1, 0, 0, 0]
    assert credit.minus_T.tolist() == [0, 0, -0.75, -0.75, 0, -1, -1, -1]
    assert credit.has_T.tolist() == [False, False, *[True] * 6]


def test_only_surviving_samples_share_a_token() -> None:
    values = {(0, 0): 1.0, (0, 1): 1.0, (1, 0): -1.0, (1, 2): -1.0}  # samples 2 and 3 are ungraded
    credit = combine(SHARED, Advantages("test", values))
    assert (credit.plus_T[2], credit.minus_T[2]) == (0.5, -0.5)
    assert credit.has_T.tolist() == [False, False, True, True, True, True, False, False]


def test_a_sample_that_does_not_train_has_no_say_in_a_shared_token() -> None:
    first, *others = SHARED.samples
    made = replace(SHARED, samples=(replace(first, reason=int(Reason.TOO_LONG)), *others))
    values = {(i, c): a for i, a in enumerate([9.0, 1.0, -1.0, 0.0]) for c in made.samples[i].completions}
    credit = combine(made, Advantages("test", values))
    assert (credit.plus_T[2], credit.minus_T[2]) == (1 / 3, -1 / 3)
    assert credit.plus_T[4] == 0  # the token of the sample that does not train


def test_under_tree_mean_a_leaf_weighs_as_much_as_its_share_of_the_tree() -> None:
    values = {(i, c): 1.0 for i in range(4) for c in SHARED.samples[i].completions}
    credit = combine(SHARED, Advantages("test", values), ownership="tree_mean")
    # 4 of 4 samples go through the prefix, 1 of 4 through each leaf.
    assert credit.plus_T.tolist() == [0, 0, 1, 1, 0.25, 0.25, 0.25, 0.25]


def test_a_sample_that_merely_reads_a_completion_has_no_say_in_it() -> None:
    made = row(
        [(-1, [1, 2], -1), (0, [3, 4], 0), (1, [5], 1), (1, [6], 2)],
        [(0, [0, 1, 2], [0, 1]), (1, [0, 1, 3], [2])],
        rewards=[0, 1],
    )
    credit = combine(made, advantages(made, rule="shared", context=Context()))
    assert (credit.plus_T + credit.minus_T).tolist() == [0, 0, -0.5, -0.5, -0.5, 0.5]


def test_an_advantage_may_differ_by_token_of_a_completion() -> None:
    # Completion 0 is cut into two segments by a fork inside it.
    made = row(
        [(-1, [1], -1), (0, [2, 3], 0), (1, [4], 0), (1, [9], -1)],
        [(0, [0, 1, 2], [0]), (0, [0, 1, 3], [])],
    )
    credit = combine(made, Advantages("test", {(0, 0): np.array([0.25, -0.5, 1.0])}))
    assert credit.plus_T.tolist() == [0, 0.25, 0, 1.0, 0]
    assert credit.minus_T.tolist() == [0, 0, -0.5, 0, 0]


@pytest.mark.parametrize("length", [1, 2, 4])
def test_as_many_advantages_as_a_completion_has_tokens_or_none(length: int) -> None:
    # PrimeIntellect-ai/prime-rl#1838: one advantage alone would be spread over all tokens, a fourth be lost.
    made = row([(-1, [1], -1), (0, [2, 3, 4], 0)], [(0, [0, 1], [0])])
    with pytest.raises(WrongLength, match=f"tokens=3, advantages={length}"):
        combine(made, Advantages("test", {(0, 0): np.full(length, 0.5)}))


def plans(treatment: str, scores: list[float | None], *, selected: int | None = 0) -> Row:
    """An episode with reward 1 that sampled four plans, and one with reward 0 that sampled none."""
    return row(
        [
            (-1, [1], -1),
            *((0, [2 + i], i) for i in range(4)),
            (0, [8], 5),
        ],
        [*((0, [0, 1 + i], [i]) for i in range(4)), (1, [0, 5], [5])],
        rewards=[1, 0],
        candidate_sets=[candidates(treatment, scores, selected=selected)],
    )


@pytest.mark.parametrize("treatment", ["shared", "exclude"])
def test_candidates_keep_the_advantage_of_their_episode_by_default(treatment: str) -> None:
    assert by_sample(plans(treatment, [0.9, 0.4, 0.3, 0.4]), "shared") == [0.5] * 4 + [-0.5]


def test_negative_candidates_get_their_score_minus_the_mean_score() -> None:
    # mean (.9 + .4 + .3 + .4) / 4 = .5
    found = by_sample(plans("negative", [0.9, 0.4, 0.3, 0.4]), "shared")
    assert found == pytest.approx([0.4, -0.1, -0.2, -0.1, -0.5])


def test_runner_up_credits_the_selected_one_against_the_best_other() -> None:
    # .9 - max(.4, .3, .4) = .5
    found = by_sample(plans("runner_up", [0.9, 0.4, 0.3, 0.4]), "shared")
    assert found == pytest.approx([0.5, 0, 0, 0, -0.5])


def test_a_treatment_stops_at_the_candidates_own_tokens() -> None:
    made = row(
        [(-1, [1], -1), (0, [2], 0), (0, [3], 1), (1, [4], -1), (3, [5], 2), (0, [6], 3)],
        [(0, [0, 1, 3, 4], [0, 2]), (0, [0, 2], [1]), (1, [0, 5], [3])],
        rewards=[1, 0],
        candidate_sets=[candidates("negative", [0.75, 0.25])],
    )
    assert given(made, "shared") == {(0, 0): 0.25, (0, 2): 0.5, (1, 1): -0.25, (2, 3): -0.5}


def test_an_agent_that_is_a_candidate_answers_for_the_agents_below_it() -> None:
    # mean (-4 + 0) / 2 = -2 -> agent 1: -4 + 2 = -2, agent 2: 0 + 2 = 2
    made = row(
        [(-1, [1], -1), *((0, [2 + i], i) for i in range(4))],
        [(0, [0, 1 + i], [i]) for i in range(4)],
        rewards=[1],
        call={1: {"agent": 1}, 2: {"agent": 2}, 3: {"agent": 3}},
        candidate_sets=[
            replace(
                candidates("negative", []),
                members=tuple(
                    MemberEntry(completion=None, agent=agent, score=score, selected=None, continued=None)
                    for agent, score in ((1, -4.0), (2, 0.0))
                ),
            )
        ],
    )
    [main] = made.agents
    below = [replace(main, agent_id=f"agent-{i}", parent=parent) for i, parent in ((1, 0), (2, 0), (3, 1))]
    made = replace(made, agents=(main, *below))
    # main keeps its episode's 0; agent 3 is below agent 1
    assert by_sample(made, "shared") == [0.0, -2.0, 2.0, -2.0]


@pytest.mark.parametrize(("treatment", "expected"), [("negative", [0.25, -0.25]), ("runner_up", [0.5, 0.0])])
def test_scored_candidates_need_no_reward_of_their_episode(treatment: str, expected: list[float]) -> None:
    # mean (.75 + .25) / 2 = .5;  .75 - .25 = .5
    made = row(
        [(-1, [1], -1), (0, [2], 0), (0, [3], 1), (0, [4], 2)],
        [(0, [0, 1], [0]), (0, [0, 2], [1]), (0, [0, 3], [2])],
        candidate_sets=[candidates(treatment, [0.75, 0.25])],
    )
    assert by_sample(made, "shared") == [*expected, None]


@pytest.mark.parametrize("treatment", ["negative", "runner_up"])
def test_scores_without_a_finite_advantage_are_an_error_that_names_the_set(treatment: str) -> None:
    with pytest.raises(NonFiniteCredit, match="candidate_set_id='set'"):
        given(plans(treatment, [1.5e308, -1.5e308, -1.5e308, -1.5e308]), "shared")


@pytest.mark.parametrize("treatment", ["negative", "runner_up"])
def test_a_treatment_by_scores_refuses_a_member_without_one(treatment: str) -> None:
    with pytest.raises(MissingScore):
        given(plans(treatment, [0.9, None, 0.3, 0.4]), "shared")


def test_runner_up_needs_a_selected_member() -> None:
    with pytest.raises(MissingScore, match="selected=0"):
        given(plans("runner_up", [0.9, 0.4, 0.3, 0.4], selected=None), "shared")


def test_pairs_are_no_policy_gradient_and_are_refused() -> None:
    with pytest.raises(UnsupportedTreatment, match="pairs"):
        given(plans("pairs", [0.9, 0.4, 0.3, 0.4]), "shared")
