from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.importers.reading import (
    Imported,
    as_lines,
    assert_builds,
    assert_perturbation,
    read_data,
    same_events,
)
from tests.importers.test_growth import assert_older
from tracestore.wire.encode import encode

USE = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def observation(name: str, kind: str, parent: str | None, **fields: Any) -> dict[str, Any]:
    return {
        "id": name,
        "traceId": "t",
        "type": kind,
        "name": name,
        "parentObservationId": parent,
        "startTime": "2026-01-01T00:00:00.000Z",
        "endTime": "2026-01-01T00:00:01.000Z",
        "level": "DEFAULT",
    } | fields


OBSERVATIONS = [
    observation("agent", "AGENT", None, usageDetails={"input": 99}),
    observation(
        "llm",
        "GENERATION",
        "agent",
        model="m",
        modelParameters={"temperature": 0.5},
        input=[{"role": "user", "content": "hi"}],
        output={"role": "assistant", "content": "", "tool_calls": [USE]},
        usageDetails={"input": 10, "output": 4, "total": 14, "input_cached_tokens": 6},
        costDetails={"total": 0.25},
        completionStartTime="2026-01-01T00:00:00.500Z",
    ),
    observation("look", "TOOL", "agent", input="{}", output="seen", metadata={"tool_call_id": "t1"}),
    observation("step", "SPAN", "agent", input="x"),
]
TRACE: dict[str, Any] = {
    "id": "t",
    "name": "run",
    "sessionId": "s",
    "input": "hi",
    "scores": [
        {"id": "s1", "name": "good", "value": 1, "source": "EVAL", "dataType": "NUMERIC"},
        {"id": "s2", "name": "tone", "value": 0.5, "source": "API", "observationId": "llm"},
        {"id": "s3", "name": "kind", "stringValue": "a", "dataType": "CATEGORICAL"},
    ],
}


def read(*records: Any) -> Imported:
    imported = read_data(as_lines(*records), format="langfuse")
    assert_builds(imported)
    return imported


def test_a_trace_with_its_observations_is_an_episode() -> None:
    imported = read({"trace": TRACE, "observations": OBSERVATIONS})
    (call,) = imported.of("call")
    (tool_call,) = imported.of("tool_call")
    (agent,) = imported.of("agent")
    assert (call.id, call.agent_id, agent.id) == ("t/llm", "t/agent", "t/agent")
    assert json.loads(call.request) == {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}
    assert (call.usage.prompt_tokens, call.usage.cached_tokens, call.usage.cost_usd) == (10, 6, 0.25)
    assert call.first_token_at - call.started_at == 500_000_000
    assert (tool_call.call_id, tool_call.tool_call_id, tool_call.result) == (call.id, "t1", b'"seen"')
    assert imported.report["usage"]["prompt_tokens"] == 10


def test_scores_are_rewards_of_the_trace_or_of_an_observation() -> None:
    rewards = {one.name: one for one in read(TRACE | {"observations": OBSERVATIONS}).of("reward")}
    assert rewards.keys() == {"good", "tone"}
    assert rewards["good"].target.finest == "episode"
    assert rewards["tone"].target.call_id == "t/llm"


def test_what_any_part_of_an_export_says_stays_or_is_replaced_by_the_whole() -> None:
    unnamed = {"name": "short", "value": 0.25, "observationId": "llm"}
    trace = TRACE | {"scores": [*TRACE["scores"], unnamed]}
    records = [trace, *OBSERVATIONS]
    some = [read(*part) for n in range(1, 5) for part in itertools.combinations(records, n)]
    whole = read(*records)
    for part in some:
        assert_older(part, whole)
    early = {one.name: one for one in read(trace, OBSERVATIONS[0]).of("reward")}
    assert encode(early["tone"]).count(b"null") == 0
    assert early["tone"].target.finest == "episode"
    late = {one.name: one for one in read(*records).of("reward")}
    assert late["short"].target.finest == late["tone"].target.finest == "call"


def test_the_shapes_of_an_export_are_read_alike() -> None:
    whole = read(TRACE | {"observations": OBSERVATIONS})
    assert same_events(whole, read({"trace": TRACE, "observations": OBSERVATIONS}))
    assert same_events(whole, read({"data": [TRACE | {"observations": OBSERVATIONS}], "meta": {}}))
    assert {one.id for one in read(*OBSERVATIONS).of("call")} == {"t/llm"}


@pytest.mark.parametrize(
    ("details", "prompt", "completion"),
    [
        # 10 + 4 = 14: the cached 6 are part of the 10.
        ({"input": 10, "output": 4, "total": 14, "input_cached_tokens": 6}, 10, 4),
        # 10 + 6 + 4 = 20: the cached 6 stand beside the 10.
        ({"input": 10, "output": 4, "total": 20, "input_cached_tokens": 6}, 16, 4),
        # 10 + 6 + 4 + 3 = 23: reasoning stands beside the output too.
        (
            {"input": 10, "output": 4, "total": 23, "input_cached_tokens": 6, "output_reasoning_tokens": 3},
            16,
            7,
        ),
        ({"input": 10, "output": 4, "input_cached_tokens": 6}, 10, 4),
    ],
)
def test_whether_cached_tokens_are_part_of_the_input_is_told_by_the_total(
    details: dict[str, int], prompt: int, completion: int
) -> None:
    (call,) = read(observation("llm", "GENERATION", None, usageDetails=details)).of("call")
    assert (call.usage.prompt_tokens, call.usage.completion_tokens) == (prompt, completion)


def test_a_failed_observation_and_json_inside_text_are_read() -> None:
    told = observation(
        "llm",
        "GENERATION",
        None,
        level="ERROR",
        statusMessage="overloaded",
        input=json.dumps(json.dumps([{"role": "user", "content": "hi"}])),
    )
    (call,) = read(told).of("call")
    assert (call.status, call.error.message) == ("failed", "overloaded")
    assert json.loads(call.request) == {"messages": [{"role": "user", "content": "hi"}]}


def test_a_span_of_open_telemetry_is_what_its_attributes_say() -> None:
    metadata = {"attributes": {"openinference.span.kind": "AGENT"}}
    imported = read(observation("a", "SPAN", None, metadata=metadata), observation("c", "GENERATION", "a"))
    assert imported.of("call")[0].agent_id == "t/a"


def test_every_value_of_an_export_leaves_a_trace() -> None:
    assert_perturbation(as_lines({"trace": TRACE, "observations": OBSERVATIONS}), limit=40)
