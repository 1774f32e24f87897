from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.exporters.round_trip import assert_round_trip
from tests.factories import (
    agent,
    answer,
    assistant,
    call,
    episode,
    reward,
    tool_call,
    tool_use,
    user,
)
from tests.importers.reading import read_fixtures, read_paths
from tests.importers.test_atif import SUMMARIZATION
from tests.importers.test_otlp import SPANS
from tests.scenarios import SCENARIOS
from tests.strategies import episodes
from tracestore.graph.build import build
from tracestore.graph.model import Graph
from tracestore.wire.call import Usage
from tracestore.wire.events import AnyEvent
from tracestore_exporters.otlp import request
from tracestore_exporters.writing import Report

TRACES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*/trace.jsonl"))


def write(graph: Graph, report: Report) -> Any:
    return request([graph], report=report)


def spans(*events: AnyEvent) -> list[dict[str, Any]]:
    document = request([build(events)], report=Report())
    (scope,) = document["resourceSpans"][0]["scopeSpans"]
    found: list[dict[str, Any]] = scope["spans"]
    return found


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parent.name)
def test_our_own_traces_come_back_from_spans(path: Path) -> None:
    for graph in read_paths(path).graphs.values():
        report = assert_round_trip(graph, write)
        # Spans name payloads by their hash; their bytes lie in the store.
        assert +report.lost == +Counter({"payload of a blob": len(graph.blobs)})


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_comes_back_from_spans(name: str) -> None:
    assert_round_trip(build(SCENARIOS[name]().events), write)


@settings(max_examples=12, deadline=None)
@given(episodes(max_calls=6))
def test_any_episode_comes_back_from_spans(events: list[AnyEvent]) -> None:
    assert_round_trip(build(events), write)


def test_imported_traces_come_back_from_spans() -> None:
    for names in (SUMMARIZATION, [f"{SPANS}openinference-vercel/test/__fixtures__/v6-spans/all-spans.json"]):
        for graph in read_fixtures(*names).graphs.values():
            assert_round_trip(graph, write)


def test_spans_say_what_genai_has_a_name_for() -> None:
    ask = assistant("", tool_calls=[tool_use("look", '{"at": 1}')])
    found = spans(
        episode(),
        agent("main", role="main", name="scout"),
        call("c0", [user("u")], answer(ask), model="m", usage=Usage(prompt_tokens=3, cached_tokens=1)),
        tool_call("x", "c0", tool_call_id="t1", name="look", arguments='{"at": 1}', result="seen"),
        reward(value=0.5),
    )
    by_name = {span["name"]: span for span in found}
    assert by_name.keys() == {"episode", "invoke_agent scout", "chat m", "execute_tool look"}
    chat = attributes(by_name["chat m"])
    assert json.loads(chat["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "u"}]}
    ]
    (said,) = json.loads(chat["gen_ai.output.messages"])
    assert said["finish_reason"] == "stop"
    assert {"type": "tool_call", "id": "t1", "name": "look", "arguments": '{"at": 1}'} in said["parts"]
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.cache_read.input_tokens"]) == ("3", "1")
    assert by_name["chat m"]["parentSpanId"] == by_name["invoke_agent scout"]["spanId"]
    assert by_name["execute_tool look"]["parentSpanId"] == by_name["chat m"]["spanId"]
    (event,) = by_name["episode"]["events"]
    assert event["name"] == "gen_ai.evaluation.result"


def test_a_sub_agent_hangs_below_the_tool_that_spawned_it() -> None:
    found = spans(
        episode(),
        agent("main", role="main"),
        call("c0", [user("u")], answer(assistant("", tool_calls=[tool_use("ask")]))),
        tool_call("x", "c0", tool_call_id="t1", name="ask"),
        agent("sub", parent_agent_id="main", spawned_by_call_id="c0", spawned_by_tool_call_id="t1"),
    )
    by_name = {span["name"]: span for span in found}
    assert by_name["invoke_agent sub"]["parentSpanId"] == by_name["execute_tool ask"]["spanId"]


def test_ids_and_traces_are_of_the_sizes_that_collectors_take() -> None:
    for span in spans(episode(), agent("main"), call("c0", [user("u")])):
        assert (len(span["traceId"]), len(span["spanId"])) == (32, 16)
