from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import TypeAdapter

from tests import factories as make
from tests.exporters.stores import grouped, stored
from tests.scenarios import SCENARIOS
from tracestore.graph.build import build
from tracestore.wire.events import AnyEvent
from tracestore_exporters.interchange import SpecNotFollowed, write_episodes
from tracestore_exporters.openai import examples
from tracestore_exporters.spec import Spec, Validation
from tracestore_exporters.writing import Report

_MESSAGES = TypeAdapter(list[ChatCompletionMessageParam])
_TOOLS = TypeAdapter(list[ChatCompletionToolParam])
_FIELDS = {"role", "content", "tool_calls", "tool_call_id", "weight"}


def lines(*events: AnyEvent, report: Report | None = None, **spec: Any) -> list[dict[str, Any]]:
    """Of one episode, each checked against the types of OpenAI's own package."""
    stated = Spec(**{"objective": "sft", **spec})
    made = list(examples(build(events), spec=stated, report=report or Report()))
    for line in made:
        _MESSAGES.validate_python(line["messages"])
        _TOOLS.validate_python(line.get("tools", []))
        for message in line["messages"]:
            assert message.keys() <= _FIELDS
            assert ("weight" in message) == (message["role"] == "assistant")
            assert message.get("weight", 0) in (0, 1)
    return made


def weights(line: dict[str, Any]) -> list[tuple[str | None, int]]:
    """The answers of a line, each with its weight."""
    return [(one["content"], one["weight"]) for one in line["messages"] if one["role"] == "assistant"]


def turns(*texts: str) -> list[dict[str, Any]]:
    """A conversation, a user's turn first."""
    return [make.assistant(text) if at % 2 else make.user(text) for at, text in enumerate(texts)]


def test_a_conversation_is_one_line_in_which_every_answer_trains() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    asks = make.assistant("", tool_calls=[make.tool_use("add", '{"a": 1,  "b": 2}')])
    report = Report()
    [line] = lines(
        make.episode(),
        make.call("c0", [make.user("1 + 2?")], make.answer(asks), tools=tools),
        make.call("c1", [make.user("1 + 2?"), asks, make.tool("3")], "three", parent="c0", tools=tools),
        report=report,
    )
    assert line["messages"] == [
        {"role": "user", "content": "1 + 2?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
            ],
            "weight": 1,
        },
        {"role": "tool", "content": "3", "tool_call_id": "t1"},
        {"role": "assistant", "content": "three", "weight": 1},
    ]
    assert line["tools"] == tools
    assert report.facts() == {"written": {"answer": 2, "line": 1}, "carried": {}, "lost": {}}


def test_an_answer_on_two_branches_trains_once() -> None:
    made = lines(
        make.episode(),
        make.call("c0", turns("a"), "b"),
        make.call("c1", turns("a", "b", "c"), "d", parent="c0"),
        make.call("c2", turns("a", "b", "x"), "y", parent="c0"),
    )
    assert [weights(line) for line in made] == [[("b", 1), ("d", 1)], [("b", 0), ("y", 1)]]


def test_what_no_model_of_the_trace_wrote_does_not_train() -> None:
    [line] = lines(make.episode(), make.call("c0", turns("a", "not sampled here", "c"), "d"))
    assert weights(line) == [("not sampled here", 0), ("d", 1)]


def test_failed_calls_judges_and_broken_episodes_teach_nothing() -> None:
    failed = make.call("c1", turns("a", "b", "c"), "cut", parent="c0", status="aborted")
    judge = make.call("c2", turns("is b good?"), "yes", purpose="judge")
    made = lines(make.episode(), make.call("c0", turns("a"), "b"), failed, judge)
    assert [weights(line) for line in made] == [[("b", 1)]]
    assert lines(make.episode(status="infra_error"), make.call("c0", turns("a"), "b")) == []


def test_a_context_that_goes_on_without_an_answer_ends_at_its_last_one() -> None:
    open_call = make.call("c1", turns("a", "b", "c"), parent="c0")
    [line] = lines(make.episode(), make.call("c0", turns("a"), "b"), open_call)
    assert [one["content"] for one in line["messages"]] == ["a", "b"]


def test_messages_of_other_dialects_become_chat_messages() -> None:
    request = {
        "system": "be brief",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }
    said = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm"},
            {"type": "text", "text": "hello"},
            {"type": "tool_use", "id": "u1", "name": "look", "input": {"at": 1}},
        ],
    }
    report = Report()
    [line] = lines(
        make.episode(),
        make.call("c0", make.raw(request), make.answer(said), dialect="anthropic_messages"),
        report=report,
    )
    assert [one["role"] for one in line["messages"]] == ["system", "user", "assistant"]
    assert line["messages"][2]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":1}'}
    assert report.lost == {"reasoning": 1, "answer": 0}


def test_a_line_that_chat_messages_cannot_say_is_counted_with_its_answers() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    report = Report()
    assert lines(make.episode(), make.call("c0", [picture], "a cat"), report=report) == []
    assert report.facts()["lost"] == {"answer": 1, "line: media": 1}


def two_answers(*more: AnyEvent, **of_episode: Any) -> list[AnyEvent]:
    """Of one call, the second chosen."""
    both = make.call("c0", turns("a"), make.answer(make.assistant("b0")), make.answer(make.assistant("b1")))
    members = make.candidate_set("set", make.member("c0", 0), make.member("c0", 1))
    return [make.episode(**of_episode), both, members, make.selection("s", "set", 1), *more]


def test_a_rejected_candidate_is_not_taught(tmp_path: Path) -> None:
    report = Report()
    assert [weights(line) for line in lines(*two_answers(), report=report)] == [[("b1", 1)]]
    assert report.facts()["lost"] == {"answer: candidate_excluded": 1}
    both = lines(*two_answers(), candidates="shared")
    assert sorted(weights(line) for line in both) == [[("b0", 1)], [("b1", 1)]]


@pytest.mark.parametrize(
    ("spec", "of_episode", "reason"),
    [
        ({"statuses": ("ok",)}, {"status": "failed"}, "episode_excluded"),
        ({}, {"split": "eval"}, "split"),
        ({"validation": Validation(share=0.999)}, {"task_id": "t"}, "split"),
        ({"started_from": 5}, {"started_at": 4}, "time"),
        ({"models": ("n",)}, {}, "other_policy"),
        ({"roles": ("main",)}, {}, "role"),
        ({"purposes": ("summarize",)}, {}, "purpose"),
    ],
)
def test_what_the_spec_leaves_out_of_the_shards_is_not_taught_and_counted(
    spec: dict[str, Any], of_episode: dict[str, Any], reason: str
) -> None:
    report = Report()
    events = [make.episode(**of_episode), make.call("c0", turns("a"), "b", model="m")]
    assert lines(*events, report=report, **spec) == []
    assert report.facts() == {"written": {}, "carried": {}, "lost": {f"answer: {reason}": 1}}


def test_a_group_that_is_open_or_not_of_the_spec_is_not_taught(tmp_path: Path) -> None:
    events = [
        *(make.episode("e0", phase="start"), make.call("c0", turns("a"), "b", episode="e0")),
        *(make.episode("e1"), make.call("c1", turns("a"), "c", episode="e1")),
        *(make.episode("e2"), make.call("c2", turns("a"), "d", episode="e2")),
    ]
    with stored(tmp_path, events) as store:
        spec = Spec(objective="sft", groups=("e0", "e1"))
        episodes, report = write_episodes(store, "p", tmp_path / "out", format="openai", spec=spec)
    assert episodes == 2
    assert report.facts() == {
        "written": {"answer": 1, "line": 1},
        "carried": {},
        "lost": {"answer: group_open": 1},
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["e1.openai.jsonl"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"objective": "preference"},
        {"objective": "sft", "max_tokens": 9},
        {"objective": "sft", "ownership": "tree_mean"},
        {"objective": "sft", "render": True},
    ],
)
def test_a_spec_that_lines_of_text_cannot_follow_is_refused(spec: dict[str, Any], tmp_path: Path) -> None:
    with stored(tmp_path, two_answers()) as store, pytest.raises(SpecNotFollowed):
        write_episodes(store, "p", tmp_path / "out", format="openai", spec=Spec(**spec))
    assert not (tmp_path / "out").exists()


def test_delta_calls_have_the_context_and_the_tools_of_their_ancestors() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    made = lines(
        make.episode(),
        make.call("c0", turns("a"), "b", tools=tools),
        make.call("c1", turns("c"), "d", parent="c0", delta=True),
    )
    assert [weights(line) for line in made] == [[("b", 1), ("d", 1)]]
    assert made[0]["tools"] == tools


def test_every_scenario_has_a_file_of_lines_and_no_answer_trains_twice(tmp_path: Path) -> None:
    names: Sequence[str] = list(SCENARIOS)
    events = [one for name in names for one in grouped(SCENARIOS[name](), prefix=name)]
    with stored(tmp_path, events) as store:
        episodes, report = write_episodes(store, "p", tmp_path / "out", format="openai")
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == episodes == len(names)
    made = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert len(made) == report.written["line"]
    trained = sum(weight for line in made for _, weight in weights(line))
    assert trained == report.written["answer"]
    sampled = sum(len(one.completions or ()) for one in events if one.kind == "call")
    not_taught = sum(number for what, number in report.lost.items() if what.startswith("answer"))
    assert report.written["answer"] + not_taught == sampled
    assert report.lost["answer: candidate_excluded"] > 0


def test_an_answer_to_a_latent_is_no_answer_to_the_text_before_it_nor_is_what_continues_it() -> None:
    report = Report()
    [line] = lines(
        make.episode(),
        make.call("plain", turns("u"), "a", ordinal=0),
        make.call("reads", turns("v"), "b", ordinal=1),
        make.call("goes on", turns("v", "b", "w"), "c", ordinal=2, parent="reads"),
        make.blob(role="latent", call_id="reads", position=4),
        make.blob("elsewhere", role="latent_output", call_id="plain"),
        report=report,
    )
    assert weights(line) == [("a", 1)]
    assert report.facts()["lost"] == {"answer: latent": 2}
