from __future__ import annotations

import json

import pytest

from tests.api.proxy import dialects as d
from tests.factories import episode, posted
from tests.replay.conversations import events_of
from tests.replay.test_paths import fork_events, origin_events
from tracestore.cli.main import main
from tracestore.store.store import Store


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('diff')}/t.db"
    with Store.open(url) as store:
        for id_, question in (("c0", "Wie heißt du?"), ("c1", "Wie heißt er?")):
            request = {"model": "m", "messages": [{"role": "user", "content": question}]}
            events = events_of("openai_chat", request, d.chat("Ich"), call_id=id_)
            store.ingest("default", [posted(event) for event in (episode("e"), *events)])
        request = {"model": "m", "messages": [{"role": "user", "content": "Wie heißt sie?"}]}
        events = events_of("openai_chat", request, d.chat("Ich"), call_id="c2")
        names = {"episode_id": "other", "agent_id": "other/main"}
        moved = [event.model_copy(update=names) for event in events]
        store.ingest("default", [posted(event) for event in (episode("other"), *moved)])
        store.ingest("forked", [posted(event) for event in (*origin_events(), *fork_events())])
    return url


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "58")


def test_two_calls_are_shown_where_they_differ(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--db", database, "c0", "c1"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "request of c0 and c1: messages[0].content, byte 11",
        "  Wie heißt du?",
        "  Wie heißt er?",
        "",
        "role: user                    role: user",
        "content: Wie heißt du?      | content: Wie heißt er?",
    ]
    assert main(["diff", "--db", database, "c0", "c1", "--json"]) == 1
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["what"], first["difference"]["byte"]) == ("request", 11)
    assert last == {"equal": False, "differences": 1}


def test_equal_episodes_are_equal(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--db", database, "e", "e"]) == 0
    assert capsys.readouterr().out == "equal: requests, outcomes, answers and token ids\n"


def test_two_branches_are_shown_where_they_part(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["diff", "--db", database, "--project", "forked"]
    assert main([*words, "c2/0", "d1/0"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "messages of c2/0 and d1/0: messages[3].content, byte 0",
        "  b",
        "  B",
        "tokens of c2/0 and d1/0: [4]",
        "  21",
        "  22",
        "",
        "role: assistant               role: assistant",
        "content: b                  | content: B",
    ]
    assert main([*words, "c2/0", "d1/0", "--context", "0"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "content: b                  | content: B"
    assert main([*words, "c2/0", "d1", "--json"]) == 1
    first, tokens, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["difference"]["recorded"] == "b"
    assert (first["difference"]["asked"], tokens["difference"]["path"]) == ("(nothing)", "[4]")
    assert last == {"equal": False, "differences": 2}
    assert main([*words, "d1/0", "d1/0"]) == 0
    assert capsys.readouterr().out == "equal: messages, and token ids where both are recorded\n"


def test_two_episodes_show_the_first_messages_that_differ(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--db", database, "e", "other"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("request of c0 and c2: messages[0].content, byte 11")
    assert lines[-1] == "content: Wie heißt du?      | content: Wie heißt sie?"


def test_a_fork_stands_beside_its_origin_from_where_it_leaves_it(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["diff", "--db", database, "--project", "forked"]
    assert main([*words, "e", "f"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines[:-3] if line and not line.startswith(" ")] == [
        "answer 0 of c1 and d1: content, byte 0",
        "tokens of answer 0 of c1 and d1: [0]",
        "calls of c2 and (no call): main[1]",
    ]
    assert lines[-1] == "content: b                  | content: B"
    assert main([*words, "f", "e"]) == 1
    assert capsys.readouterr().out.startswith("answer 0 of d1 and c1: content, byte 0\n")


@pytest.mark.parametrize(
    ("ids", "code", "hint"),
    [
        (("c0", "e"), 2, "two calls"),
        (("c0", "none"), 1, "tracestore show"),
        (("c0", "c0/1"), 1, "no such completion"),
        (("c0", "none/0"), 1, "tracestore show"),
    ],
)
def test_what_cannot_be_compared_says_so(
    database: str, ids: tuple[str, str], code: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--db", database, *ids]) == code
    assert hint in capsys.readouterr().err
