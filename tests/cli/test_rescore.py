"""`tracestore rescore`: rewards are added, none is replaced, and sums stay as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import answer, call, posted, reward, user
from tests.serving import running_server
from tracestore.cli.main import main
from tracestore.store.store import Store
from tracestore_migrations import open_store

SCORERS = '''
"""Reward functions of a test."""

def brevity(episode):
    print("looking at", episode.episode_id)
    (answer,) = episode.graph().completions.values()
    return {"e0": 1.0, "e1": 0.0}.get(episode.episode_id)

def broken(episode):
    return 1.0 if episode.episode_id == "e0" else 1 / 0

def parts(episode):
    return {"short": 0.25, "polite": 0.5}
'''


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Three episodes of one group, two of them graded; and scorers in the working directory."""
    (tmp_path / "scorers_of_rescore.py").write_text(SCORERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "scorers_of_rescore", raising=False)
    url = empty_store(tmp_path / "t.db")
    events: list[Any] = [make.group("g", closed_by="event")]
    for index in range(3):
        id_ = f"e{index}"
        ids = [5, 6, 7][: index + 1]
        events += [
            make.episode(id_, group_id="g", status="ok" if index < 2 else "failed"),
            call(
                f"c{index}", [user("u")], answer("a", ids=ids), prompt_ids=[1], episode=id_, agent=f"a{index}"
            ),
        ]
    events += [
        make.agent("a0", episode="e0", status="ok"),
        reward("r0", 0.0, name="correct", episode="e0"),
        reward("r1", 1.0, name="correct", episode="e1"),
    ]
    with Store.open(url) as store:
        store.ingest("default", [posted(event) for event in events])
    return url


def rescored(capsys: pytest.CaptureFixture[str], db: str, *argv: str, code: int = 0) -> list[Any]:
    """The JSON lines of one run."""
    words = ["rescore", "--db", db, "--json", "--scorer", *argv]
    assert main(words) == code
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def rewards_of(db: str) -> list[tuple[Any, ...]]:
    sql = "SELECT episode_id, name, value, weight, scorer, scorer_version FROM rewards ORDER BY seq"
    with open_store(db) as store, store.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(sql)]


def totals_of(db: str) -> dict[str, float | None]:
    with open_store(db) as store, store.read() as connection:
        found = connection.exec_driver_sql("SELECT episode_id, reward FROM episodes")
        return {row.episode_id: row.reward for row in found}


OLD = [("e0", "correct", 0.0, None, None, None), ("e1", "correct", 1.0, None, None, None)]
BREVITY = "scorers_of_rescore:brevity"


def test_old_rewards_stay_new_ones_stand_beside_them_and_no_sum_changes(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = totals_of(db)
    *lines, facts = rescored(capsys, db, BREVITY, "--scorer-version", "1")
    assert [(one["episode_id"], one["name"], one["value"], one["status"]) for one in lines] == [
        ("e0", "brevity", 1.0, "stored"),
        ("e1", "brevity", 0.0, "stored"),
    ]
    assert facts["episodes"] == {"scored": 2, "without_reward": 1}
    assert rewards_of(db) == [
        *OLD,
        ("e0", "brevity", 1.0, 0.0, BREVITY, "1"),
        ("e1", "brevity", 0.0, 0.0, BREVITY, "1"),
    ]
    assert totals_of(db) == before == {"e0": 0.0, "e1": 1.0, "e2": None}


def test_scoring_again_stores_nothing_and_another_version_adds_rows(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rescored(capsys, db, BREVITY)
    assert rescored(capsys, db, BREVITY)[-1]["rewards"] == {"duplicate": 2}
    facts = rescored(capsys, db, BREVITY, "--scorer-version", "2")[-1]
    assert (facts["rewards"], facts["same_name"]) == ({"stored": 2}, 2)
    assert len(rewards_of(db)) == 2 + 2 + 2


def test_another_value_under_the_same_version_is_a_conflict(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rescored(capsys, db, BREVITY, "--episode", "e0", "--scorer-version", "1")
    text = Path("scorers_of_rescore.py").read_text().replace('"e0": 1.0', '"e0": 0.125')
    Path("scorers_of_rescore.py").write_text(text)
    del sys.modules["scorers_of_rescore"]
    facts = rescored(capsys, db, BREVITY, "--scorer-version", "1", code=1)[-1]
    assert facts["rewards"] == {"conflict": 1, "stored": 1}
    (problem,) = facts["problems"]
    assert problem["episode_id"] == "e0"
    assert "--scorer-version" in problem["problem"]


def test_an_episode_on_which_the_scorer_fails_costs_the_others_nothing(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = rescored(capsys, db, "scorers_of_rescore:broken", code=1)[-1]
    assert facts["episodes"] == {"failed": 2, "scored": 1}
    assert [one["episode_id"] for one in facts["problems"]] == ["e1", "e2"]
    assert "ZeroDivisionError" in facts["problems"][0]["problem"]
    assert rewards_of(db)[2:] == [
        ("e0", "broken", 1.0, 0.0, "scorers_of_rescore:broken", facts["scorer_version"])
    ]


def test_an_ungraded_episode_is_graded_only_with_a_weight(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ("scorers_of_rescore:parts", "--episode", "e2")
    assert rescored(capsys, db, *parts)[-1]["rewards"] == {"stored": 2}
    assert totals_of(db) == {"e0": 0.0, "e1": 1.0, "e2": None}
    rescored(capsys, db, *parts, "--weight", "2", "--scorer-version", "2")
    assert totals_of(db) == {"e0": 0.0, "e1": 1.0, "e2": 2 * 0.25 + 2 * 0.5}


def test_a_dry_run_adds_nothing(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rescored(capsys, db, BREVITY, "--dry-run")[-1]["rewards"] == {"new": 2}
    assert main(["rescore", "--db", db, "--scorer", BREVITY, "--dry-run", "--scorer-version", "7"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "episode  name     value  status",
        "-------  -------  -----  ------",
        "e0       brevity      1  new",
        "e1       brevity      0  new",
        "episodes: 2 scored, 1 without reward",
        f"rewards: 2 new, by {BREVITY}, version 7",
    ]
    assert "looking at e0" in err
    assert rewards_of(db) == OLD


@pytest.mark.parametrize(
    ("words", "scored"),
    [
        (["--episode", "e1", "--episode", "e0"], ["e0", "e1"]),
        (["--group", "g", "--limit", "1"], ["e0"]),
        (["--status", "ok", "--episode", "e1"], ["e1"]),
        (["--status", "failed"], []),
    ],
)
def test_episodes_are_chosen_by_id_group_and_status(
    words: list[str], scored: list[str], db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *lines, _ = rescored(capsys, db, BREVITY, "--dry-run", *words)
    assert [one["episode_id"] for one in lines] == scored


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--episode", "none"], "no such episode"),
        (["--group", "none"], "no such group"),
        (["--status", "good"], "statuses: ok"),
    ],
)
def test_a_word_that_names_no_episode_is_told(
    words: list[str], hint: str, db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rescore", "--db", db, "--scorer", BREVITY, *words]) == 2
    assert hint in capsys.readouterr().err


def test_rewards_go_through_a_server_of_the_store_as_well(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_server(tmp_path / "t.db") as server:
        facts = rescored(capsys, db, BREVITY, "--url", server.url)[-1]
    assert facts["rewards"] == {"stored": 2}
    assert len(rewards_of(db)) == 4


def test_the_scorers_of_the_page_run(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    script = page.partition("```python\n")[2].partition("```")[0]
    Path("scorers_of_the_page.py").write_text(script, encoding="utf-8")
    for name, count in (("correct", 3), ("finished", 1)):
        facts = rescored(capsys, db, f"scorers_of_the_page:{name}", "--dry-run")[-1]
        assert facts["rewards"] == {"new": count}
    del sys.modules["scorers_of_the_page"]


def test_a_credit_rule_reads_the_new_reward_by_its_name(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rescored(capsys, db, BREVITY)
    (tmp_path / "brevity.yaml").write_text("rewards: {brevity: 1.0}\n")

    def advantages(out: str, *spec: str) -> dict[str, float]:
        assert main(["export", "--db", db, "--out", out, *spec]) == 0
        capsys.readouterr()
        assert main(["credit", out, "--rule", "shared", "--json"]) == 0
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return {
            one["episode_id"]: one["advantage_mean"] for one in lines if one.get("advantage_mean") is not None
        }

    # r - mean: correct is 0 and 1, brevity 1 and 0
    assert advantages("as_recorded") == {"e0": 0 - 0.5, "e1": 1 - 0.5}
    assert advantages("by_name", "--spec", "brevity.yaml") == {"e0": 1 - 0.5, "e1": 0 - 0.5}
