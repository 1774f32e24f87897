from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests import factories as make
from tests.factories import answer, call, posted, user
from tests.train.credit.agents import Agent, agents_row
from tests.train.exports import export_of
from tests.train.rows import episodes_of_one_call
from tracestore.cli.main import main
from tracestore.store.duck import run_sql
from tracestore.wire.events import AnyEvent
from tracestore_exporters.export import export as export_store
from tracestore_exporters.spec import Spec
from tracestore_migrations import open_store


@pytest.fixture
def export(tmp_path: Path) -> str:
    """A success with a subagent whose finding was ignored, beside a failure and an ungraded episode."""
    made = agents_row(
        [
            Agent(0, chains=((2, 1),)),
            Agent(0, parent=0, fields={"finding_used": False, "score": 1.0}),
            Agent(1),
            Agent(2),
        ],
        rewards=[1, 0, None],
    )
    export_of([made, episodes_of_one_call([1, 1], group_id="even")], tmp_path / "export")
    return str(tmp_path / "export")


def test_rules_stand_side_by_side(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["credit", export, "--rule", "shared", "--rule", "used"]) == 0
    out = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert out[0] == [
        "group",
        "episode",
        "agent",
        "sample",
        "completions",
        "reward",
        "shared",
        "used",
        "tokens",
        "notes",
    ]
    # A = 1 - 1/2; the ignored subagent: .5 * 0
    assert out[2] == ["g", "episode-0", "agent-0", "call-1:0", "2", "1", "+0.5000", "+0.5000", "3"]
    assert out[3] == ["g", "episode-0", "agent-1", "call-2:0", "1", "1", "+0.5000", "+0.0000", "1"]
    assert out[5][4:] == ["1", "NULL", "none", "none", "0", "ungraded"]
    assert out[6][:2] == ["even", "episode-0"]
    assert out[-2] == ["shared:", "groups_without_spread", "1,", "ungraded_episodes", "1"]


def test_json_and_parquet_hold_every_rule_and_branch(
    export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "credit.parquet"
    rules = ("shared", "mem1:critic=zero,lambda=0.5", "rao:depth_weights=no")
    argv = [word for rule in rules for word in ("--rule", rule)]
    assert main(["credit", export, *argv, "--out", str(file), "--json"]) == 0
    *lines, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert pq.read_table(file).to_pylist() == lines
    assert len(lines) == 3 * 6
    assert last["branches"] == 6
    assert last["rules"][1] == {
        "rule": "mem1",
        "options": {"gamma": 1.0, "critic": "zero", "lambda": 0.5},
    }
    first = next(one for one in lines if one["rule"].startswith("mem1"))
    # tokens [.25, .5, 1]
    assert (first["advantage_min"], first["advantage_max"]) == (0.25, 1.0)
    assert first["advantage_mean"] == pytest.approx(1.75 / 3)
    assert list(tmp_path.glob(".credit*")) == []


def test_terms_and_the_step_change_what_a_rule_gives(export: str, capsys: pytest.CaptureFixture[str]) -> None:
    def first(*argv: str) -> float:
        assert main(["credit", export, *argv, "--json"]) == 0
        value = json.loads(capsys.readouterr().out.splitlines()[0])["advantage_mean"]
        assert isinstance(value, float)
        return value

    # lengths 4 and 1: (1 - .4) - mean of .6 and -.1
    assert first("--rule", "shared", "--reward-term", "length=-0.1") == pytest.approx(0.6 - 0.25)
    annealed = ("--rule", "parl:anneal_steps=2,finish=0")
    assert first(*annealed) == pytest.approx((1 + 0.2) / 2)
    assert first(*annealed, "--step", "1") == pytest.approx((1 + 0.1) / 2)
    assert first(*annealed, "--step", "2") == 0.5


@pytest.mark.parametrize(
    ("argv", "code", "problem"),
    [
        (["--rule", "grpo"], 2, "rules: "),
        (["--rule", "shared", "--rule", "shared"], 2, "name each rule once"),
        (["--rule", "shared", "--reward-term", "cost=1"], 2, "terms: calls"),
        (["--rule", "mem1"], 2, "mem1:critic=zero"),
        (["--rule", "foldgrpo"], 1, "tool_call events"),
    ],
)
def test_what_cannot_be_credited_is_said(
    export: str, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, problem: str
) -> None:
    assert main(["credit", export, *argv]) == code
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("term", ["length", "length=", "=1", "length=nan"])
def test_a_term_is_a_name_and_a_number(export: str, capsys: pytest.CaptureFixture[str], term: str) -> None:
    with pytest.raises(SystemExit):
        main(["credit", export, "--rule", "shared", "--reward-term", term])
    assert "no NAME=NUMBER" in capsys.readouterr().err


def test_what_rules_give_is_kept_in_the_store_of_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, out = f"sqlite:///{tmp_path / 'traces.db'}", tmp_path / "out"
    with open_store(db) as store:
        assert {one.status for one in store.ingest("p", [posted(one) for one in _four_attempts()])} == {
            "stored"
        }
        export_store(store, "p", out, Spec())
    rules = ("--rule", "shared", "--rule", "rao:depth_weights=no", "--reward-term", "calls=-0.25")
    for stored in (4, 0):
        assert main(["credit", str(out), *rules, "--db", db, "--json"]) == 0
        last = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert last["kept"] == {
            name: {"version": version, "branches": stored, "gone": 0}
            for version, name in enumerate(("shared", "rao:depth_weights=no"), 1)
        }
    asked = "SELECT rule, reward_terms, step, version, episode_id, reward, advantage_mean FROM credit"
    found = run_sql(db, "p", f"{asked} ORDER BY version, episode_id").rows
    # r - .25 for the one call: .75, -.25, -.25, .75; their mean is .25
    assert [tuple(row) for row in found[:4]] == [
        ("shared", "calls=-0.25", 0, 1, f"e{n}", reward, reward - 0.25)
        for n, reward in enumerate((0.75, -0.25, -0.25, 0.75))
    ]
    assert {row[0] for row in found[4:]} == {"rao:lambda=0.4,depth_weights=no"}
    assert main(["credit", str(out), "--rule", "shared", "--db", db]) == 0
    assert "shared: version 3, branches 4, gone 0" in capsys.readouterr().out
    assert main(["credit", str(out), "--rule", "shared", "--db", f"sqlite:///{tmp_path / 'none.db'}"]) != 0


def _four_attempts() -> list[AnyEvent]:
    events: list[AnyEvent] = [make.group("g", size=4)]
    for n, reward in enumerate((1.0, 0.0, 0.0, 1.0)):
        said = answer("a", ids=[3, 4], logprobs=[-0.5, -0.5])
        events += [
            make.episode(f"e{n}", group_id="g", status="ok"),
            make.agent(f"a{n}", episode=f"e{n}"),
            call(f"c{n}", [user("u")], said, prompt_ids=[1, 2], episode=f"e{n}", agent=f"a{n}", ordinal=0),
            make.reward(f"r{n}", value=reward, episode=f"e{n}"),
        ]
    return events
