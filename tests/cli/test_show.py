from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.scenarios import SCENARIOS
from tracestore.cli.main import main
from tracestore.wire.base import Raw
from tracestore_migrations import open_store

SYSTEM = Raw(b'{"role": "system",\n "content": "caf\\u00e9 1e400"}')


@pytest.fixture
def db(tmp_path: Path) -> str:
    """A store with one episode of two calls, the second continuing the first."""
    url = empty_store(tmp_path / "tracestore.db")
    first = [SYSTEM, make.user("hi")]
    events = [
        make.episode(status="ok"),
        make.agent(role="main"),
        make.call("c0", first, make.answer("hello", ids=[5, 6]), ordinal=0, prompt_ids=[1, 2]),
        make.call(
            "c1",
            [*first, make.assistant("hello"), make.user("bye")],
            make.answer("bye"),
            ordinal=1,
            usage={"prompt_tokens": 9},
        ),
    ]
    store = open_store(url)
    outcomes = store.ingest("default", [make.posted(event) for event in events])
    store.close()
    assert {outcome.status for outcome in outcomes} == {"stored"}
    return url


def shown(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["show", *argv]) == 0
    return capsys.readouterr().out


def test_without_an_id_the_latest_episodes_are_listed(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = shown(capsys, "--db", db, "--json").splitlines()
    assert json.loads(line) == {"id": "e", "status": "ok", "split": None, "task_id": None, "calls": 2}


def test_an_episode_is_shown_as_its_tree(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "e", "--db", db).splitlines() == [
        "episode e  ok",
        "└─ agent main",
        "   ├─ call c0  -> 2 tokens, stop",
        "   └─ call c1  -> stop",
    ]


def test_an_episode_is_drawn_as_mermaid_and_as_svg(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "e", "--picture", "mermaid", "--db", db).splitlines() == [
        "flowchart TD",
        '    n0(["episode e · ok"])',
        '    n1[["main"]]',
        '    n2["call 0 · 2 tokens"]',
        '    n3["call 1"]',
        "    n1 --- n2",
        "    n2 --> n3",
    ]
    assert shown(capsys, "e", "--picture", "svg", "--db", db).startswith("<svg ")


@pytest.mark.parametrize("argv", [[], ["c0"], ["e", "--json"], ["c0", "--context"]])
def test_a_picture_of_anything_but_an_episode_is_refused(
    argv: list[str], db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *argv, "--picture", "svg", "--db", db]) == 2
    assert "--picture needs the id of an episode" in capsys.readouterr().err


def test_an_episode_for_programs_is_the_object_that_the_api_gives(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (line,) = shown(capsys, "e", "--db", db, "--json").splitlines()
    tree = json.loads(line)
    assert (tree["id"], tree["episode"]["status"]) == ("e", "ok")
    (agent,) = tree["agents"]
    assert [(call["id"], call["link"]["parent"]) for call in agent["calls"]] == [
        ("c0", None),
        ("c1", {"call_id": "c0", "completion": 0}),
    ]


def test_a_call_is_shown_with_what_it_continues(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(shown(capsys, "c1", "--db", db, "--json"))
    assert (facts["episode_id"], facts["continues"], facts["link"]) == ("e", ["c0", 0], "matched")
    assert json.loads(facts["completion_0"]["message"])["content"] == "bye"


def test_a_context_is_shown_byte_for_byte_with_its_authors(
    db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    *messages, whole = [
        json.loads(line) for line in shown(capsys, "c1", "--context", "--db", db, "--json").splitlines()
    ]
    assert messages[0]["raw"].encode() == SYSTEM
    assert [(message["role"], message["author"]) for message in messages] == [
        ("system", None),
        ("user", None),
        ("assistant", {"call_id": "c0", "completion": 0}),
        ("user", None),
    ]
    # Of c1 no ids are recorded: the answer that was sampled before it has its two.
    assert [message["tokens"] for message in messages] == [None, None, 2, None]
    assert (whole["messages"], whole["tokens"], whole["edits"]) == (4, None, [])


def test_a_context_for_people_names_each_author(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "c1", "--context", "--db", db).splitlines() == [
        "[0]  system  ? tokens",
        '{"role": "system",',
        ' "content": "caf\\u00e9 1e400"}',
        "[1]  user  ? tokens",
        '{"role":"user","content":"hi"}',
        "[2]  assistant  2 tokens  by call c0, completion 0",
        '{"role":"assistant","content":"hello"}',
        "[3]  user  ? tokens",
        '{"role":"user","content":"bye"}',
        "4 messages, ? tokens (the server counted 9)",
    ]


def test_a_context_says_which_edit_made_it_and_how_many_tokens_its_messages_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_store(tmp_path / "edited.db")
    with open_store(url) as store:
        store.ingest("default", [make.posted(event) for event in SCENARIOS["compaction"]().events])
    lines = shown(capsys, "d1", "--context", "--db", url).splitlines()
    # Messages of 8 ids take 8 + 4, what is read before an answer 2.
    assert [line for line in lines if not line.startswith("{")] == [
        "[0]  system  ? tokens",
        "[1]  user  ? tokens",
        "[2]  user  ? tokens  brought by edit edit1",
        "[3]  assistant  13 tokens  by call d0, completion 0",
        "[4]  user  15 tokens",
        "[0-2]  together 38 tokens",
        "5 messages, 66 tokens",
        "edit edit1: compaction, by the policy, written by call sum, after call c2:"
        " messages vanished 5, kept 2, added 1",
    ]


def test_an_id_of_another_project_is_not_there(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open_store(db) as store:
        store.ingest("other", [make.posted(make.episode("theirs"))])
    assert main(["show", "e", "--db", db, "--project", "other"]) == 1
    assert "There is no episode and no call with this id: id='e'" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--json"], ["e"]])
def test_a_project_that_is_not_there_is_said_with_those_there_are(
    argv: list[str], db: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *argv, "--db", db, "--project", "nope"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Nothing was ever posted to this project: project='nope'" in err
    assert "projects in this database: default" in err


def test_a_context_needs_a_call(db: str) -> None:
    assert main(["show", "--context", "--db", db]) == 2
    assert main(["show", "e", "--context", "--db", db]) == 2


def test_a_database_that_is_not_there_is_said_and_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.db"
    assert main(["show", "--db", f"sqlite:///{path}"]) == 1
    assert capsys.readouterr().err.startswith("tracestore: ")
    assert not path.exists()
