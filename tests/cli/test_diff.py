from __future__ import annotations

import json

import pytest

from tests.api.proxy import dialects as d
from tests.factories import episode, posted
from tests.replay.conversations import events_of
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
    return url


def test_two_calls_are_shown_where_they_differ(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--db", database, "c0", "c1"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "request of c0 and c1: messages[0].content, byte 11",
        "  Wie heißt du?",
        "  Wie heißt er?",
    ]
    assert main(["diff", "--db", database, "c0", "c1", "--json"]) == 1
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["what"], first["difference"]["byte"]) == ("request", 11)
    assert last == {"equal": False, "differences": 1}


def test_equal_episodes_are_equal(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--db", database, "e", "e"]) == 0
    assert capsys.readouterr().out == "equal: requests, outcomes, answers and token ids\n"


@pytest.mark.parametrize(
    ("ids", "code", "hint"), [(("c0", "e"), 2, "two calls"), (("c0", "none"), 1, "tracestore show")]
)
def test_what_cannot_be_compared_says_so(
    database: str, ids: tuple[str, str], code: int, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "--db", database, *ids]) == code
    assert hint in capsys.readouterr().err
