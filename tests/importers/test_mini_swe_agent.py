"""mini-swe-agent trajectories: one linear conversation, with and without what the harness keeps beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.importers.reading import (
    Imported,
    assert_builds,
    assert_perturbation,
    newest,
    read_data,
    same_events,
)

SYSTEM = {"role": "system", "content": "To finish: echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
TASK = {"role": "user", "content": "Fix it."}
EXIT = {"role": "exit", "content": "patch", "extra": {"exit_status": "Submitted", "submission": "patch"}}


def answer(use: str, at: float) -> dict[str, Any]:
    calls = [{"id": use, "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]
    message = {"role": "assistant", "content": "I look.", "tool_calls": calls}
    response = {
        "id": f"r-{use}",
        "model": "deep",
        "choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}],
        "usage": {
            "prompt_tokens": 100,
            "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 60},
        },
    }
    actions = [{"command": "ls", "tool_call_id": use}]
    return message | {"extra": {"actions": actions, "response": response, "cost": 0.01, "timestamp": at}}


def came(use: str, output: str, code: int = 0) -> dict[str, Any]:
    extra = {"raw_output": output, "returncode": code, "timestamp": 1775792170.5}
    return {"role": "tool", "tool_call_id": use, "content": f"<output>{output}</output>", "extra": extra}


def run(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    info = {"exit_status": "Submitted", "model_stats": {"api_calls": 2}}
    return {
        "info": info,
        "messages": [*messages],
        "trajectory_format": "mini-swe-agent-1.1",
        "instance_id": "repo-1",
        **more,
    }


WHOLE = (
    SYSTEM,
    TASK,
    answer("c1", 1775792168.0),
    came("c1", "a.txt", 2),
    answer("c2", 1775792178.0),
    came("c2", "b.txt"),
    EXIT,
)


def read(value: Any) -> Imported:
    imported = read_data(json.dumps(value).encode())
    assert_builds(imported)
    return imported


def test_an_answer_is_a_call_with_the_usage_of_its_response() -> None:
    first, second = read(run(*WHOLE)).of("call")
    assert first.request.value() == {"messages": [SYSTEM, TASK]}
    assert "extra" not in first.completions[0].message.value()
    assert (first.provider_id, first.model, first.completions[0].finish_reason) == (
        "r-c1",
        "deep",
        "tool_calls",
    )
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.cost_usd) == (100, 60, 0.01)
    assert (second.context, second.parent_call_id) == ("delta", first.id)
    assert second.request.value()["messages"] == [
        {"role": "tool", "tool_call_id": "c1", "content": "<output>a.txt</output>"}
    ]


def test_a_command_has_its_result_and_exit_status() -> None:
    first, _ = read(run(*WHOLE)).of("tool_call")
    assert (first.tool_call_id, first.arguments, first.exit_status, first.status) == ("c1", "ls", 2, "ok")
    assert first.meta.value()["mini-swe-agent"]["raw_output"] == "a.txt"


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("Submitted", "ok"),
        ("LimitsExceeded", "budget_exhausted"),
        ("RepeatedFormatError", "failed"),
        ("UserInterruption", "cancelled"),
        ("RuntimeError", "infra_error"),
        (None, None),
    ],
)
def test_how_a_run_ended_is_its_status(said: str | None, status: str | None) -> None:
    episodes = read(run(*WHOLE[:6], info={"exit_status": said})).of("episode")
    assert [one.status for one in episodes if one.phase == "end"] == [status]


def test_a_bare_list_is_known_by_the_command_that_ends_a_run() -> None:
    text = "I look.\n\n```mswea_bash_command\nls -la\n```"
    imported = read(
        [SYSTEM, TASK, {"role": "assistant", "content": text}, {"role": "user", "content": "a.txt"}]
    )
    (call,) = imported.of("tool_call")
    assert (call.arguments, call.result.value()) == ("ls -la", "a.txt")
    assert "a command that ran" in imported.notes.inferred
    other = read_data(json.dumps([TASK, {"role": "assistant", "content": text}]).encode())
    assert not any(name.startswith("mini-swe-agent/") for name in other.notes.rows)


def test_an_answer_of_two_blocks_ran_nothing() -> None:
    text = "```bash\nls\n```\n```bash\npwd\n```"
    assert not read([SYSTEM, TASK, {"role": "assistant", "content": text}]).of("tool_call")


def test_responses_of_the_responses_api_are_read_as_their_items() -> None:
    output = [{"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"}]
    response = {
        "object": "response",
        "id": "r1",
        "output": output,
        "extra": {"actions": [{"command": "ls", "tool_call_id": "c1"}]},
    }
    result = {"type": "function_call_output", "call_id": "c1", "output": "a.txt", "extra": {"returncode": 0}}
    imported = read(run(SYSTEM, TASK, response, result, response | {"id": "r2"}))
    first, second = imported.of("call")
    assert first.dialect == "openai_responses"
    assert second.request.value()["input"][0]["output"] == "a.txt"
    assert imported.of("tool_call")[0].result.value() == "a.txt"


def test_a_file_that_grew_keeps_its_name() -> None:
    seen: list[Any] = []
    for num in (3, 4, 5, 6, 7):
        info = {} if num < 7 else {"info": run(*WHOLE)["info"]}
        seen += read(run(*WHOLE[:num], **info)).events
    # A tool call whose result came is the same call, told by one message more.
    assert same_events(Imported(list(newest(seen).values()), read(run(*WHOLE)).notes), read(run(*WHOLE)))


def test_no_value_of_a_trajectory_changes_without_a_trace() -> None:
    assert_perturbation(json.dumps(run(*WHOLE)).encode(), limit=40)
