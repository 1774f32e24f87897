from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests import factories as make
from tests.databases import empty_store
from tests.factories import posted
from tests.store.test_blobs import named, put
from tracestore.cli.main import main
from tracestore.store import SnapshotGone, Store
from tracestore.store.blobs import open_blobs
from tracestore.store.delete import carry_out, delete_contents, delete_episode
from tracestore.store.retain import BadRetention, read_retention
from tracestore.store.tombstones import Deleted
from tracestore.store.verify import verify
from tracestore.wire.call import Call, Usage
from tracestore.wire.events import AnyEvent


def events(name: str, *, is_graded: bool = False) -> list[AnyEvent]:
    call = make.call(
        f"c{name}",
        [make.user("what people wrote")],
        make.answer("what models wrote", ids=[5, 6]),
        episode=name,
        agent=f"a{name}",
        prompt_ids=[1, 2, 3],
        usage=Usage(prompt_tokens=3, completion_tokens=2, cost_usd=0.5),
        started_at=7,
    )
    use = make.tool_call(f"t{name}", call.id, episode=name, arguments="{}", result=make.raw(make.tool("r")))
    found = [make.episode(name, status="ok", error="why"), make.agent(f"a{name}", episode=name), call, use]
    return [*found, make.reward(f"r{name}", 0.5, episode=name)] if is_graded else found


def ingest(store: Store, some: list[AnyEvent], project: str = "p") -> list[str]:
    return [outcome.status for outcome in store.ingest(project, list(map(posted, some)))]


def test_without_its_content_an_episode_keeps_what_is_measured(store: Store) -> None:
    """litellm#13998: usage and cost were kept, or nothing was."""
    told = events("e", is_graded=True)
    ingest(store, told)
    before = store.snapshot("p")
    done = carry_out(store, "p", delete_contents(store, "p", ["e"], name="content older than 14d").id)
    assert (done.what, done.state, done.episodes, done.episodes_erased) == ("content", "done", 1, 1)
    # The request's skeleton and message, the answer, the result: nothing else has any.
    assert done.contents == 4
    kept = {event.kind: event for event in store.load("p", "e")}
    call = kept["call"]
    assert isinstance(call, Call)
    assert (call.usage, call.started_at, call.status) == (
        Usage(prompt_tokens=3, completion_tokens=2, cost_usd=0.5),
        7,
        "ok",
    )
    assert (call.request, call.prompt_token_ids) == (None, None)
    [body] = call.completions or ()
    assert (body.finish_reason, body.message, body.token_ids, body.logprobs) == ("stop", None, None, None)
    assert kept["reward"] == told[-1]
    assert verify(store, "p").problems == ()
    with pytest.raises(Deleted):
        store.request("p", "ce")
    with pytest.raises(Deleted):
        store.context("p", "ce")
    with pytest.raises(SnapshotGone):
        store.groups("p", snapshot=before)
    assert [stone["kind"] for stone in store.tombstones("p", snapshot=store.snapshot("p"))] == ["content"]


def test_what_comes_late_to_such_an_episode_loses_its_content_too(store: Store) -> None:
    ingest(store, events("e"))
    carry_out(store, "p", delete_contents(store, "p", ["e"], name="a rule").id)
    assert ingest(store, events("e")) == ["duplicate"] * 4
    late = make.call("late", [make.user("more")], make.answer("text", ids=[1]), agent="ae")
    assert ingest(store, [late, make.reward("r", 1.0)]) == ["stored", "stored"]
    assert ingest(store, [late]) == ["duplicate"]
    [call] = [event for event in store.load("p", "e") if event.id == "late"]
    assert isinstance(call, Call)
    assert (call.request, (call.completions or ())[0].message) == (None, None)
    assert verify(store, "p").problems == ()
    done = carry_out(store, "p", delete_episode(store, "p", "e").id)
    assert done.episodes_erased == 1
    assert verify(store, "p").problems == ()


def test_the_command_says_what_would_go_and_then_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = empty_store(tmp_path / "store.db")
    blobs = open_blobs(str(tmp_path / "store.db.blobs"))
    with Store.open(url) as store:
        ingest(store, [*events("old"), *events("graded", is_graded=True)])
        ingest(store, events("other"), project="q")
        used, unused = put(blobs, b"used", project="q"), put(blobs, b"never named", project="q")
        ingest(store, [make.blob("b", named(b"used"), episode="other")], project="q")
    time.sleep(1.1)
    rules = tmp_path / "retention.json"
    rules.write_text(
        json.dumps(
            [
                {"project": "p", "older_than": "1s", "keep_graded": True},
                {"project": "p", "older_than": "1s", "take": "content"},
                {"project": "*", "older_than": "1s", "take": "blobs"},
                {"project": "q", "older_than": "1d"},
            ]
        ),
        encoding="utf-8",
    )
    verb = ["db", "retain", str(rules), "--db", url, "--json"]
    expected = [
        ("p", "episodes older than 1s, without a reward", ["old"], []),
        ("p", "content older than 1s", ["graded"], []),
        ("q", "blobs older than 1s", [], [unused]),
    ]
    for _ in range(2):
        assert main([*verb, "--dry-run"]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [tuple(one.values()) for one in found] == expected
    assert main(verb) == 0
    done = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["project"], one["what"], one["name"], one["state"]) for one in done] == [
        ("p", "age", expected[0][1], "done"),
        ("p", "content", expected[1][1], "done"),
        ("q", "blobs", expected[2][1], "done"),
    ]
    assert (blobs.size("q", used), blobs.size("q", unused)) == (4, None)
    assert main(verb) == 0
    assert capsys.readouterr().out == ""
    with Store.open(url) as store:
        assert [verify(store, project).problems for project in "pq"] == [(), ()]


def test_rules_that_nest_too_deeply_or_are_no_array_are_refused() -> None:
    for text in ("[" * 100_000, "{}", "nothing"):
        with pytest.raises(BadRetention, match="array of"):
            read_retention(text)


@pytest.mark.parametrize(
    "rule",
    [
        {"project": "p"},
        {"project": "p", "older_than": "soon"},
        {"project": "p", "older_than": "0d"},
        {"project": "p", "older_than": "1d", "take": "all"},
        {"project": "p", "older_than": "1d", "take": "blobs", "keep_graded": True},
        {"project": "p", "older_than": "1d", "more": 1},
    ],
)
def test_rules_that_cannot_be_used_are_refused(rule: dict[str, object]) -> None:
    with pytest.raises(BadRetention):
        read_retention(json.dumps([rule]))
