from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.exporters.memory import MemorySource
from tracestore.wire.call import Policy
from tracestore.wire.completion import VersionRun
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export
from tracestore_exporters.inventory import LISTED
from tracestore_exporters.spec import Spec


def episode(id: str = "e", *, policy: Any = make.POLICY, **fields: Any) -> list[AnyEvent]:  # noqa: A002
    """An episode of one call with two sampled tokens."""
    of_call = {name: fields.pop(name) for name in ("model", "purpose") if name in fields}
    body = make.answer(None, ids=[4, 5])
    call = make.call(
        f"{id}c", None, body, prompt_ids=[1], episode=id, agent=f"{id}a", policy=policy, **of_call
    )
    agent = make.agent(f"{id}a", episode=id, role=fields.pop("role", None))
    return [make.episode(id, status=fields.pop("status", "ok"), **fields), agent, call]


def notes(folder: Path, *events: AnyEvent, **spec: Any) -> tuple[str, ...]:
    return export(MemorySource(events), "p", folder / "out", Spec(**spec)).notes


def test_a_misspelt_reward_is_named_with_those_there_are(tmp_path: Path) -> None:
    rewards = [
        make.reward("r1", 1.0, name="score", episode="e1"),
        make.reward("r2", 0.5, name="len", episode="e1"),
    ]
    said = notes(tmp_path, *episode("e1"), *episode("e2"), *rewards, rewards={"scoer": 1.0})
    assert said == ("rewards: 'scoer' is not there; there are 'len' (1 episode), 'score' (1 episode)",)


def test_episodes_that_lack_a_reward_of_the_spec_are_counted(tmp_path: Path) -> None:
    """Of those that may train: the broken one lacks it too, and is no part of any statistic."""
    events = [*episode("e1"), *episode("e2"), *episode("e3"), *episode("e4", status="infra_error")]
    graded = make.reward("r", 1.0, name="score", episode="e1")
    said = notes(tmp_path, *events, graded, rewards=["score"])
    assert said == ("rewards: 2 of 3 episodes have no 'score'",)


def test_a_scorer_or_version_that_nothing_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    rewards = [
        make.reward("r1", 1.0, name="score", episode="e1", scorer="m:f", scorer_version="1"),
        make.reward("r2", 1.0, name="score", episode="e2", scorer="m:f", scorer_version="1"),
        make.reward("r3", 1.0, name="score", episode="e2"),
        make.reward("r4", 1.0, name="len", episode="e2", scorer="m:g"),
    ]
    events = [*episode("e1"), *episode("e2"), *rewards]
    there = "there are 'score' by 'm:f' version '1' (2 episodes), 'score' (1 episode)"
    asked = {"scorer": "m:f", "version": "2"}
    said = notes(tmp_path / "a", *events, rewards={"score": asked, "len": 1.0})
    assert said == (
        f"rewards: 'score' by 'm:f' version '2' is not there; {there}",
        "rewards: 1 of 2 episodes have no 'len'",
    )
    (said_of_scorer,) = notes(tmp_path / "b", *events, rewards={"score": {"scorer": "m:h"}})
    assert said_of_scorer == f"rewards: 'score' by 'm:h' is not there; {there}"
    assert notes(tmp_path / "c", *events, rewards={"score": {"version": "1"}}) == ()
    (lacking,) = notes(tmp_path / "d", *events, rewards={"len": {"scorer": "m:g"}})
    assert lacking == "rewards: 1 of 2 episodes have no 'len' by 'm:g'"


def test_rewards_that_every_episode_has_are_no_news(tmp_path: Path) -> None:
    assert (
        notes(tmp_path, *episode("e"), make.reward("r", 1.0, name="score", episode="e"), rewards=["score"])
        == ()
    )


def test_where_no_reward_is_there_at_all_that_is_said(tmp_path: Path) -> None:
    assert notes(tmp_path, *episode("e"), rewards=["score"]) == (
        "rewards: 'score' is not there; there are none",
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"policies": ("actr",)}, "policies: 'actr' is not there; there are 'policy' (2 calls)"),
        ({"policy_versions": (7,)}, "policy_versions: 7 is not there; there are 1 (2 calls)"),
        (
            {"current_version": 9, "max_staleness": 2},
            "max_staleness: versions from 7 on train; the newest there is 1",
        ),
        ({"objective": "sft", "models": ("n",)}, "models: 'n' is not there; there are 'm' (2 calls)"),
        ({"purposes": ("acts",)}, "purposes: 'acts' is not there; there are 'act' (2 calls)"),
        ({"roles": ("main",)}, "roles: 'main' is not there; there are 'planner' (2 agents)"),
        ({"splits": ("eval",)}, "splits: 'eval' is not there; there are 'train' (2 episodes)"),
        ({"statuses": ("failed",)}, "statuses: 'failed' is not there; there are 'ok' (2 episodes)"),
        (
            {"started_from": 9},
            "started_from, started_before: 1 of 2 episodes say when they started: from 5 to 5",
        ),
    ],
)
def test_an_export_that_trains_nothing_names_what_there_is_for_each_filter_that_matched_nothing(
    tmp_path: Path, spec: dict[str, Any], said: str
) -> None:
    events = [
        *episode("e1", model="m", role="planner", started_at=5),
        *episode("e2", model="m", role="planner"),
    ]
    assert said in notes(tmp_path, *events, **spec)


def test_a_default_that_matched_nothing_says_what_there_is(tmp_path: Path) -> None:
    judged = episode("e", purpose="judge", status="cancelled")
    said = notes(tmp_path, *judged)
    assert "purposes: all but judge, verify and title train; there are 'judge' (1 call)" in said
    assert any(text.endswith("are not there; there are 'cancelled' (1 episode)") for text in said)


@pytest.mark.parametrize("statuses", [("infra_error",), ("ok", "infra_error")])
def test_a_status_that_never_trains_is_told_and_not_said_to_be_missing(statuses: Any, tmp_path: Path) -> None:
    broken = episode("e2", status="infra_error")
    said = notes(tmp_path, *episode("e1"), *broken, statuses=statuses)
    assert "statuses: infra_error never trains, whatever a spec says" in said
    assert not any("not there" in text for text in said)


def test_a_name_that_is_nowhere_is_told_though_the_others_train(tmp_path: Path) -> None:
    said = notes(tmp_path, *episode("e"), policies=("policy", "actr"))
    assert said == ("policies: 'actr' is not there; there are 'policy' (1 call)",)


def test_versions_of_which_some_are_there_are_a_window_and_no_mistake(tmp_path: Path) -> None:
    assert notes(tmp_path, *episode("e"), policy_versions=(1, 2, 3)) == ()


def test_a_list_of_what_there_is_is_short(tmp_path: Path) -> None:
    events = [
        one
        for n in range(LISTED + 3)
        for one in episode(f"e{n:02}", policy=Policy(name=f"p{n:02}", version=1))
    ]
    [said] = notes(tmp_path, *events, policies=("none", "p00"))
    assert said.endswith("'p09' (1 call) and 3 more")


def test_versions_that_changed_inside_an_answer_are_there_too(tmp_path: Path) -> None:
    runs = (VersionRun(start=0, name="policy", version=2), VersionRun(start=1, name="other", version=3))
    body = make.answer(None, ids=[4, 5], versions=runs)
    call = make.call("c", None, body, prompt_ids=[1], policy=Policy(name="policy", version=1))
    said = notes(tmp_path, make.episode(), call, policy_versions=(7,))
    there = "1 (1 call), 2 (1 call), 3 (1 call)"
    assert f"policy_versions: 7 is not there; there are {there}" in said
    assert notes(tmp_path / "two", make.episode(), call, policies=("other",)) == ()
