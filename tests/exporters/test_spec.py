from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import factories as make
from tests.exporters.planned import planned, reasons
from tracestore.graph.build import build
from tracestore.shards.reasons import label_of
from tracestore.wire.events import AnyEvent
from tracestore_exporters.expected import expected_of_group
from tracestore_exporters.spec import BadSpec, Spec, Validation, read_spec

_OF_RUNS = ["policies", "policy_versions", "models", "purposes", "roles"]
LISTS = ["groups", *_OF_RUNS, "splits", "statuses", "redaction", "rewards"]
DOCS = Path(__file__).parents[2] / "docs" / "export.md"


def test_a_spec_is_read_from_json(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"objective": "sft", "models": ["m"], "max_row_bytes": 10}')
    assert read_spec(path) == Spec(objective="sft", models=("m",), max_row_bytes=10)


def test_a_spec_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("rewards: {exact: 1, length: -0.5}\nvalidation: {share: 0.1, salt: run 7}\n")
    spec = Spec(rewards={"exact": 1.0, "length": -0.5}, validation=Validation(share=0.1, salt="run 7"))
    assert read_spec(path) == spec


@pytest.mark.parametrize(
    ("stated", "carried"),
    [
        (2.0, {"r0": 2.0, "r1": 2.0, "r2": 2.0}),
        (None, {"r0": None, "r1": 0.5, "r2": 0.0}),
        ({}, {"r0": None, "r1": 0.5, "r2": 0.0}),
        ({"weight": 2.0, "scorer": "m:f"}, {"r1": 2.0, "r2": 2.0}),
        ({"scorer": "m:f", "version": "2"}, {"r2": 0.0}),
        ({"weight": 1.0, "version": "1"}, {"r1": 1.0}),
        ({"scorer": "m:g"}, {}),
    ],
)
def test_a_spec_may_name_the_scorer_and_the_version_of_a_reward(
    stated: Any, carried: dict[str, float | None], tmp_path: Path
) -> None:
    events: list[AnyEvent] = [
        *(make.episode(), make.agent(), make.reward("r3", 9.0, name="other", scorer="m:f")),
        make.call("c", [make.user("u")], make.answer("a", ids=[5]), prompt_ids=[1]),
        make.reward("r0", 1.0, name="brevity"),
        make.reward("r1", 1.0, name="brevity", scorer="m:f", scorer_version="1", weight=0.5),
        make.reward("r2", 1.0, name="brevity", scorer="m:f", scorer_version="2", weight=0.0),
    ]
    path = tmp_path / "spec.json"
    path.write_text(json.dumps({"rewards": {"brevity": stated}}))
    found = planned(events, spec=read_spec(path)).rewards
    assert {one.reward_id: one.weight for one in found} == carried


@given(
    rewards=st.lists(
        st.tuples(
            st.sampled_from([0, 1]),
            st.sampled_from([0.0, 1.0]),
            st.sampled_from([None, 0.0, 2.0]),
            st.sampled_from([None, "m:f", "m:g"]),
            st.sampled_from([None, "1", "2"]),
        ),
        max_size=5,
    ),
    stated=st.sampled_from([None, 0.0, 1.0])
    | st.fixed_dictionaries(
        {},
        optional={
            "weight": st.sampled_from([0.0, 1.0]),
            "scorer": st.just("m:f"),
            "version": st.just("1"),
        },
    ),
)
def test_the_verifier_picks_the_same_rewards_by_rules_of_its_own(rewards: list[Any], stated: Any) -> None:
    """Which candidates tie depends on the rewards that count."""
    events: list[Any] = [
        *(make.episode(), make.agent()),
        make.call("c", [make.user("u")], *(make.answer("a", ids=[5 + n]) for n in range(2)), prompt_ids=[1]),
        make.candidate_set("s", make.member("c", 0), make.member("c", 1)),
        make.selection("x", "s", 1),
    ]
    for number, (member, value, weight, scorer, version) in enumerate(rewards):
        of = {"candidate_set_id": "s", "member": member, "scorer": scorer, "scorer_version": version}
        events.append(make.reward(f"r{number}", value, name="brevity", weight=weight, **of))
    spec = Spec(objective="preference", rewards={"brevity": stated})
    found = reasons(planned(events, spec=spec))["c"]
    expected = expected_of_group({"e": build(events)}, spec)
    assert [label_of(int(one.reason[0])) for _, one in sorted(expected.items())] == found


def test_a_spec_that_names_no_scorer_is_written_without_the_words_for_it() -> None:
    """So its hash, and the manifest that holds it, are what they were."""
    dumped = Spec(rewards={"a": 1.0, "b": None}).model_dump(mode="json")
    assert dumped["rewards"] == {"a": 1.0, "b": None}
    stated = Spec.model_validate({"rewards": {"a": {"weight": 1.0, "scorer": "m:f"}}})
    assert Spec.model_validate(stated.model_dump(mode="json")) == stated


def test_a_list_of_rewards_carries_them_as_recorded(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_text('{"rewards": ["a", "b"]}')
    assert read_spec(path) == Spec(rewards={"a": None, "b": None})


def test_about_a_share_of_the_tasks_is_set_aside_and_the_same_ones_each_time() -> None:
    one, other = Validation(share=0.25), Validation(share=0.25, salt="other")
    tasks = [f"task-{number}" for number in range(2_000)]
    aside = [task for task in tasks if one.holds(task)]
    assert 400 < len(aside) < 600  # 500 expected; more than five standard deviations of 19 to either side
    assert aside == [task for task in tasks if one.holds(task)] != [t for t in tasks if other.holds(t)]
    assert {task for task in tasks if Validation(share=0.1).holds(task)} <= set(aside)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"objectiv": "rl"}', "objectiv: Extra inputs"),
        ('{"objective": "dpo"}', "objective: Input should be"),
        *((f'{{"{name}": []}}', f"{name} names nothing: leave it out") for name in LISTS),
        (
            '{"started_from": 5, "started_before": 5}',
            "no episode starts in .5, 5.: started_from comes before",
        ),
        (
            '{"started_from": 6, "started_before": 5}',
            "no episode starts in .6, 5.: started_from comes before",
        ),
        ('{"max_staleness": 1}', "current_version and max_staleness stand together"),
        ('{"objective": "sft", "policies": ["p"]}', "policies says nothing for objective sft"),
        ('{"models": ["m"]}', "models says nothing for objective rl"),
        ('{"rewards": {}}', "rewards names nothing: leave it out"),
        ('{"rewards": {"a": {"scorers": "m:f"}}}', "rewards.a.RewardChoice.scorers: Extra inputs"),
        ('{"redaction": [{"name": "a"}]}', "redaction.0: Value error, name a path, a pattern, or both"),
        ('{"redaction": [{"name": "a", "path": "x"}, {"name": "a", "path": "y"}]}', "have one name"),
        ('{"validation": {"share": 1}}', "validation.share: Input should be less than 1"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(BadSpec, match=problem):
        read_spec(path)


def test_every_list_of_a_spec_is_refused_where_it_is_empty() -> None:
    named = [name for name, info in Spec.model_fields.items() if "tuple" in str(info.annotation)]
    assert sorted([*named, "rewards"]) == sorted(LISTS)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("spec.yaml", "[]", "Input should be a valid dictionary"),
        ("spec.yaml", "started_from: 2026-13-45", "month must be in 1..12"),
        ("spec.yaml", "a: [", "expected the node content"),
        ("spec.txt", "objective: rl", "ends in .yaml or .yml"),
        ("spec.json", '{"objectiv": "rl"}', "fields: objective, groups, "),
    ],
)
def test_a_spec_that_cannot_be_read_says_how_it_could(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(BadSpec, match=problem):
        read_spec(path)


def test_an_empty_yaml_file_asks_for_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("# nothing yet\n")
    assert read_spec(path) == Spec()


def test_a_missing_spec_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"No such file"):
        read_spec(tmp_path / "nowhere.json")


def test_the_hash_depends_on_every_choice() -> None:
    specs = [Spec(), Spec(objective="sft"), Spec(candidates="exclude"), Spec(shard_rows=3)]
    assert len({spec.spec_hash for spec in specs}) == 4
    assert Spec().spec_hash == Spec(objective="rl").spec_hash


def test_the_page_on_exports_names_every_field() -> None:
    table = DOCS.read_text().partition("| field |")[2]
    assert [name for name in Spec.model_fields if f"`{name}`" not in table] == []


def test_the_spec_of_the_page_is_one(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(DOCS.read_text().partition("```yaml\n")[2].partition("```")[0])
    assert read_spec(tmp_path / "spec.yaml").oldest_version == 120 - 4
