from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    as_lines,
    assert_builds,
    assert_grows,
    assert_order_free,
    assert_perturbation,
    of_kind,
    read_data,
    read_values,
)
from tracestore.importers.agent_lightning import nested

ASKED = {"role": "user", "content": "q"}
SAID = {"role": "assistant", "content": "a"}


def event(
    kind: str, data: dict[str, Any], timestamp: float = 1_700_000_000.0, attempt: str = "0"
) -> dict[str, Any]:
    return {
        "event_type": kind,
        "rollout_id": "r",
        "attempt_id": attempt,
        "timestamp": timestamp,
        "data": data,
    }


def request(**data: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": SAID,
        "finish_reason": "stop",
        "token_ids": [3, 4],
        "logprobs": {"content": [{"token": "x", "logprob": -0.5}, {"token": "y", "logprob": -0.25}]},
    }
    response = {"id": "c1", "prompt_token_ids": [1, 2], "choices": [choice], "usage": {"prompt_tokens": 2}}
    return {
        "model": "m",
        "model_version": 7,
        "request": {"messages": [ASKED], "temperature": 1.0},
        "response": response,
        "status": "ok",
        "http_status": 200,
        **data,
    }


def span(sequence: int, attributes: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": "r",
        "attempt_id": "a",
        "sequence_id": sequence,
        "span_id": f"s{sequence}",
        "parent_id": None,
        "name": "openai.chat.completion",
        "status": {"status_code": "OK"},
        "attributes": attributes,
        "start_time": 1_700_000_000.0,
        "end_time": 1_700_000_001.0,
        **fields,
    }


def test_a_model_request_is_a_call_with_its_policy_and_ids() -> None:
    events, notes = read_values(event("model_request", request(latency_ms=5.0)))
    (call,) = of_kind(events, "call")
    assert (call.policy.name, call.policy.version, call.provider_id) == ("m", 7, "c1")
    assert call.prompt_token_ids.json() == [1, 2]
    assert call.completions[0].token_ids.json() == [3, 4]
    assert call.completions[0].logprobs.json() == [-0.5, -0.25]
    assert json.loads(call.request) == {"messages": [ASKED], "temperature": 1.0}
    assert (call.ended_at, call.ordinal, call.usage.prompt_tokens) == (1_700_000_000_000_000_000, None, 2)
    meta = json.loads(call.meta)["agent_lightning"]
    assert meta == {
        "status": "ok",
        "http_status": 200,
        "latency_ms": 5.0,
    }
    assert (notes.refused, notes.not_understood) == ([], {})


def test_equal_prompts_are_calls_of_their_own() -> None:
    same = event("model_request", request())
    later = event("model_request", request(), timestamp=1_700_000_009.0)
    imported = read_data(as_lines(same, same, later))
    assert len(imported.of("call")) == 3
    assert_builds(imported)


def test_a_request_that_failed_says_with_what() -> None:
    failed = request(response={"error": "busy"}, status="error", http_status=429)
    (call,) = of_kind(read_values(event("model_request", failed))[0], "call")
    assert (call.status, call.error.status_code, call.completions) == ("failed", 429, None)
    assert json.loads(call.meta)["agent_lightning"]["response"] == {"error": "busy"}


def test_rewards_are_the_episodes_and_unknown_events_are_shown() -> None:
    rewarded = event("reward", {"value": 1, "source": "agent", "message": "well"})
    events, notes = read_values(rewarded, event("note", {"text": "hi"}))
    (reward,) = of_kind(events, "reward")
    assert (reward.target.episode_id, reward.value, reward.scorer) == ("r/0", 1.0, "agent")
    assert notes.not_understood["agent-lightning: event note"].count == 1


def test_a_rollout_says_how_its_attempt_ended_and_its_newest_version_holds() -> None:
    def rollout(state: str, version: int) -> dict[str, Any]:
        status = {"state": state, "version": version, "last_attempt_id": "0", "created_at": 1_700_000_000}
        return {"rollout_id": "r", "input": {"q": 1}, "is_train": False, "status": status}

    running, done = rollout("running", 2), rollout("succeeded", 3)
    events = read_data(as_lines([event("model_request", request()), done, running])).events
    start, end = sorted(of_kind(events, "episode"), key=lambda one: one.phase, reverse=True)
    assert (start.phase, end.phase, end.status, end.split, json.loads(end.task)) == (
        "start",
        "end",
        "ok",
        "eval",
        {"q": 1},
    )
    assert_grows(as_lines(running, event("model_request", request()), done).splitlines())


def test_attempts_of_a_rollout_are_episodes_with_its_task() -> None:
    records = {
        "rollouts": [{"rollout_id": "r", "input": "q", "mode": "train", "status": "succeeded"}],
        "attempts": [
            {"rollout_id": "r", "attempt_id": "a", "status": "failed", "start_time": 1_700_000_000.0},
            {"rollout_id": "r", "attempt_id": "b", "status": "succeeded", "end_time": 1_700_000_001.0},
        ],
    }
    imported = read_data(as_lines(records))
    ended = {one.id: (one.status, one.split) for one in imported.of("episode") if one.phase == "end"}
    assert ended == {"r/a": ("failed", "train"), "r/b": ("ok", "train")}


def test_spans_with_prompts_or_ids_are_calls_in_their_order() -> None:
    chat = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "a",
        "gen_ai.request.model": "m",
        "gen_ai.usage.prompt_tokens": 5,
        "prompt_token_ids": [1, 2],
        "response_token_ids": [3],
    }
    tool = {"tool.name": "look", "tool.parameters": '{"at": 1}', "tool.call.id": "t1"}
    rewarded = {"agentlightning.reward.0.name": "primary", "agentlightning.reward.0.value": 0.5}
    imported = read_data(
        as_lines(
            span(1, chat), span(2, tool, parent_id="s1"), span(3, rewarded), span(4, {"x": 1}, name="other")
        )
    )
    (call,) = imported.of("call")
    assert (call.ordinal, call.model, call.usage.prompt_tokens) == (1, "m", 5)
    assert json.loads(call.request) == {"messages": [ASKED]}
    assert json.loads(call.completions[0].message) == SAID
    assert call.completions[0].token_ids.json() == [3]
    (use,) = imported.of("tool_call")
    assert (use.call_id, use.tool_call_id, use.name, use.arguments) == (call.id, "t1", "look", '{"at": 1}')
    assert [(one.name, one.value) for one in imported.of("reward")] == [("primary", 0.5)]
    assert imported.notes.not_understood["agent-lightning: span other"].count == 1
    assert_builds(imported)
    assert_order_free(as_lines(span(1, chat)), as_lines(span(2, tool, parent_id="s1")))


def test_dotted_names_spell_lists_and_objects() -> None:
    assert nested({"p.1.a": 2, "p.0.a.b": 1, "q.0": 3}, "p") == [{"a": {"b": 1}}, {"a": 2}]
    assert nested({"p.a": 1, "p.a.b": 2, "p.x": 3}, "p") == {"a": 1, "a.": {"b": 2}, "x": 3}


@pytest.mark.parametrize(
    "value",
    [
        event("model_request", request(request=3, response=[{"choices": [{"token_ids": [1]}]}])),
        event("model_request", request(response={"choices": ["x", {"token_ids": [-1]}]})),
        event("model_request", {}, timestamp="noon"),  # type: ignore[arg-type]
        event("reward", {"value": "high"}),
        span(1, {"gen_ai.prompt.0": "q", "prompt_token_ids": "[1, 2]"}),
        {"rollout_id": "r", "attempt_id": 3, "event_type": "x"},
        {"rollout_id": "r", "status": 3, "input": None},
    ],
)
def test_a_field_of_another_type_never_ends_the_import(value: Any) -> None:
    imported = read_data(as_lines(event("model_request", request()), value))
    assert len(imported.of("call")) >= 1


def test_no_leaf_changes_without_a_trace() -> None:
    chat = {"gen_ai.prompt.0.role": "user", "gen_ai.completion.0.content": "a", "prompt_token_ids": [1]}
    lines = as_lines(
        event("model_request", request(retry_count=1)), event("reward", {"value": 1.0}), span(1, chat)
    )
    assert_perturbation(lines, limit=40)
