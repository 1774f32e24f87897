from __future__ import annotations

import itertools
import json
from typing import Any

from tests.importers.reading import as_lines, assert_builds, assert_perturbation, read_data, same_events
from tests.importers.test_growth import assert_older


def span(span_id: str, parent: str | None, kind: str, attributes: dict[str, Any], **fields: Any) -> Any:
    return {
        "id": f"U3Bhbjo{span_id}",
        "name": f"span {span_id}",
        "context": {"trace_id": "t", "span_id": span_id},
        "span_kind": kind,
        "parent_id": parent,
        "start_time": "2026-01-01T00:00:00+00:00",
        "end_time": "2026-01-01T00:00:01+00:00",
        "status_code": "OK",
        "status_message": "",
        "attributes": attributes,
        "events": [],
    } | fields


FLAT = {
    "llm.model_name": "m",
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": "hi",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "hello",
    "llm.token_count.prompt": 5,
    "llm.token_count.completion": 2,
    "session.id": "s",
}
NESTED: dict[str, Any] = {
    "llm": {
        "model_name": "m",
        "input_messages": [{"message.role": "user", "message.content": "hi"}],
        "output_messages": [{"message": {"role": "assistant", "content": "hello"}}],
        "token_count": {"prompt": 5, "completion": 2},
    },
    "session": {"id": "s"},
}
SPANS = [
    span("a", None, "AGENT", {"agent.name": "main", "llm.token_count.prompt": 5}),
    span("c", "a", "LLM", FLAT),
    span("x", "a", "TOOL", {"tool.name": "look", "input.value": "{}", "output.value": "seen"}),
    span("r", "a", "RETRIEVER", {"input.value": "q"}),
]


def test_span_kinds_become_an_agent_its_call_and_its_tool_call() -> None:
    imported = read_data(as_lines(*SPANS))
    assert_builds(imported)
    (agent,) = imported.of("agent")
    (call,) = imported.of("call")
    (tool_call,) = imported.of("tool_call")
    assert (agent.id, agent.name, call.agent_id, call.model) == ("t/a", "main", "t/a", "m")
    assert json.loads(call.request) == {"messages": [{"role": "user", "content": "hi"}]}
    assert imported.report["usage"]["prompt_tokens"] == 5
    assert (tool_call.call_id, tool_call.name, tool_call.result) == (call.id, "look", b'"seen"')
    assert imported.notes.not_understood["phoenix: span that is no agent, call or tool"].count == 1


def test_what_any_part_of_an_export_says_stays_or_is_replaced_by_the_whole() -> None:
    some = [read_data(as_lines(*part)) for n in (1, 2, 3) for part in itertools.combinations(SPANS, n)]
    whole = read_data(as_lines(*SPANS))
    for part in some:
        assert_older(part, whole)


def test_pages_lists_and_lines_are_read_alike() -> None:
    lines = read_data(as_lines(*SPANS))
    assert same_events(lines, read_data(json.dumps({"data": SPANS, "next_cursor": None}).encode()))
    assert same_events(lines, read_data(json.dumps(SPANS).encode()))


def test_nested_attributes_and_rows_of_a_data_frame_tell_the_same_messages() -> None:
    nested = span("c", None, "LLM", NESTED)
    row = {name: one for name, one in nested.items() if name not in ("context", "attributes", "id", "events")}
    row |= {"context.trace_id": "t", "context.span_id": "c"}
    row |= {"attributes.llm.input_messages": NESTED["llm"]["input_messages"]}
    row |= {"attributes.llm.output_messages": NESTED["llm"]["output_messages"]}
    for record in (span("c", None, "LLM", FLAT), nested, row):
        (call,) = read_data(as_lines(record)).of("call")
        assert json.loads(call.request) == {"messages": [{"role": "user", "content": "hi"}]}
        assert json.loads(call.completions[0].message) == {"role": "assistant", "content": "hello"}


def test_an_annotation_with_a_score_is_a_reward_of_its_call() -> None:
    annotations = [
        {"name": "correct", "annotator_kind": "HUMAN", "result": {"label": "yes", "score": 1.0}},
        {"name": "note", "annotator_kind": "HUMAN", "result": {"label": "odd"}},
    ]
    imported = read_data(as_lines(span("c", None, "LLM", FLAT, annotations=annotations)))
    (reward,) = imported.of("reward")
    assert (reward.name, reward.value, reward.scorer) == ("correct", 1.0, "HUMAN")
    assert reward.target.call_id == "t/c"


def test_every_value_of_an_export_leaves_a_trace() -> None:
    assert_perturbation(as_lines(*SPANS, span("n", "a", "LLM", NESTED)), limit=40)
