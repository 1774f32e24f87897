"""The fixture in a pytest of its own: what is recorded on the first run is answered on the next ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.api.proxy import dialects as d
from tests.api.proxy.scripted import Said, Upstream, running_proxy, scripted_upstream
from tests.databases import empty_store
from tests.factories import call, compaction, raw, tool_call
from tests.replay.conversations import events_of
from tracestore.ids import new_id
from tracestore.testing import replayed
from tracestore.testing.plugin import MODES
from tracestore.testing.replayed import Server, TraceUnusable, path_of, recording, replaying, trace_lines
from tracestore.wire.decode import decode_event
from tracestore.wire.events import AnyEvent
from tracestore.wire.reward import Reward, RewardTarget
from tracestore_migrations import open_store

pytest_plugins = ["pytester"]

ASKS = """
import json, os, urllib.error, urllib.request
from tracestore.client import tool, tool_use

@tool
def look(at):
    assert "REPLAYED" not in os.environ
    return f"a bridge at {at}"

def answer(replay, *messages):
    body = json.dumps({"model": "m", "messages": messages}).encode()
    with urllib.request.urlopen(replay.base_url + "/chat/completions", data=body) as answer:
        return json.load(answer)["choices"][0]["message"]

def ask(replay, question):
    return answer(replay, {"role": "user", "content": question})["content"]

def test_asks(tracestore_replay):
    assert [ask(tracestore_replay, "again?") for _ in range(2)] == ["one", "two"]
    question = {"role": "user", "content": "look!"}
    said = answer(tracestore_replay, question)
    [use] = said["tool_calls"]
    with tracestore_replay.tools(), tool_use(use["id"]):
        shown = look(**json.loads(use["function"]["arguments"]))
    result = {"role": "tool", "tool_call_id": use["id"], "content": shown}
    assert answer(tracestore_replay, question, said, result)["content"] == "seen"
    assert tracestore_replay.unasked == []
"""
CHANGED = """
def test_other_tool(tracestore_replay):
    with tracestore_replay.tools():
        try:
            look(2)
        except Exception:
            pass

def test_changed(tracestore_replay):
    ask(tracestore_replay, "against?")

def test_goes_on(tracestore_replay):
    assert not tracestore_replay.is_recording
    try:
        ask(tracestore_replay, "more?")
    except urllib.error.HTTPError:
        pass
"""
LOOKS = d.body_of(
    {
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {
                            "id": "t1",
                            "type": "function",
                            "function": {"name": "look", "arguments": '{"at": 1}'},
                        }
                    ],
                },
            }
        ],
    }
)
PLUGIN = ("-p", "tracestore.testing.plugin", "-p", "no:cacheprovider")


def test_the_first_run_records_and_later_ones_replay_and_say_where_they_differ(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_it=ASKS)
    trace = pytester.path / "traces" / "test_it" / "test_asks.jsonl"
    missing = pytester.runpytest_inprocess(*PLUGIN, "--tracestore-replay=none")
    missing.assert_outcomes(errors=1)
    missing.stdout.fnmatch_lines(["*test_asks.jsonl is not there: record it*"])
    with scripted_upstream() as upstream:
        upstream.says(Said(d.chat("one")), Said(d.chat("two")), Said(LOOKS), Said(d.chat("seen")))
        pytester.runpytest_inprocess(*PLUGIN, "--tracestore-upstream", upstream.url).assert_outcomes(passed=1)
        assert len(upstream.seen) == 4
    lines = trace.read_text().splitlines()
    named = [(one["kind"], one["id"].rpartition("::")[2]) for one in map(json.loads, lines)]
    assert named == [
        ("call", "test_asks/main/0"),
        ("call", "test_asks/main/1"),
        ("call", "test_asks/main/2"),
        ("tool_call", "test_asks/main/2/tool/0"),
        ("call", "test_asks/main/3"),
        ("episode", "test_asks"),
        ("agent", "test_asks/main"),
    ]
    assert "_at" not in "".join(name for line in lines for name in json.loads(line))

    pytester.makepyfile(test_it=ASKS + CHANGED)
    monkeypatch.setenv("REPLAYED", "1")
    for name in ("test_changed", "test_goes_on", "test_other_tool"):
        shutil.copy(trace, trace.with_name(f"{name}.jsonl"))
    again = pytester.runpytest_inprocess(
        *PLUGIN, "--tracestore-replay=none", "--tracestore-upstream=http://["
    )
    again.assert_outcomes(passed=1, failed=3)
    again.stdout.fnmatch_lines(
        [
            "tool look diverged after 0 answered runs:*",
            "*first difference       arguments.at",
            "*HTTPError: HTTP Error 409*",
            "*first difference       messages[[]0].content, byte 5",
            "*recorded             again[?]",
            "*asked                against[?]",
            "test_goes_on.jsonl has no answer:",
        ]
    )
    assert trace.read_text().splitlines() == lines


def test_a_mode_that_there_is_not_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntracestore_replay = sometimes")
    refused = pytester.runpytest_inprocess(*PLUGIN)
    refused.stderr.fnmatch_lines([f"*{', '.join(MODES)}*sometimes*"])


def test_nothing_is_written_of_a_test_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def served(folder: Path, *more: str) -> Iterator[str]:
        yield "http://127.0.0.1:1"

    monkeypatch.setattr(replayed, "served", served)
    path = tmp_path / "t.jsonl"
    with recording(path, "test_it.py::test", "http://up", tmp_path) as found:
        assert (found.is_recording, found.missed(), found.unasked) == (True, None, [])
        assert found.base_url == "http://127.0.0.1:1/proxy/episode=test_it.py%3A%3Atest/v1"
        assert found.environ == {"OPENAI_BASE_URL": found.base_url, "ANTHROPIC_BASE_URL": found.url}
    assert not path.exists()


def recorded(*questions: str) -> list[AnyEvent]:
    """As the proxy does: with ids of its own, and times."""
    events: list[AnyEvent] = []
    for place, question in enumerate(questions):
        request = {"model": "m", "messages": [{"role": "user", "content": question}]}
        made = events_of("openai_chat", request, d.chat("ja\n  doch"), call_id=new_id(), ordinal=place)
        events += [event.model_copy(update={"started_at": 5 + place}) for event in made]
    return events


def test_recorded_again_the_lines_are_the_same_and_one_changed_word_changes_one_line() -> None:
    first, again = (list(trace_lines(recorded("a", "b", "c"))) for _ in range(2))
    assert first == again
    changed = list(trace_lines(recorded("a", "x", "c")))
    assert [one == other for one, other in zip(first, changed, strict=True)] == [True, False, True]
    assert [b"\n" in line for line in first] == [False] * 3
    found = [decode_event(line) for line in first]
    assert [one.id for one in found] == ["e/main/0", "e/main/1", "e/main/2"]
    assert [one.request for one in found] == [one.request for one in recorded("a", "b", "c")]  # type: ignore[union-attr]


def proxied(path: Path, upstream: Upstream) -> list[bytes]:
    """A request for two answers, and one that goes on with the first of them, through the recording proxy."""
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    said = [{"role": "assistant", "content": "one"}, {"role": "user", "content": "b"}]
    store = open_store(empty_store(path))
    with store, running_proxy(store, upstream.url) as proxy:
        upstream.says(Said(d.chat("one", "two")), Said(d.chat("three")))
        url = f"{proxy.url}/episode=e/v1/chat/completions"
        httpx.post(url, json=asked | {"n": 2}).raise_for_status()
        proxy.settle()
        httpx.post(url, json=asked | {"messages": asked["messages"] + said}).raise_for_status()
        proxy.settle()
        return list(trace_lines(store.load("default", "e")))


def test_candidates_and_what_continues_them_name_events_of_the_file(tmp_path: Path) -> None:
    with scripted_upstream() as upstream:
        first, again = (proxied(tmp_path / f"{name}.db", upstream) for name in "ab")
    assert first == again
    found = [json.loads(line) for line in first]
    [candidates] = [one for one in found if one["kind"] == "candidate_set"]
    assert candidates["id"] == "e/main/0/candidates"
    assert candidates["members"] == [{"call_id": "e/main/0", "completion": place} for place in range(2)]
    goes_on = next(one for one in found if one["id"] == "e/main/1")
    assert goes_on["parent_call_id"] == "e/main/0"
    assert goes_on["meta"]["proxy"]["inferred"]["prefix"]["call_id"] == "e/main/0"


def test_ids_in_targets_and_lists_are_counted_too() -> None:
    made, other = new_id(), new_id()
    events: list[AnyEvent] = [
        call(made),
        call(other),
        Reward(id="r", target=RewardTarget(episode_id="e", call_id=made), name="score", value=1.0),
        compaction(replaced_call_ids=(made, "mine"), kept_call_ids=(other,), before_call_id=made),
        tool_call("x", made, tool_call_id=other, meta=raw({"of": f"{other}/0"})),
    ]
    _, _, scored, edited, ran = [json.loads(line) for line in trace_lines(events)]
    assert scored["target"] == {"episode_id": "e", "call_id": "main/0"}
    assert (edited["replaced_call_ids"], edited["kept_call_ids"]) == (["main/0", "mine"], ["main/1"])
    assert edited["before_call_id"] == "main/0"
    # The model's own id is the model's, whatever it looks like.
    assert (ran["call_id"], ran["tool_call_id"], ran["meta"]) == ("main/0", other, {"of": "main/1/0"})


def test_clients_without_a_key_find_a_replay_by_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in trace_lines(recorded("a"))))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with Server(tmp_path) as server, replaying(path, server) as found:
        for name, value in found.environ.items():
            monkeypatch.setenv(name, value)
        with openai.OpenAI() as client:
            answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])
        with anthropic.Anthropic() as other:
            assert (str(other.base_url).rstrip("/"), other.api_key) == (found.url, "replay")
    assert answer.choices[0].message.content == "ja\n  doch"


@pytest.mark.parametrize(
    ("nodeid", "name"),
    [
        ("t/test_a.py::test_b", "test_b"),
        ("t/test_a.py::TestC::test_b[x-1]", "TestC.test_b[x-1]"),
    ],
)
def test_a_trace_lies_beside_its_test_under_its_name(nodeid: str, name: str, tmp_path: Path) -> None:
    found = path_of(nodeid, tmp_path / "test_a.py", folder="traces")
    assert found == tmp_path / "traces" / "test_a" / f"{name}.jsonl"


def test_names_that_no_file_may_have_stay_apart(tmp_path: Path) -> None:
    names = ["a/b", "a_b", "a b", "x" * 300, "x" * 301]
    found = {path_of(f"t.py::t[{name}]", tmp_path / "t.py", folder="traces") for name in names}
    assert len(found) == len(names)
    assert all(len(path.name) < 130 and path.parent == tmp_path / "traces" / "t" for path in found)


@pytest.mark.parametrize("text", ["", "no JSON\n", "[]\n", '{"kind": "call", "id": "x"}\n'])
def test_a_file_that_is_no_trace_says_so(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def served(folder: Path, *more: str) -> Iterator[str]:
        yield "http://127.0.0.1:1"

    monkeypatch.setattr(replayed, "served", served)
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with Server(tmp_path) as server, pytest.raises(TraceUnusable, match="record it anew"):
        server.take(path)
