"""What a scorer may say of an episode, and what becomes of it."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import factories as make
from tests.factories import answer, call, reward, user
from tracestore.analysis.episode import Episode
from tracestore.analysis.rescoring import NoScorer, NotScored, Rescoring, Score, load_scorer
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.wire.reward import Reward

EVENTS = [
    make.episode(),
    make.agent(),
    call("c0", [user("u")], answer("a", ids=[3, 4]), prompt_ids=[1]),
    make.candidate_set("s", make.member("c0")),
    reward("r0", 0.5, name="old"),
]


def graph_of(*more: Any) -> Graph:
    return build([*EVENTS, *more])


def given(said: Any, *, weight: float = 0.0, version: str = "1", graph: Graph | None = None) -> list[Reward]:
    scoring = Rescoring(lambda episode: said, scorer="m:f", version=version, name="f", weight=weight)
    return scoring.rewards("e", graph_of() if graph is None else graph)


def told(rewards: Sequence[Reward]) -> list[tuple[str, float]]:
    return [(one.name, one.value) for one in rewards]


@pytest.mark.parametrize(
    ("said", "rewards"),
    [
        (None, []),
        (1, [("f", 1.0)]),
        (True, [("f", 1.0)]),
        (np.float32(0.5), [("f", 0.5)]),
        ({"a": 0.25, "b": None, "c": -1}, [("a", 0.25), ("c", -1.0)]),
        (Score(2.0, "g"), [("g", 2.0)]),
        ([Score(2.0), Score(3.0, "g")], [("f", 2.0), ("g", 3.0)]),
        ([], []),
    ],
)
def test_a_scorer_returns_a_number_numbers_by_name_scores_or_nothing(
    said: Any, rewards: list[tuple[str, float]]
) -> None:
    assert told(given(said)) == rewards


def test_the_scorer_is_given_the_episode_as_an_analyst_has_it() -> None:
    def sampled(episode: Episode) -> float:
        graph = episode.graph()
        assert episode.episode_id == "e"
        assert [one.value for one in graph.rewards.values()] == [0.5]
        return sum(len(one.token_ids or ()) for one in graph.completions.values())

    scoring = Rescoring(sampled, scorer="m:sampled", version="1", name="sampled", weight=0.0)
    assert told(scoring.rewards("e", graph_of())) == [("sampled", 2.0)]


def test_a_reward_says_by_whom_it_is_and_of_what() -> None:
    graph = graph_of(reward("r1", 1.0, call_id="c0", completion=0), reward("r2", 1.0, agent_id="main"))
    of_answer, of_agent, of_tokens = given(
        [
            Score(1.0, call_id="c0", completion=0),
            Score(0.0, agent_id="main"),
            Score(0.5, call_id="c0", completion=0, token_start=1, token_length=1),
        ],
        graph=graph,
    )
    assert (of_answer.scorer, of_answer.scorer_version, of_answer.weight) == ("m:f", "1", 0.0)
    assert [one.target.finest for one in (of_answer, of_agent, of_tokens)] == [
        "completion",
        "agent",
        "tokens",
    ]


def test_the_id_is_of_scorer_version_name_and_target_and_not_of_the_value() -> None:
    graph = graph_of(reward("r1", 1.0, agent_id="main"))
    (first,), (again,), (later,) = given(1.0), given(0.0, weight=1.0), given(1.0, version="2")
    named, of_agent = given([Score(1.0, "g"), Score(1.0, agent_id="main")], graph=graph)
    assert first.id == again.id
    assert len({first.id, later.id, named.id, of_agent.id}) == 4


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (math.nan, "finite"),
        ({"a": math.inf}, "finite"),
        ({"a": "1"}, "number"),
        ("1", "return a number"),
        ([1.0], "Score"),
        ([Score(1.0), Score(2.0)], "twice"),
        (Score(1.0, agent_id="none"), "no such agent"),
        (Score(1.0, call_id="none"), "no such call"),
        (Score(1.0, call_id="c0", completion=1), "no such completion"),
        (Score(1.0, candidate_set_id="s", member=1), "no such candidate"),
        (Score(1.0, completion=0), "call_id and completion"),
        (Score(1.0, call_id="c0", completion=0, token_start=1, token_length=2), "2 tokens"),
    ],
)
def test_what_cannot_be_a_reward_is_refused(said: Any, problem: str) -> None:
    with pytest.raises(NotScored, match=problem):
        given(said, weight=1.0)


def test_a_scorer_that_fails_says_where() -> None:
    def wrong(episode: Episode) -> float:
        raise ValueError("no answer")

    scoring = Rescoring(wrong, scorer="m:wrong", version="1", name="wrong", weight=0.0)
    with pytest.raises(NotScored, match=r"ValueError: no answer \(test_rescoring.py, line \d+\)"):
        scoring.rewards("e", graph_of())


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_what_nothing_scores_yet_may_get_its_first_reward_with_any_weight(weight: float) -> None:
    ungraded = build(EVENTS[:-1])
    targets: list[dict[str, Any]] = [
        {},
        {"agent_id": "main"},
        {"call_id": "c0"},
        {"candidate_set_id": "s", "member": 0},
    ]
    found = given([Score(1.0, **target) for target in targets], weight=weight, graph=ungraded)
    assert [one.target.finest for one in found] == ["episode", "agent", "call", "candidate"]
    again = build([*EVENTS[:-1], *found])
    assert given([Score(1.0, **target) for target in targets], weight=weight, graph=again) == found


def test_with_a_weight_another_version_does_not_count_beside_the_first() -> None:
    (first,) = given(1.0, weight=1.0)
    graph = graph_of(first)
    with pytest.raises(NotScored, match="both would count"):
        given(0.5, weight=1.0, version="2", graph=graph)
    (beside,) = given(0.5, version="2", graph=graph)
    scoring = Rescoring(print, scorer="m:f", version="2", name="f", weight=0.0)
    assert scoring.namesakes(beside, graph) == [first]


def test_a_scorer_is_found_from_the_working_directory_and_its_version_is_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scorer_of_a_test.py").write_text("def half(episode): return 0.5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    function, version = load_scorer("scorer_of_a_test:half")
    # printf 'def half(episode): return 0.5\n' | sha256sum
    assert (function(None), version) == (0.5, "98b84385d24b")


@pytest.mark.parametrize(
    ("spelled", "hint"),
    [
        ("math", "module:function"),
        ("math:none", "no function"),
        ("math:pi", "no function"),
        ("not_there:f", "No module"),
    ],
)
def test_a_scorer_that_is_not_there_is_told(spelled: str, hint: str) -> None:
    with pytest.raises(NoScorer, match=hint):
        load_scorer(spelled)
