from __future__ import annotations

import json
from typing import Any

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_perturbation,
    read_data,
    read_fixtures,
)

FILE = "atif/sinity__polylogue/atof/nemo_relay_atof_v0.1_real_redacted.jsonl"


def scope(uuid: str, phase: str, category: str, **fields: Any) -> dict[str, Any]:
    return {
        "atof_version": "0.1",
        "kind": "scope",
        "scope_category": phase,
        "category": category,
        "uuid": uuid,
        "parent_uuid": None if uuid == "top" else "top",
        "name": uuid,
        "timestamp": 1767225600000000 + (500 if phase == "end" else 0),
        "metadata": {"session_id": "s"},
    } | fields


ASKED = {"messages": [{"role": "user", "content": "hi"}], "model": "m", "temperature": 0.5}
ANSWERED = {
    "assistant_message": {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
    },
    "finish_reason": "tool_calls",
    "usage": {"prompt_tokens": 10, "cache_read_tokens": 6, "completion_tokens": 2},
}
STREAM = [
    scope("top", "start", "agent"),
    scope("llm", "start", "llm", data={"content": ASKED, "headers": {}}),
    scope("llm", "end", "llm", data=ANSWERED),
    scope("tool", "start", "tool", data={}, metadata={"session_id": "s", "tool_call_id": "t1"}),
    scope("tool", "end", "tool", data={"stdout": "x"}, metadata={"session_id": "s", "tool_call_id": "t1"}),
    scope("top", "end", "agent"),
]


def test_scopes_become_an_agent_its_call_and_its_tool_call() -> None:
    imported = read_data(as_lines(*STREAM))
    assert_builds(imported)
    (agent,) = imported.of("agent")
    (call,) = imported.of("call")
    (tool_call,) = imported.of("tool_call")
    assert (agent.id, call.agent_id) == ("s/top", agent.id)
    assert json.loads(call.request) == ASKED
    assert call.completions[0].finish_reason == "tool_calls"
    assert (call.usage.prompt_tokens, call.usage.cached_tokens) == (10, 6)
    assert (tool_call.call_id, tool_call.name, json.loads(tool_call.result)) == (
        call.id,
        "look",
        {"stdout": "x"},
    )
    assert call.started_at == 1767225600000000 * 1000


def test_the_names_of_version_0_2_mean_the_same() -> None:
    newer = [
        {
            "schema_version": "0.2",
            "kind": "ScopeStart" if event["scope_category"] == "start" else "ScopeEnd",
            "scope_type": event["category"],
            ("input" if event["scope_category"] == "start" else "output"): event.get("data"),
        }
        | {name: event[name] for name in ("uuid", "parent_uuid", "name", "timestamp", "metadata")}
        for event in STREAM
    ]
    imported = read_data(as_lines(*newer))
    assert [len(imported.of(kind)) for kind in ("agent", "call", "tool_call")] == [1, 1, 1]
    assert json.loads(imported.of("call")[0].request) == ASKED


def test_a_failed_call_keeps_its_error() -> None:
    failed = scope("llm", "end", "llm", data={"error": "overloaded"})
    (call,) = read_data(as_lines(*STREAM[:2], failed)).of("call")
    assert (call.status, call.error.message, call.completions) == ("failed", "overloaded", None)


def test_a_stream_that_grows_gives_what_the_whole_gives() -> None:
    assert_grows(as_lines(*STREAM).splitlines())


def test_every_value_of_a_stream_leaves_a_trace() -> None:
    assert_perturbation(as_lines(*STREAM), limit=40)


def test_a_real_stream_tells_a_sub_agent_and_a_failed_call() -> None:
    imported = read_fixtures(FILE)
    assert_builds(imported)
    assert {(agent.name, agent.role) for agent in imported.of("agent")} == {
        ("hermes-session-redacted", "main"),
        ("research", "subagent"),
    }
    assert sorted(call.status for call in imported.of("call")) == ["failed", "ok"]
