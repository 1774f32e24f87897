"""`tracestore forks`: forks beside their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.databases import empty_store
from tests.factories import episode, posted, reward
from tests.replay.test_paths import fork_events, origin_events
from tracestore.cli.main import main
from tracestore_migrations import open_store


@pytest.fixture
def db(tmp_path: Path) -> str:
    """An origin with one fork that was scored better, and a fork of an episode that was not recorded."""
    url = empty_store(tmp_path / "t.db")
    events = [
        *origin_events(),
        *fork_events(),
        reward("r0", 0.25, name="correct", episode="e"),
        reward("r1", 1.0, name="correct", episode="f"),
        reward("r2", 0.5, name="short", episode="f", weight=0.5),
        episode("orphan", forked_from_episode_id="gone"),
    ]
    with open_store(url) as store:
        outcomes = store.ingest("default", [posted(event) for event in events])
    assert {one.status for one in outcomes} == {"stored"}
    return url


def shown(capsys: pytest.CaptureFixture[str], db: str, *words: str) -> str:
    assert main(["forks", "--db", db, *words]) == 0
    return capsys.readouterr().out


def lines_of(capsys: pytest.CaptureFixture[str], db: str, *words: str) -> list[Any]:
    return [json.loads(line) for line in shown(capsys, db, "--json", *words).splitlines()]


def test_forks_stand_beside_their_origin_with_their_rewards(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    origin, fork = lines_of(capsys, db, "e")
    assert (origin["episode_id"], origin["reward"]) == ("e", 0.25)
    assert (fork["episode_id"], fork["forked_from_call_id"], fork["at"]) == ("f", "c0", 3)
    assert (fork["shared_tokens"], fork["origin_sampled_tokens"], fork["sampled_tokens"]) == (4, 1 + 3, 2)
    # 1 + 0.5 * 0.5 - 0.25
    assert (fork["reward"], fork["reward_difference"]) == (1.25, 1.0)
    assert (fork["origin_message"]["preview"], fork["message"]["preview"]) == ("b", "B")
    assert fork["difference"] == {"path": "content", "byte": 0, "recorded": "b", "asked": "B"}


def test_forks_for_people_are_a_table_and_where_each_parts(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, db, "e").splitlines() == [
        "episode  status  after call  at message  tokens shared  sampled after  its origin  reward  correct"
        "  short",
        "-------  ------  ----------  ----------  -------------  -------------  ----------  ------  -------"
        "  -----",
        "e        ok                                                                          0.25     0.25"
        "   NULL",
        "f        ok      c0          3           4              2              4             1.25        1"
        "    0.5",
        "",
        "f parts from e at message 3",
        "  e  assistant: b",
        "  f  assistant: B",
    ]


def test_without_an_id_the_episodes_that_have_forks_are_listed(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines_of(capsys, db) == [
        {"episode_id": "e", "forks": ["f"]},
        {"episode_id": "gone", "forks": ["orphan"]},
    ]
    assert shown(capsys, db).splitlines()[2:] == ["e            1", "gone         1"]


def test_of_an_origin_that_was_not_recorded_nothing_is_compared(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    origin, fork = lines_of(capsys, db, "gone")
    assert (origin["reward"], fork["episode_id"], fork["at"]) == (None, "orphan", None)


def test_rewards_of_one_name_by_another_scorer_stand_apart(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(db) as store:
        more = reward("r3", 0.0, name="correct", episode="f", weight=0.0, scorer="m:f", scorer_version="2")
        store.ingest("default", [posted(more)])
    head = shown(capsys, db, "e").splitlines()[0]
    assert head.endswith("reward  correct (no scorer)  correct (m:f 2)  short")


def test_rewards_of_weight_0_are_shown_and_grade_nothing(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(db) as store:
        noted = reward("r3", 9.0, name="correct", episode="orphan", weight=0.0)
        store.ingest("default", [posted(noted)])
    _, fork = lines_of(capsys, db, "gone")
    assert (fork["reward"], [one["value"] for one in fork["rewards"]]) == (None, [9.0])


def test_an_episode_without_forks_says_so_by_itself_and_an_unknown_one_is_told(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [one["episode_id"] for one in lines_of(capsys, db, "f")] == ["f"]
    assert main(["forks", "--db", db, "none"]) == 1
    assert "tracestore show" in capsys.readouterr().err


def test_the_query_of_the_page_says_the_same(db: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    sql = page.partition("## Forks")[2].partition("```sql\n")[2].partition("```")[0]
    with open_store(db) as store, store.read() as connection:
        assert [tuple(row) for row in connection.exec_driver_sql(sql)] == [("e", "f", "c0", 0.25, 1.0)]
